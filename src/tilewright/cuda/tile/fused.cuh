#pragma once
// How a fused epilogue reads its operands. Each lies over the result like an array broadcast to its shape: element
// (row, col) of product blockIdx.y, at any strides, 0 among them.

#include "ptx/number16.cuh"

struct FusedOperand {
  const void* base;
  long long batch, row, col;  // strides in elements
};

// How an operand goes along a row of the result: not at all, one element at a time, or by its stride.
constexpr int fused_same = 0, fused_unit = 1, fused_strided = 2;

/// `words` 32-bit words. `cached`: nobody writes them while the kernel runs, so loads may pass stores and merge.
template <bool cached, int words>
__device__ inline void read_words(unsigned* to, const void* from) {
  if constexpr (words == 1) {
    const auto* word = static_cast<const unsigned*>(from);
    to[0] = cached ? __ldg(word) : *word;
  } else if constexpr (words == 2) {
    const auto* word = static_cast<const uint2*>(from);
    const uint2 v = cached ? __ldg(word) : *word;
    to[0] = v.x, to[1] = v.y;
  } else {
    static_assert(words % 4 == 0, "whole 16-byte accesses");
#pragma unroll
    for (int i = 0; i < words; i += 4) {
      const auto* word = static_cast<const uint4*>(from) + i / 4;
      const uint4 v = cached ? __ldg(word) : *word;
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
  }
}

template <bool cached>
__device__ inline float read_one(const float* from) {
  return cached ? __ldg(from) : *from;
}
template <bool cached, class T>
__device__ inline float read_one(const T* from) {
  return to_float(T{cached ? __ldg(&from->bits) : from->bits});
}

/// `count` elements from (row, col) on, widened. `by_row`: whether rows differ. `vectors`: lines start at 16-byte
/// boundaries and the run is inside the result.
template <class T, bool by_row, int by_col, bool vectors, bool cached, int count>
__device__ inline void read_fused(float (&to)[count], const FusedOperand& operand, int row, int col) {
  const T* from = static_cast<const T*>(operand.base) + blockIdx.y * operand.batch;
  if constexpr (by_row) from += row * operand.row;
  if constexpr (by_col == fused_same) {
    const float value = read_one<cached>(from);
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = value;
  } else if constexpr (vectors && count * sizeof(T) % 4 == 0) {
    constexpr int words = count * int(sizeof(T)) / 4;
    unsigned word[words];
    read_words<cached, words>(word, from + col);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if constexpr (sizeof(T) == 4)
        to[i] = __uint_as_float(word[i]);
      else
        to[i] = half_of<T>(word[i / 2], i % 2);
    }
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i)
      to[i] = read_one<cached>(from + (by_col == fused_unit ? col + i : (col + i) * operand.col));
  }
}

/// Asks L2 for a tile of an operand whose rows lie contiguous: by the time the products are done, its reads need not
/// wait for memory. Only a hint; addresses are those of elements, so nothing outside the operand is touched.
template <class Cfg, class T>
__device__ inline void fetch_tile(const FusedOperand& operand, int row0, int col0, int m, int n) {
  constexpr int step = 128 / int(sizeof(T)), lines = (Cfg::tile_n + step - 1) / step;  // of a row
  const T* from = static_cast<const T*>(operand.base) + blockIdx.y * operand.batch;
#pragma unroll 1
  for (int i = threadIdx.x; i < Cfg::tile_m * lines; i += Cfg::threads) {
    const int row = row0 + i / lines, col = col0 + i % lines * step;
    if (row < m && col < n) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + row * operand.row + col));
  }
}

/// An index of the result as an operand: `base` is where it starts, the strides are its steps.
__device__ inline long long read_index(const FusedOperand& operand, int row, int col) {
  return reinterpret_cast<long long>(operand.base) + blockIdx.y * operand.batch + row * operand.row + col * operand.col;
}
