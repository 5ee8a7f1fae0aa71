// f05: new over f04: a thread makes thread_m x thread_n elements by outer products in registers, its rows threads_m
// apart and its columns threads_n apart: neighbouring threads stay neighbours in memory.
// thread_m + thread_n shared loads feed thread_m * thread_n products: at 8 x 8, a quarter of a load per product.
#include "tile/copy.cuh"
#include "tile/simt.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  constexpr int a_pitch = Cfg::tile_k + 1;  // single loads, as in f03
  __shared__ float a_tile[Cfg::tile_m * a_pitch], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, a_pitch, false> copy_a;
  CopyB<Cfg, Cfg::tile_n, false> copy_b;
  constexpr int threads_m = Cfg::tile_m / Cfg::thread_m, threads_n = Cfg::tile_n / Cfg::thread_n;
  const int row = threadIdx.x / threads_n, col = threadIdx.x % threads_n;

  float acc[Cfg::thread_m][Cfg::thread_n] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      float a_column[Cfg::thread_m], b_row[Cfg::thread_n];
#pragma unroll
      for (int i = 0; i < Cfg::thread_m; ++i) a_column[i] = a_tile[(row + i * threads_m) * a_pitch + k];
#pragma unroll
      for (int j = 0; j < Cfg::thread_n; ++j) b_row[j] = b_tile[k * Cfg::tile_n + col + j * threads_n];
      outer_product(acc, a_column, b_row);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < Cfg::thread_m; ++i)
#pragma unroll
    for (int j = 0; j < Cfg::thread_n; ++j)
      store_element<Cfg>(args, origin.row + row + i * threads_m, origin.col + col + j * threads_n, acc[i][j]);
}
