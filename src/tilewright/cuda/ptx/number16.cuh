#pragma once
// The 16-bit floats as their bits, and what converts them. sm_80+.
// Own types: the toolkit's headers for them take longer to compile than the kernels do.

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

/// One value as fp32: exact. bf16 is the upper half of fp32.
__device__ inline float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline float to_float(f16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ inline float to_float(float x) { return x; }

/// fp32 rounded to nearest even.
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  bf16 value;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  f16 value;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
}
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}

/// Two values of a 32-bit word, `low` at the lower address, rounded to nearest even.
template <class T>
__device__ inline unsigned pack(float low, float high);
template <>
__device__ inline unsigned pack<bf16>(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ inline unsigned pack<f16>(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// A word of four values of fp8, where ptx/number8.cuh is included.
template <class T>
__device__ inline unsigned pack_four(const float* value);

/// Half number `which` of a word.
template <class T>
__device__ inline float half_of(unsigned word, int which) {
  return to_float(T{static_cast<unsigned short>(which ? word >> 16 : word)});
}
