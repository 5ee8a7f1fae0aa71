// f06: new over f05: 128 bits per access: global loads, shared loads of both operands, stores of the result. For that a
// thread's elements lie together, and A is read 4 k of a row at a time.
// A quarter of the load and store instructions move the same bytes; but neighbouring threads' vectors of B now lie
// apart and conflict, which f08 mends, and rows of A fall on the same banks, which f09 mends.
#include "tile/copy.cuh"
#include "tile/simt.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  __shared__ __align__(16) float a_tile[Cfg::tile_m * Cfg::tile_k], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, Cfg::tile_k, true> copy_a;
  CopyB<Cfg, Cfg::tile_n, true> copy_b;
  constexpr int threads_n = Cfg::tile_n / Cfg::thread_n;
  const int row = threadIdx.x / threads_n * Cfg::thread_m, col = threadIdx.x % threads_n * Cfg::thread_n;

  float acc[Cfg::thread_m][Cfg::thread_n] = {};
  for (int tile = 0; tile < args.k; tile += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, tile);
    copy_b.copy(b_tile, b, tile, origin.col);
    __syncthreads();
#pragma unroll
    for (int k0 = 0; k0 < Cfg::tile_k; k0 += 4) {
      float a_rows[Cfg::thread_m][4];
#pragma unroll
      for (int i = 0; i < Cfg::thread_m; ++i) load_line<4>(a_rows[i], &a_tile[(row + i) * Cfg::tile_k + k0]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float b_row[Cfg::thread_n];
        load_line<Cfg::thread_n>(b_row, &b_tile[(k0 + k) * Cfg::tile_n + col]);
        outer_product(acc, a_rows, k, b_row);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < Cfg::thread_m; ++i)
#pragma unroll
    for (int j = 0; j < Cfg::thread_n; j += 4)
      store_run<Cfg, 4>(args, origin.row + row + i, origin.col + col + j,
                        *reinterpret_cast<const float (*)[4]>(&acc[i][j]));
}
