// f07: new over f06: a level between block and thread: each warp owns a warp_m x warp_n tile.
// A warp's 32 threads read a compact piece of the tiles, which shared memory broadcasts to more of them at once.
#include "gemm/warp_tiled.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  static_assert(Cfg::subtiles_m == 1 && Cfg::subtiles_n == 1, "subtiles are the next rung's");
  warp_tiled_gemm<Cfg>(args);
}
