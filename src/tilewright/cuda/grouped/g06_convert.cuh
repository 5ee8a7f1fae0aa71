// g06: q01 over groups, for fp8 operands; blocks stay as in g01.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/converted.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    grouped(const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  start_after_earlier_grids<Cfg::alone>();  // the ends too may be what an earlier grid writes
  Groups<Cfg> groups(args);
  GroupTile at;
  for (unsigned tile = blockIdx.x; groups.find(tile, at); tile += gridDim.x) {
    if (clear_rest<Cfg>(args, at, Cfg::threads)) continue;
    converted<Cfg>(at.product, shared_address(shared), at.origin, [] {});
    __syncthreads();  // all have read the last tiles
  }
}
