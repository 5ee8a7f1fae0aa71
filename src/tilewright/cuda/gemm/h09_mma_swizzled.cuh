// h09: new over h08: Swizzle<3, 3, 3> on B's tiles: 16-byte chunk c of 128-byte row r moves to c ^ (r % 8).
// Lines of 64 elements are such rows: no conflict is left. Lines of 128 elements are two rows each, so only two bits of
// the line take part: 8 rows in one bank become 2.
#include "gemm/mma_double_buffer.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  mma_double_buffer_gemm<Cfg, TileA<Cfg>, TileB<Cfg, Swizzle<3, 3, 3>>>(args, shared_address(shared));
}
