#pragma once
// Clusters: blocks that run at the same time on neighbouring SMs and reach each other's shared memory. sm_90+.

/// This block's number in its cluster.
__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// The word that lies at this shared address in block `rank` of the cluster.
__device__ inline unsigned load_of_block(unsigned address, unsigned rank) {
  unsigned value;
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %1, %2; ld.shared::cluster.u32 %0, [remote];}"
               : "=r"(value)
               : "r"(address), "r"(rank)
               : "memory");
  return value;
}

/// All threads of the cluster come, whole warps, and see what the others wrote before.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
