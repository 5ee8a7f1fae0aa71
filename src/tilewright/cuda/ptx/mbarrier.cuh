#pragma once
// mbarrier: a counter in shared memory (8 bytes, aligned so) that threads wait at. sm_90+. SASS: SYNCS.
//
// A phase completes when as many arrivals have come as `init` said and all bytes that were expected have landed. Then
// the next phase starts by itself. A wait names the parity of a phase: 0 for the first, 1 for the second, and so on in
// turns. It passes once that phase has completed; of a fresh barrier, a wait for parity 1 passes at once.
//
// Addresses are those of shared memory (shared_address in ptx/shared.cuh).

/// By one thread; then mbarrier_init_fence, then a barrier that everyone who uses it waits at.
__device__ inline void mbarrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Lets the cluster and bulk copies see the barriers that this thread initialised.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// One arrival. What this thread did before is seen by who waits for the phase.
__device__ inline void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, once all copies that this thread started by cp.async have landed.
__device__ inline void mbarrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, and `bytes` more that bulk copies will report in this phase.
__device__ inline void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// One arrival at the barrier that lies at this address in block `rank` of the cluster. Ordered as in the block: bulk
/// copies and wgmma need no more, and a release of the cluster's scope waits a microsecond for all of memory.
__device__ inline void mbarrier_arrive_at(unsigned barrier, unsigned rank) {
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
               "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(barrier),
               "r"(rank)
               : "memory");
}

/// Returns whether the phase of a parity has completed; waits a while for it, as long as the hardware thinks fit.
__device__ inline bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}

/// Waits for the phase of a parity.
__device__ inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}
