// f04: new over f03: a thread makes thread_m elements of one column, rows_apart rows apart.
// An element of B is read from shared memory once and used thread_m times from a register: shared loads per product
// fall from 2 to 1 + 1/thread_m.
#include "tile/copy.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  constexpr int a_pitch = Cfg::tile_k + 1;  // single loads, as in f03
  __shared__ float a_tile[Cfg::tile_m * a_pitch], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, a_pitch, false> copy_a;
  CopyB<Cfg, Cfg::tile_n, false> copy_b;
  constexpr int rows_apart = Cfg::tile_m / Cfg::thread_m;
  const int row = threadIdx.x / Cfg::tile_n, col = threadIdx.x % Cfg::tile_n;

  float acc[Cfg::thread_m] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      const float kept = b_tile[k * Cfg::tile_n + col];
#pragma unroll
      for (int i = 0; i < Cfg::thread_m; ++i) acc[i] = fmaf(a_tile[(row + i * rows_apart) * a_pitch + k], kept, acc[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < Cfg::thread_m; ++i)
    store_element<Cfg>(args, origin.row + row + i * rows_apart, origin.col + col, acc[i]);
}
