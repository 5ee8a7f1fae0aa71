#pragma once
// cp.async of 16 bytes that may not all exist. sm_80+. SASS: LDGSTS.ZFILL with a predicate; a size goes into the address.

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
#define TW_COPY_16_OR_ZERO(cache)                                                                                     \
  asm volatile("{.reg .pred absent; setp.eq.u32 absent, %2, 0; cp.async." cache                                       \
               ".shared.global [%0], [%1], 16, absent;}" ::"r"(shared),                                               \
               "l"(global), "r"(unsigned(valid))                                                                      \
               : "memory")
  if constexpr (cache_all)
    TW_COPY_16_OR_ZERO("ca");
  else
    TW_COPY_16_OR_ZERO("cg");
#undef TW_COPY_16_OR_ZERO
}
