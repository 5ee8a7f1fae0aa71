#pragma once
// Numbers in global memory that blocks wait for. sm_70+.

/// Reads what another block wrote by store_release, and with it all that it wrote before. SASS: LD.E.STRONG.GPU.
__device__ inline int load_acquire(const int* at) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void store_release(int* at, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
