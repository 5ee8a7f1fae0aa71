// f08: new over f07: a warp tile is walked in subtiles_m x subtiles_n pieces.
// A thread's elements lie in several small pieces instead of one large one: its vectors of B are neighbours of the
// next lane's (no bank conflict), and the pieces are independent chains of products.
#include "gemm/warp_tiled.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  warp_tiled_gemm<Cfg>(args);
}
