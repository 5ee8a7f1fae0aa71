#pragma once
// TMA: one thread has L2 fetch a box of a tensor, which tma_load (ptx/tma.cuh) finds there later. sm_90+. SASS: UTMAPF.
// Nothing of it reaches the SM, so that it may be asked for while the grid ahead still writes to the tensor.

#include "ptx/tma.cuh"

/// Of two dimensions.
__device__ inline void tma_prefetch(const TensorMap& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y) : "memory");
}

/// Of three.
__device__ inline void tma_prefetch(const TensorMap& map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(x), "r"(y), "r"(z)
               : "memory");
}
