#pragma once
// cp.async of 16 bytes with a source size: the tail of a line. sm_80+. SASS: LDGSTS with a predicate or a size.

/// Copies the first `bytes` (0..16) and fills the rest with zeros. Both addresses are 16-byte aligned; with 0 bytes
/// nothing is read.
__device__ inline void cp_async_16_part(unsigned shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
