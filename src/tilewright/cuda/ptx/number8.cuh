#pragma once
// The floats of 8 bits as their bits, and what converts them: exactly to 16 bits and fp32, rounded from fp32.
//
//     e4m3    bias 7, no infinities; 0x7f is NaN; the largest number is 448
//     e5m2    the upper half of an fp16; the largest number is 57344
//
// Instructions for them are sm_89+. Before that integer arithmetic makes the same bits.

#include "ptx/number16.cuh"

struct e4m3 {
  unsigned char bits;
};
struct e5m2 {
  unsigned char bits;
};

/// Two of the four numbers in a word, the lower two or the upper, as two fp16: exact.
template <class T>
__device__ inline unsigned halves_of(unsigned word, int upper);
template <>
__device__ inline unsigned halves_of<e5m2>(unsigned word, int upper) {
  return __byte_perm(word, 0, upper ? 0x3424 : 0x1404);
}
template <>
__device__ inline unsigned halves_of<e4m3>(unsigned word, int upper) {
  unsigned halves;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(upper ? word >> 16 : word)));
#else
  // Exponent and fraction one bit lower than e5m2's are 2^8 times too small, subnormal numbers too.
  const unsigned bytes = __byte_perm(word, 0, upper ? 0x3424 : 0x1404);
  const unsigned small = (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(small), "r"(0x5c005c00u));
  const unsigned nan = ((bytes & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
  halves |= nan - (nan >> 7);
#endif
  return halves;
}

__device__ inline float to_float(e4m3 x) { return half_of<f16>(halves_of<e4m3>(x.bits, 0), 0); }
__device__ inline float to_float(e5m2 x) { return half_of<f16>(halves_of<e5m2>(x.bits, 0), 0); }

/// Two values rounded to nearest even, `low` in the lower byte. What is too large, infinities too, becomes the largest
/// number; a NaN is 0x7f.
template <class T>
__device__ inline unsigned pack_two(float low, float high);

/// A value's byte by integer arithmetic. `digits`: bits of the fraction.
template <int digits, int bias, unsigned largest>
__device__ inline unsigned narrow_bits(float x) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  if (magnitude > 0x7f800000) return 0x7f;
  constexpr int drop = 23 - digits, rebias = 127 - bias;
  unsigned narrow;
  if (magnitude < (unsigned(rebias + 1) << 23)) {  // subnormal: in units of the least number
    narrow = __float2uint_rn(__uint_as_float(magnitude) * __uint_as_float(unsigned(127 + bias - 1 + digits) << 23));
  } else {
    const unsigned rounded = magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1);
    narrow = min((rounded >> drop) - (unsigned(rebias) << digits), largest);
  }
  return sign | narrow;
}
template <>
__device__ inline unsigned pack_two<e4m3>(float low, float high) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return narrow_bits<3, 7, 0x7e>(low) | narrow_bits<3, 7, 0x7e>(high) << 8;
#endif
}
template <>
__device__ inline unsigned pack_two<e5m2>(float low, float high) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return narrow_bits<2, 15, 0x7b>(low) | narrow_bits<2, 15, 0x7b>(high) << 8;
#endif
}
template <>
__device__ inline unsigned pack_four<e4m3>(const float* value) {
  return pack_two<e4m3>(value[0], value[1]) | pack_two<e4m3>(value[2], value[3]) << 16;
}
template <>
__device__ inline unsigned pack_four<e5m2>(const float* value) {
  return pack_two<e5m2>(value[0], value[1]) | pack_two<e5m2>(value[2], value[3]) << 16;
}
template <>
__device__ inline e4m3 from_float<e4m3>(float x) {
  return {static_cast<unsigned char>(pack_two<e4m3>(x, 0))};
}
template <>
__device__ inline e5m2 from_float<e5m2>(float x) {
  return {static_cast<unsigned char>(pack_two<e5m2>(x, 0))};
}
