#pragma once
// The exponential that the hardware has.

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

/// 2^x, approximate: 2 ulp, and exactly 0 at -inf. Subnormal numbers count as 0. sm_75+. SASS: MUFU.EX2.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
