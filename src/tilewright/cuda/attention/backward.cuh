#pragma once
// The gradients of attention by mma.sync: a walk as it stands in attention/backward_walk.cuh.

#include "attention/backward_walk.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    backward(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Walk<Cfg> walk(args, shared);
  walk.run();
}
