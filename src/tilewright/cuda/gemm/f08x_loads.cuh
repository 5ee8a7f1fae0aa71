// An experiment: f08 with single loads of shared memory, f08x of both operands, f08y (wide_b) of A alone.
#include "tile/copy.cuh"
#include "tile/simt.cuh"

/// One element, and never a part of a wider load: the compiler joins neighbours that it sees.
__device__ inline float load_one(const float* from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared_address(from)) : "memory");
  return value;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  __shared__ __align__(16) float a_tile[Cfg::tile_m * Cfg::tile_k], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, Cfg::tile_k, true> copy_a;
  CopyB<Cfg, Cfg::tile_n, true> copy_b;
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  for (int tile = 0; tile < args.k; tile += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, tile);
    copy_b.copy(b_tile, b, tile, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      float a_column[Tiling::rows], b_row[Tiling::cols];
#pragma unroll
      for (int i = 0; i < Tiling::rows; ++i)
        a_column[i] = load_one(&a_tile[(at.row(i / Cfg::thread_m) + i % Cfg::thread_m) * Cfg::tile_k + k]);
      if constexpr (Cfg::wide_b) {
        at.load_b(b_row, b_tile + k * Cfg::tile_n + at.col0);
      } else {
#pragma unroll
        for (int j = 0; j < Tiling::cols; ++j)
          b_row[j] = load_one(&b_tile[k * Cfg::tile_n + at.col(j / Cfg::thread_n) + j % Cfg::thread_n]);
      }
      outer_product(acc, a_column, b_row);
    }
    __syncthreads();
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
