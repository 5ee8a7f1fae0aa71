#pragma once
// The main loop of q01: a tile of the result of fp8 operands, by mma.sync of fp16.
//
//     a register of a fragment      k, k + 1, k + 2, k + 3      of a row of A or a column of B
//     first product                 k, k + 1                    as fp16
//     second product                        k + 2, k + 3        as fp16
//
// Both operands take the same of k, so the order along k does not matter.

#include "ptx/number8.cuh"
#include "tile/block_scales.cuh"
#include "tile/copy16.cuh"
#include "tile/mma_tile.cuh"
#include "tile/ring.cuh"

template <class Cfg>
using ConvertedSums = float[MmaTiling<Cfg>::rows][2 * MmaTiling<Cfg>::cols][4];

template <class Cfg>
__device__ inline void multiply_converted(ConvertedSums<Cfg>& sums, const Fragments<Cfg>& f) {
  using At = MmaTiling<Cfg>;
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    unsigned b[At::cols][4];
#pragma unroll
    for (int j = 0; j < At::cols; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) b[j][r] = halves_of<typename Cfg::b_type>(f.b[j][r], upper);
#pragma unroll
    for (int i = 0; i < At::rows; ++i) {
      unsigned a[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = halves_of<typename Cfg::a_type>(f.a[i][r], upper);
#pragma unroll
      for (int j = 0; j < 2 * At::cols; ++j)
        mma_m16n8k16<f16>(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

/// The tile of the result at `origin`, through buffers from the shared address `shared` on. `before_copies` is called
/// once addresses are ready, before anything of the operands is touched.
template <class Cfg, class Before>
__device__ inline void converted(const GemmArgs& args, unsigned shared, TileOrigin origin,
                                 const Before& before_copies) {
  using At = MmaTiling<Cfg>;
  using A = TileA<Cfg, ConflictFree<TileA<Cfg>::inner>>;
  using B = TileB<Cfg, ConflictFree<TileB<Cfg>::inner>>;
  const unsigned a_tiles = shared, b_tiles = a_tiles + Cfg::stages * A::bytes;
  const KRange<Cfg> range(args.k);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col);
  const auto start = [&](int buffer) {
    copy_a.start(buffer * A::bytes);
    copy_b.start(buffer * B::bytes);
  };

  const At at;
  const FragmentReader<A, true> a(a_tiles, at.row0);
  const FragmentReader<B, false> b(b_tiles, at.col0);
  const int row0 = origin.row + at.row0, col0 = origin.col + at.col0;
  ConvertedSums<Cfg> sums = {};
  before_copies();
  Ring<Cfg::stages> ring;
  ring.fill(range.tiles, start);
  for (int tile = 0; tile < range.tiles; ++tile) {
    ring.wait();
    if (tile + Cfg::stages - 1 < range.tiles) start(ring.write);
    cp_async_commit();
    ConvertedSums<Cfg> part = {};
    ConvertedSums<Cfg>& to = has_block_scales<Cfg> ? part : sums;
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step) {
      Fragments<Cfg> f;
      a.load(f.a, ring.read * A::bytes, step);
      b.load(f.b, ring.read * B::bytes, step);
      multiply_converted<Cfg>(to, f);
    }
    if constexpr (has_block_scales<Cfg>) {
      BlockScales<Cfg, 2 * At::rows, Cfg::warp_n> scales;
      scales.read(args, (range.first + tile) * 2 * Cfg::tile_k, col0,
                  [&](int i) { return row0 + 8 * i + threadIdx.x % 32 / 4; });
#pragma unroll
      for (int i = 0; i < At::rows; ++i)
#pragma unroll
        for (int j = 0; j < 2 * At::cols; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sums[i][j][e] = fmaf(part[i][j][e], scales(2 * i + e / 2, col0, 8 * j), sums[i][j][e]);
    }
    ring.turn();
  }
  cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < At::rows; ++i) store_sixteen_rows<Cfg>(args, row0 + 16 * i, col0, sums[i]);
}
