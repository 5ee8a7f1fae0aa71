#pragma once
// The functions of epilogue expressions that fp32 has no single instruction for. What each can be off by is said in
// tilewright.epilogue, and held over every 16-bit input by tests/emu/test_epilogue_math.py: a few ulp of fp32; with
// fused_brief, which the text that includes this declares for results of 16 bits, a relative 2^-16 where that saves
// instructions.

/// NaN where either is: fmaxf and fminf would drop it.
__device__ inline float fused_max(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ inline float fused_min(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}

/// a / b within 2 ulp, at half the instructions of the correctly rounded quotient and without its branch.
__device__ inline float fused_divide(float a, float b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}

/// e^x. Briefly: x log2(e), below 128, is rounded and so off by up to 2^-17, a relative 2^-17 of the result; below
/// 2^-126 it is 0.
__device__ inline float fused_exp(float x) {
  if constexpr (!fused_brief) return expf(x);
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(1.44269504f * x));
  return power;
}

/// 1 / (1 + exp(-x)). Below 2^-126 it is 0: one instruction instead of the five that would keep those.
__device__ inline float fused_sigmoid(float x) {
  float share;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + fused_exp(-x)));
  return share;
}
__device__ inline float fused_silu(float x) { return x * fused_sigmoid(x); }
__device__ inline float fused_relu(float x) { return fused_max(x, 0.0f); }
__device__ inline float fused_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.707106781f)); }

/// x / 2 (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3) is x sigmoid(2 u), which cancels nothing where tanh nears
/// -1.
__device__ inline float fused_gelu_tanh(float x) {
  return x * fused_sigmoid(x * fmaf(0.0713548163f, x * x, 1.59576912f));
}

/// Quotient and remainder of an index by b > 0, rounded down as in Python.
__device__ inline long long fused_quotient(long long a, long long b) { return a / b - (a % b < 0); }
__device__ inline long long fused_remainder(long long a, long long b) { return a % b + (a % b < 0 ? b : 0); }
__device__ inline int fused_quotient(int a, int b) { return a / b - (a % b < 0); }
__device__ inline int fused_remainder(int a, int b) { return a % b + (a % b < 0 ? b : 0); }
