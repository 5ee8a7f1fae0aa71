#pragma once
// Neighbours in memory as floats: `count` numbers, by accesses of 16 bytes where these are allowed.
#include "ptx/number16.cuh"

/// The numbers from `from` on; those after the first `left` are 0. `wide`: 16 bytes can be read where count are left.
template <bool wide, class T, int count>
__device__ inline void read_run(const T* from, int left, float (&value)[count]) {
  constexpr int each = 16 / sizeof(T);
  if constexpr (wide) {
    static_assert(count % each == 0, "whole accesses");
    if (left >= count) {
#pragma unroll
      for (int first = 0; first < count; first += each) {
        const uint4 four = *reinterpret_cast<const uint4*>(from + first);
        const unsigned word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < each; ++i) {
          if constexpr (each == 4)
            value[first + i] = __uint_as_float(word[i]);
          else
            value[first + i] = half_of<T>(word[i / 2], i % 2);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) value[i] = i < left ? to_float(from[i]) : 0.f;
}

/// Writes the first `left` of them, rounded to nearest even.
template <bool wide, class T, int count>
__device__ inline void write_run(T* to, int left, const float (&value)[count]) {
  constexpr int each = 16 / sizeof(T);
  if constexpr (wide) {
    static_assert(count % each == 0, "whole accesses");
    if (left >= count) {
#pragma unroll
      for (int first = 0; first < count; first += each) {
        unsigned word[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (each == 4)
            word[w] = __float_as_uint(value[first + w]);
          else
            word[w] = pack<T>(value[first + 2 * w], value[first + 2 * w + 1]);
        }
        *reinterpret_cast<uint4*>(to + first) = make_uint4(word[0], word[1], word[2], word[3]);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i)
    if (i < left) to[i] = from_float<T>(value[i]);
}
