// g04: f12 over groups, for float32 operands; blocks stay as in g01.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/multistage32.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    grouped(const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(16) float shared[];
  wait_for_earlier_grids();  // the ends too may be what an earlier grid writes
  let_later_grids_start();
  Groups<Cfg> groups(args);
  GroupTile at;
  for (unsigned tile = blockIdx.x; groups.find(tile, at); tile += gridDim.x) {
    multistage32<Cfg>(at.product, shared, at.origin, [] {});
    __syncthreads();  // all have read the last tiles
  }
}
