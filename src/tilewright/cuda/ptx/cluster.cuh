#pragma once
// Clusters: blocks that run at the same time on neighbouring SMs and reach each other's shared memory. sm_90+.

/// This block's number in its cluster.
__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of the cluster come, whole warps, and see what the others wrote before.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
