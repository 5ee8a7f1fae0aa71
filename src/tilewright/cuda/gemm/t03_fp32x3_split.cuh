// t03: new over t02: operands are split once, in a pass of its own (gemm/split.cuh), not by every block that reads
// them. The main loop has no arithmetic on operands any more: tiles of three parts come by cp.async into a ring of
// `stages`, and the six products of parts are all it does.
//
//     place (step, row of pieces)   start a part of the copy of tile t + stages - 1; multiply this row of pieces by
//                                   the step's columns; load the next row's fragments meanwhile
//     tile t, its last place        wait until tile t + 1 has landed; barrier; read on from its buffer
//
// Sums and what is done again: as t02. Extremes and where the operands lie come with the split operands.
#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/fp32x3.cuh"
#include "tile/mend.cuh"
#include "tile/ring.cuh"
#include "tile/split_operand.cuh"

/// The copy of one block's tiles, 16 bytes per thread and pass.
template <class Operand, int threads>
struct SplitCopy {
  static constexpr int passes = Operand::bytes / 16 / threads;
  static_assert(passes * threads * 16 == Operand::bytes, "whole passes");
  const unsigned char* from;
  unsigned to;

  __device__ SplitCopy(const Operand& operand, int block, unsigned buffers)
      : from(operand.tile(block, 0) + threadIdx.x * 16), to(buffers + threadIdx.x * 16) {}

  /// One of `parts` equal parts of the next tile.
  __device__ void start_part(int stage, int part, int parts) {
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (p * parts / passes == part)
        cp_async_16<false>(to + stage * Operand::bytes + p * threads * 16, from + p * threads * 16);
    if (part + 1 == parts) from += Operand::bytes;
  }
};

/// The largest magnitude of a block's lines, and the least.
template <class Operand, int threads>
__device__ inline float2 extremes_of(const Operand& operand, int block, float* scratch) {
  constexpr int warps = threads / 32;
  float2 found = make_float2(0, __uint_as_float(0x7f800000));
  for (int tile = threadIdx.x; tile < operand.tiles; tile += threads) {
    const float2 here = operand.extremes(block)[tile];
    found.x = fmaxf(found.x, here.x), found.y = fminf(found.y, here.y);
  }
  found.x = join_block<warps>(found.x, scratch, [](float a, float b) { return fmaxf(a, b); });
  found.y = join_block<warps>(found.y, scratch + warps, [](float a, float b) { return fminf(a, b); });
  return found;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = SplitOperand<Cfg::tile_m, Cfg::tile_k>;
  using B = SplitOperand<Cfg::tile_n, Cfg::tile_k>;
  using Tiling = MmaTiling<Cfg>;
  constexpr int steps = Cfg::tile_k / 16, places = steps * Tiling::rows;
  static_assert(steps % 2 == 0, "which fragments are next is known when compiling");
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + Cfg::stages * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const int block_m = origin.row / Cfg::tile_m, block_n = origin.col / Cfg::tile_n;
  const A split_a(args.a, args.a_batch, args.m, args.k);
  const B split_b(args.b, args.b_batch, args.n, args.k);
  const int tiles = split_a.tiles;
  SplitCopy<A, Cfg::threads> copy_a(split_a, block_m, a_tiles);
  SplitCopy<B, Cfg::threads> copy_b(split_b, block_n, b_tiles);
  const Tiling at;
  const FragmentReader<typename A::Tile, true> a(a_tiles, at.row0);
  const FragmentReader<typename B::Tile, false> b(b_tiles, at.col0);
  Accumulators<Cfg> acc;
  unsigned left[2][3][1][4], right[2][3][Tiling::cols][4];
  wait_for_earlier_grids();
  let_later_grids_start();
  Ring<Cfg::stages> ring;
  ring.fill(tiles, [&](int stage) { copy_a.start_part(stage, 0, 1), copy_b.start_part(stage, 0, 1); });
  ring.wait();
  if (tiles > 0)
#pragma unroll
    for (int p = 0; p < 3; ++p) a.load(left[0][p], p * A::Tile::bytes, 0), b.load(right[0][p], p * B::Tile::bytes, 0);

  const auto multiply_tile = [&](bool copying, bool last) {
#pragma unroll
    for (int place = 0; place < places; ++place) {
      const int step = place / Tiling::rows, row = place % Tiling::rows, next = (place + 1) % places;
      const bool ends_step = row + 1 == Tiling::rows;
      if (copying) copy_a.start_part(ring.write, place, places), copy_b.start_part(ring.write, place, places);
      if (next == 0) ring.advance();
      float sum[2 * Tiling::cols][4];
#pragma unroll
      for (int product = 0; product < 6; ++product) {
        multiply_parts<Tiling::cols>(product, sum, left[place % 2], right[step % 2]);
        if (product < 3 && (next != 0 || !last)) {
          const int to_step = next / Tiling::rows;
          a.load(left[(place + 1) % 2][product], ring.read * A::bytes + product * A::Tile::bytes, to_step,
                 next % Tiling::rows);
          if (ends_step)
            b.load(right[(step + 1) % 2][product], ring.read * B::bytes + product * B::Tile::bytes, to_step);
        }
      }
      add_to(acc.value[row], sum);
    }
  };
  SharedSums<Cfg> far(b_tiles + Cfg::stages * B::bytes);
  constexpr int chain = Cfg::chain / Cfg::tile_k;
  for (int tile = 0; tile < tiles;) {
    const int stop = chain > 0 ? min(tile + chain, tiles) : tiles;
    const bool first = tile == 0;
    for (; tile < stop; ++tile) multiply_tile(tile + Cfg::stages - 1 < tiles, tile + 1 == tiles);
    if (chain > 0 && tile < tiles) far.take(acc, first);
  }
  if constexpr (chain > 0) far.give(acc);
  // All tiles have landed and are read: the barrier at the last one's last place was the last, and their place is free.
  const int row = origin.row + at.row0, col = origin.col + at.col0;
  if (tiles > 0) {
    float* const scratch = reinterpret_cast<float*>(shared);
    const float2 of_a = extremes_of<A, Cfg::threads>(split_a, block_m, scratch);
    const float2 of_b = extremes_of<B, Cfg::threads>(split_b, block_n, scratch + 2 * (Cfg::threads / 32));
    const float trusted =
        least_trusted<Cfg>(args, acc, row, col, of_a.x, of_b.x, [&] { return make_float2(of_a.y, of_b.y); });
    mend(args, acc, row, col, trusted, split_a.origin(), split_b.origin());
  }
  acc.store(args, row, col);
}
