#pragma once
// Bulk copies of bytes in a row, which one thread starts. sm_90+. SASS: UBLKCP.

/// Global to shared memory: addresses and `bytes` are multiples of 16. The bytes are added to an mbarrier, which has to
/// expect them.
__device__ inline void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Shared to global memory, in one of this thread's bulk groups (ptx/tma.cuh).
__device__ inline void bulk_store(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

/// Adds floats in shared memory to those in global memory, in one of this thread's bulk groups (ptx/tma.cuh).
__device__ inline void bulk_add(float* to, unsigned from, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
