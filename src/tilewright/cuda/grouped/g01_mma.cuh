// g01: h11 over groups. Blocks stay, as many as the SMs hold: the host does not know how many tiles there are.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/multistage.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    grouped(const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  start_after_earlier_grids<Cfg::alone>();  // the ends too may be what an earlier grid writes
  Groups<Cfg> groups(args);
  GroupTile at;
  for (unsigned tile = blockIdx.x; groups.find(tile, at); tile += gridDim.x) {
    multistage<Cfg>(at.product, shared_address(shared), at.origin, [] {});
    __syncthreads();  // all have read the last tiles
  }
}
