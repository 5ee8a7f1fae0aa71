#pragma once
// How a fused epilogue reads its operands. Each lies over the result like an array broadcast to its shape: element
// (row, col) of product blockIdx.y, at any strides, 0 among them.

#include "ptx/global.cuh"
#include "ptx/number16.cuh"

struct FusedOperand {
  const void* base;
  long long batch, row, col;  // strides in elements
};

// How an operand goes along a row of the result: not at all, one element at a time, or by its stride.
constexpr int fused_same = 0, fused_unit = 1, fused_strided = 2;

/// `words` 32-bit words. `cached`: nobody writes them while the kernel runs, so loads may pass stores and merge.
template <bool cached, int words>
__device__ inline void read_words(unsigned (&to)[words], const void* from) {
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
      unsigned (&four)[4] = reinterpret_cast<unsigned (&)[4]>(to[i]);
      const uint4* at = static_cast<const uint4*>(from) + i / 4;
      if constexpr (cached) {
        const uint4 v = __ldg(at);
        four[0] = v.x, four[1] = v.y, four[2] = v.z, four[3] = v.w;
      } else {
        load_global_16(four, at);
      }
    }
  }
}

template <bool cached>
__device__ inline float read_one(const float* from) {
  return cached ? __ldg(from) : *from;
}
template <bool cached, class T>
__device__ inline T read_one(const T* from) {
  return {cached ? __ldg(&from->bits) : from->bits};
}

// An Order says which elements of a row a lane has: element i is column col + first() + along(i). It is inside the
// result where inside(i, left) says so, `left` columns from col on being inside. A `shuffled` one can have its 16-bit
// words from the lanes of its quad: transpose() (tile/store_by_quad.cuh).

/// `count` elements side by side, all of them inside.
template <int count_>
struct InLine {
  static constexpr int count = count_;
  static constexpr bool shuffled = false;
  static __device__ int first() { return 0; }
  static constexpr __device__ int along(int i) { return i; }
  static __device__ bool inside(int, int) { return true; }
};

/// A lane's elements of an operand as they were read. Reading is apart from use, so that a kernel may ask long before:
/// read(), then once, by whole warps, settle(), then [i], widened. `by_row`: whether rows differ. `vectors`: lines
/// start at 16-byte boundaries, and eight columns are inside the result or outside as one.
template <class T, bool by_row, int by_col, bool vectors, bool cached, class Order>
struct FusedRun {
  static constexpr int count = Order::count;
  static constexpr bool in_words = by_col == fused_unit && vectors && count * sizeof(T) % 4 == 0;
  static constexpr bool moved = Order::shuffled && in_words && by_row && sizeof(T) == 2;  // read as neighbours lie
  static constexpr int words = in_words ? count * int(sizeof(T)) / 4 : 0;
  static constexpr int elements = in_words ? 0 : by_col == fused_same ? 1 : count;
  static constexpr int registers = by_row ? words + elements : (words + elements + 1) / 2;  // two rows share them

  unsigned word[words ? words : 1];
  T element[elements ? elements : 1];

  /// Elements outside are 0: otherwise the registers of an earlier run would have to be kept for them.
  __device__ void read(const FusedOperand& operand, int row, int col, int left) {
    const T* from = static_cast<const T*>(operand.base) + blockIdx.y * operand.batch;
    if constexpr (by_row) from += row * operand.row;
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = 0;
#pragma unroll
    for (int i = 0; i < elements; ++i) element[i] = {};
    if constexpr (by_col == fused_same) {
      if (Order::inside(0, left)) element[0] = read_one<cached>(from);
    } else if constexpr (moved) {
      const int first = threadIdx.x % 4 * 8;
      if (first < left) read_words<cached>(word, from + col + first);
    } else if constexpr (in_words && Order::shuffled) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (Order::inside(2 * j, left))
          read_words<cached>(reinterpret_cast<unsigned (&)[words / 4]>(word[j * (words / 4)]),
                             from + col + Order::first() + Order::along(2 * j));
    } else if constexpr (in_words) {
      if (Order::inside(0, left)) read_words<cached>(word, from + col + Order::first());
    } else {
#pragma unroll
      for (int i = 0; i < elements; ++i) {
        const int at = col + Order::first() + Order::along(i);
        if (Order::inside(i, left))
          element[i] = read_one<cached>(from + (by_col == fused_unit ? at : at * operand.col));
      }
    }
  }

  __device__ void settle() {
    if constexpr (moved) Order::transpose(word);
  }

  __device__ float operator[](int i) const {
    if constexpr (!in_words)
      return to_float(element[by_col == fused_same ? 0 : i]);
    else if constexpr (sizeof(T) == 4)
      return __uint_as_float(word[i]);
    else
      return half_of<T>(word[i / 2], i % 2);
  }
};

/// Asks L2 for a tile of an operand whose rows lie contiguous: by the time the products are done, its reads need not
/// wait for memory. Only a hint; addresses are those of elements, so nothing outside the operand is touched. Where
/// `now` is false nothing is asked for. With `branches` it is a loop, since f12's products lost 7% to the registers of
/// straight code. Without, predicates decide: it stands between wgmma's products, which were measured so.
template <class Cfg, class T, bool branches>
__device__ inline void fetch_tile(const FusedOperand& operand, int row0, int col0, int m, int n, bool now) {
  constexpr int step = 128 / int(sizeof(T)), lines = (Cfg::tile_n + step - 1) / step;  // of a row
  const T* from = static_cast<const T*>(operand.base) + blockIdx.y * operand.batch;
  if constexpr (branches) {
#pragma unroll 1
    for (int i = threadIdx.x; i < Cfg::tile_m * lines; i += Cfg::threads) {
      const int row = row0 + i / lines, col = col0 + i % lines * step;
      if (row < m && col < n) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + row * operand.row + col));
    }
  } else {
#pragma unroll
    for (int i = 0; i < Cfg::tile_m * lines; i += Cfg::threads) {
      const int line = i + threadIdx.x, row = row0 + line / lines, col = col0 + line % lines * step;
      const bool fetch = now && line < Cfg::tile_m * lines && row < m && col < n;
      asm volatile(
          "{.reg .pred p; setp.ne.u32 p, %1, 0; @p prefetch.global.L2 [%0];}" ::"l"(from + row * operand.row + col),
          "r"(unsigned(fetch)));
    }
  }
}

/// An index of the result as an operand: `base` is where it starts, the strides are its steps.
__device__ inline long long read_index(const FusedOperand& operand, int row, int col) {
  return reinterpret_cast<long long>(operand.base) + blockIdx.y * operand.batch + row * operand.row + col * operand.col;
}

struct FusedArgs;
template <bool vectors, class Order>
struct FusedReads;

/// Reads and applies at once (gemm/fused.cuh).
template <bool vectors, int count>
__device__ inline void fuse(const FusedArgs& args, int row, int col, float (&value)[count]) {
  FusedReads<vectors, InLine<count>> reads;
  reads.read(args, row, col, count);
  reads.apply(args, value);
}
