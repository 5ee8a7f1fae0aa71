#pragma once
// tf32: fp32 with 10 bits after the point, in a 32-bit register whose low 13 bits tensor cores do not read. sm_80+.

/// Rounded to nearest; from (2 - 2^-11) * 2^127 on to infinity. Ties to even where one instruction does that (sm_90+,
/// SASS: F2FP.TF32), else away from 0, which takes four.
__device__ inline unsigned to_tf32(float x) {
  unsigned bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
  return bits;
}
