#pragma once
// Two bf16 numbers in a word. sm_80+.

/// The larger of the magnitudes, number by number, under some sign; a NaN yields to a number. SASS: HMNMX2.BF16_V2.
__device__ inline unsigned most_bf16x2(unsigned a, unsigned b) {
  unsigned most;
#if __CUDA_ARCH__ >= 860
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
#else
  asm("abs.bf16x2 %0, %1;" : "=r"(a) : "r"(a));
  asm("abs.bf16x2 %0, %1;" : "=r"(b) : "r"(b));
  asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
#endif
  return most;
}
