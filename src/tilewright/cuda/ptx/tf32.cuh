#pragma once
// tf32: fp32 with 10 bits behind the point, in a register of 32 whose low 13 bits tensor cores do not read. sm_80+.

/// Rounded to nearest, ties away from 0; from (2 - 2^-11) * 2^127 on to infinity.
__device__ inline unsigned to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
