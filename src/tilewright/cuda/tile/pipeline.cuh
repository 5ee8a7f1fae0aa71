#pragma once
// A block-wide pipeline with the interface of libcu++'s cuda::pipeline, on cp.async groups and the block's barrier.
// The header itself is not used: it would have to be found, and compiles slowly.
//
//     producer_acquire    wait until a stage is free for all threads
//     producer_commit     the copies since the last commit are one stage
//     consumer_wait       wait until the oldest stage that is not yet waited for has landed for all threads
//     consumer_release    this thread has read it
//
// All threads produce and consume. Acquiring and waiting are a barrier each: that is what h05 saves by hand.

#include "ptx/cp_async.cuh"

template <int stages>
struct Pipeline {
  int filled = 0;    // stages committed and not yet released by this thread
  int released = 0;  // stages this thread has released since it last met the others

  __device__ void producer_acquire() {
    if (filled + released < stages) return;  // one has never been used, or all are known to have left it
    __syncthreads();
    released = 0;
  }
  __device__ void producer_commit() {
    cp_async_commit();
    ++filled;
  }
  __device__ void consumer_wait() {
    // Groups land in order; those after the oldest may still be under way.
    if (filled == stages)
      cp_async_wait<stages - 1>();
    else
      cp_async_wait<0>();
    __syncthreads();
    released = 0;
  }
  __device__ void consumer_release() {
    --filled;
    ++released;
  }
};
