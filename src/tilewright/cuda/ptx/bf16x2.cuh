#pragma once
// Two bf16 numbers in a word. sm_80+.

/// The larger of the magnitudes, number by number; a NaN yields to a number. SASS: HMNMX2.BF16_V2.
__device__ inline unsigned most_bf16x2(unsigned a, unsigned b) {
  unsigned size, most;
  asm("abs.bf16x2 %0, %1;" : "=r"(size) : "r"(b));
  asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(size));
  return most;
}
