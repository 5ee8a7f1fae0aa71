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

/// Four floats from a 16-byte aligned address of block `rank`'s shared memory in one access. SASS: LD.128.
__device__ inline void load_cluster_128(float (&to)[4], unsigned address, unsigned rank) {
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %4, %5; "
               "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];}"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(address), "r"(rank)
               : "memory");
}
