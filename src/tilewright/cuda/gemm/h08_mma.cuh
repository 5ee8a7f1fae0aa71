// h08: new over h05: mma.sync instead of wmma. Fragments come by ldmatrix and their layout is known, so the results go
// from the accumulators to global memory with no stop in shared memory.
// Tiles lie row by row: the eight rows of an 8 x 8 matrix are a power of two apart and meet in few banks (64-byte
// lines: 4 of 8 rows in one; 128 bytes and more: all 8). The next rung's business.
#include "gemm/mma_double_buffer.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(128) unsigned char shared[];
  mma_double_buffer_gemm<Cfg, TileA<Cfg>, TileB<Cfg>>(args, shared_address(shared));
}
