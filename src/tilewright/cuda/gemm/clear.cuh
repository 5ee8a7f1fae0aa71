// clear: zeros, for a kernel whose blocks leave word for one another.
#include "ptx/grid_dependency.cuh"

/// gemm/params.py packs it.
struct ClearArgs {
  unsigned* words;
  long long count;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) clear(const __grid_constant__ ClearArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  const long long index = blockIdx.x * (long long)Cfg::threads + threadIdx.x;
  if (index < args.count) args.words[index] = 0;
}
