// t02: products as accurate as fp32's on tensor cores. Every element is three bf16 numbers, a = a0 + a1 + a2, each 2^-8
// of the one before; of the nine products the six largest are made, the others are below fp32's rounding:
//
//     a b  ~  a0 b0  +  a0 b1 + a1 b0  +  a0 b2 + a1 b1 + a2 b0
//
// Tensor cores cut sums where fp32 rounds them, and a long chain of cuts drifts towards zero. So every step of 16 along
// k is a sum of its own, smallest products first, which a rounded fp32 addition takes to the accumulators. These in
// turn start anew every Cfg::chain of k, their sums kept in shared memory: errors grow with the length of a chain.
// Products that parts cannot give are done again at the end (tile/mend.cuh).
#include "gemm/tensor32.cuh"
#include "tile/fp32x3.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = Operand<Cfg, Bf16x3, true>;
  using B = Operand<Cfg, Bf16x3, false>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + 2 * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = A::copy(args, a_tiles, origin.row);
  auto copy_b = B::copy(args, b_tiles, origin.col);
  using Tiling = MmaTiling<Cfg>;
  const Tiling at;
  const typename A::Reader a(a_tiles, at.row0);
  const typename B::Reader b(b_tiles, at.col0);
  Accumulators<Cfg> acc;
  const auto multiply = [&](unsigned a_buffer, unsigned b_buffer, int step, auto between) {
    unsigned right[3][Tiling::cols][4], left[2][3][1][4];  // of this row of pieces and of the next
#pragma unroll
    for (int p = 2; p >= 0; --p) {
      a.load(left[0][p], a_buffer + p * A::Tile::bytes, step);
      b.load(right[p], b_buffer + p * B::Tile::bytes, step);
    }
#pragma unroll
    for (int row = 0; row < Tiling::rows; ++row) {
      float sum[2 * Tiling::cols][4];
#pragma unroll
      for (int product = 0; product < 6; ++product) {
        multiply_parts<Tiling::cols>(product, sum, left[row % 2], right);
        if (product < 3 && row + 1 < Tiling::rows)
          a.load(left[1 - row % 2][product], a_buffer + product * A::Tile::bytes, step, row + 1);
        between(6 * row + product);
      }
      add_to(acc.value[row], sum);
    }
  };
  SharedSums<Cfg> far(b_tiles + 2 * B::bytes);
  constexpr int chain = Cfg::chain / Cfg::tile_k;
  multiply_all<Cfg, Bf16x3, 6 * Tiling::rows, chain>(args, copy_a, copy_b, multiply,
                                                     [&](bool first) { far.take(acc, first); });
  if constexpr (Cfg::chain > 0) far.give(acc);
  // The tiles are read: the barrier after the last one was the last, and their place is free.
  const int row = origin.row + at.row0, col = origin.col + at.col0;
  constexpr int warps = Cfg::threads / 32;
  const auto larger = [](float x, float y) { return fmaxf(x, y); };
  float* const scratch = reinterpret_cast<float*>(shared);
  const float most_a = join_block<warps>(copy_a.format.largest(), scratch, larger);
  const float most_b = join_block<warps>(copy_b.format.largest(), scratch + warps, larger);
  const float trusted = least_trusted<Cfg>(args, acc, row, col, most_a, most_b, [&] {
    return make_float2(least_magnitude<warps>(A::panel(args, origin.row), scratch + 2 * warps),
                       least_magnitude<warps>(B::panel(args, origin.col), scratch + 3 * warps));
  });
  mend(args, acc, row, col, trusted, A::lines(args), B::lines(args));
  acc.store(args, row, col);
}
