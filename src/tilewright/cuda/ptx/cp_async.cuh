#pragma once
// cp.async: global -> shared with no register in between. sm_80+. SASS: LDGSTS.
// A copy is complete for its own thread after wait_group, for other threads after a barrier that follows it.

#include "ptx/shared.cuh"

/// 16 bytes, cached in L2 only (.cg) or in L1 too (.ca). Both addresses are 16-byte aligned.
template <bool cache_all>
__device__ inline void cp_async_16(unsigned shared, const void* global) {
  if constexpr (cache_all)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// 4 bytes (.ca is the only form).
__device__ inline void cp_async_4(unsigned shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

/// 4 bytes, or 4 zero bytes where `valid` is false: then nothing is read from `global`.
__device__ inline void cp_async_4_or_zero(unsigned shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(valid ? 4 : 0)
               : "memory");
}

/// Copies the first `bytes` (0..16) and fills the rest with zeros; cached in L2 only, or (cache_all) in L1 too. Both
/// addresses are 16-byte aligned; with 0 bytes nothing is read.
template <bool cache_all = false>
__device__ inline void cp_async_16_part(unsigned shared, const void* global, int bytes) {
  if constexpr (cache_all)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}

/// 16 bytes, or 16 zero bytes where `valid` is false: then nothing is read. A fifth of the instructions of a size.
template <bool cache_all>
__device__ inline void cp_async_16_or_zero(unsigned shared, const void* global, bool valid) {
#define TW_COPY_16_OR_ZERO(cache)                                               \
  asm volatile("{.reg .pred absent; setp.eq.u32 absent, %2, 0; cp.async." cache \
               ".shared.global [%0], [%1], 16, absent;}" ::"r"(shared),         \
               "l"(global), "r"(unsigned(valid))                                \
               : "memory")
  if constexpr (cache_all)
    TW_COPY_16_OR_ZERO("ca");
  else
    TW_COPY_16_OR_ZERO("cg");
#undef TW_COPY_16_OR_ZERO
}

/// Seals this thread's copies since the last commit into one group (an empty group counts too).
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `pending` of this thread's newest groups are still under way.
template <int pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
