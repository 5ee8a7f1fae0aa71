#pragma once
// The gradients of attention by wgmma, a walk as it stands in attention/backward_groups.cuh.

#include "attention/backward_groups.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    backward(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  GroupWalk<Cfg> walk(args, shared);
  walk.run();
}
