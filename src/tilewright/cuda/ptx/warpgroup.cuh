#pragma once
// What warpgroups of one block share out: registers, and barriers for some of its threads.

/// Gives registers of this warpgroup back, down to `count` per thread (a multiple of 8, 24 to 256). sm_90a only. The
/// kernel needs __launch_bounds__ with a number of blocks, and one branch for each role. SASS: USETMAXREG.
template <int count>
__device__ inline void release_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/// Takes registers, up to `count` per thread, once the block has so many free.
template <int count>
__device__ inline void take_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// Barrier number `id` (1 to 15; 0 is __syncthreads) for `threads` threads, whole warps.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this warp at the barrier, and goes on.
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
