// start: sets the counter that blocks draw their tiles from to 0.
#include "ptx/grid_dependency.cuh"

extern "C" __global__ void start(unsigned* counter) {
  wait_for_earlier_grids();
  let_later_grids_start();
  *counter = 0;
}
