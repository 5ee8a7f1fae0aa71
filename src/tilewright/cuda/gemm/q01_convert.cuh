// q01: fp8 on mma.sync, from sm_80 on. Tiles of bytes come through the ring of 16-bit elements, two numbers in one. On
// the way from fragment to product each number becomes an fp16, which holds every e4m3 and e5m2, so the products and
// sums are those of 16 bits: no scale is needed, and none is missed.
//
//     a register of a fragment      k, k + 1, k + 2, k + 3      of a row of A or a column of B
//     first product                 k, k + 1                    as fp16
//     second product                        k + 2, k + 3        as fp16
//
// Both operands take the same of k, so the order along k does not matter.
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"
#include "tile/block_scales.cuh"
#include "tile/copy16.cuh"
#include "tile/mma_tile.cuh"
#include "tile/ring.cuh"

template <class Cfg>
using Sums = float[MmaTiling<Cfg>::rows][2 * MmaTiling<Cfg>::cols][4];

template <class Cfg>
__device__ inline void multiply(Sums<Cfg>& sums, const Fragments<Cfg>& f) {
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

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using At = MmaTiling<Cfg>;
  using A = TileA<Cfg, ConflictFree<TileA<Cfg>::inner>>;
  using B = TileB<Cfg, ConflictFree<TileB<Cfg>::inner>>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + Cfg::stages * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
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
  Sums<Cfg> sums = {};
  start_after_earlier_grids<Cfg::alone>();
  Ring<Cfg::stages> ring;
  ring.fill(range.tiles, start);
  for (int tile = 0; tile < range.tiles; ++tile) {
    ring.wait();
    if (tile + Cfg::stages - 1 < range.tiles) start(ring.write);
    cp_async_commit();
    Sums<Cfg> part = {};
    Sums<Cfg>& to = has_block_scales<Cfg> ? part : sums;
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step) {
      Fragments<Cfg> f;
      a.load(f.a, ring.read * A::bytes, step);
      b.load(f.b, ring.read * B::bytes, step);
      multiply<Cfg>(to, f);
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
