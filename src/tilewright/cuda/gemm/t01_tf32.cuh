// t01: fp32 operands rounded to tf32 (10 bits after the point, the exponents of fp32) on their way to shared memory,
// multiplied by mma.sync m16n8k8 with fp32 accumulators.
#include "gemm/tensor32.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = Operand<Cfg, Tf32, true>;
  using B = Operand<Cfg, Tf32, false>;
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
    Fragments<Cfg> f;
    a.load(f.a, a_buffer, step);
    b.load(f.b, b_buffer, step);
#pragma unroll
    for (int i = 0; i < Tiling::rows; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * Tiling::cols; ++j)
        mma_m16n8k8_tf32(acc.value[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
      between(i);
    }
  };
  multiply_all<Cfg, Tf32, Tiling::rows, 0>(args, copy_a, copy_b, multiply, [](bool) {});
  acc.store(args, origin.row + at.row0, origin.col + at.col0);
}
