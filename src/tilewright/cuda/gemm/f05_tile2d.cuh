// f05: new over f04: a thread makes a thread_m x thread_n tile by outer products in registers.
// thread_m + thread_n shared loads feed thread_m * thread_n products: at 8 x 8, a quarter of a load a product.
#include "gemm/operands.cuh"
#include "tile/epilogue.cuh"
#include "tile/simt.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks) gemm(const __grid_constant__ GemmArgs args) {
  constexpr int a_pitch = Cfg::tile_k + 1, b_pitch = Cfg::tile_n + 1;  // single loads, as in f03
  __shared__ float a_tile[Cfg::tile_m * a_pitch], b_tile[Cfg::tile_k * b_pitch];
  const TileOrigin origin = tile_origin<Cfg::tile_m, Cfg::tile_n>(blockIdx.x, args.m, args.n);
  const TileSource<float> a = source_a(args), b = source_b(args);
  CopyA<Cfg, a_pitch, false> copy_a;
  CopyB<Cfg, b_pitch, false> copy_b;
  constexpr int threads_n = Cfg::tile_n / Cfg::thread_n;
  const int row = threadIdx.x / threads_n * Cfg::thread_m, col = threadIdx.x % threads_n * Cfg::thread_n;

  float acc[Cfg::thread_m][Cfg::thread_n] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      float a_column[Cfg::thread_m], b_row[Cfg::thread_n];
#pragma unroll
      for (int i = 0; i < Cfg::thread_m; ++i) a_column[i] = a_tile[(row + i) * a_pitch + k];
#pragma unroll
      for (int j = 0; j < Cfg::thread_n; ++j) b_row[j] = b_tile[k * b_pitch + col + j];
      outer_product(acc, a_column, b_row);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < Cfg::thread_m; ++i)
#pragma unroll
    for (int j = 0; j < Cfg::thread_n; ++j)
      store_element<Cfg>(args, origin.row + row + i, origin.col + col + j, acc[i][j]);
}
