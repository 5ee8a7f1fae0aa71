#pragma once
// bar.sync with a number: a barrier of some warps of a block. Number 0 is that of __syncthreads. SASS: BAR.SYNC.

/// Waits for `threads` threads, whole warps, that name the same number (1 to 15).
template <int threads>
__device__ inline void named_barrier_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}
