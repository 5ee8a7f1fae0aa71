#pragma once
// How results leave row by row, at any strides: one element, or a run of two to eight of a row.
//
//     out = f(alpha * acc + beta * C)
//
// f is the problem's own epilogue (gemm/fused.cuh); out and C are fp32, bf16 or fp16; out may be fp8, without C. C is
// never read where use_c is false (beta = 0).
//
//     store_element        one element                                      f02 to f05
//     store_run            a run of a row, in one access where rows allow   f06 to f12, h01 to h07, sum_parts
//     store_sixteen_rows   the accumulators of a warp's mma.sync            h08 to h11, t01 to t03; h12, h13 at edges

#include "gemm/args.cuh"
#include "ptx/global.cuh"
#include "ptx/number16.cuh"

/// The number of this block's matrix in out. With split_k, block z writes partial sum z after those of z - 1.
template <class Cfg>
__device__ inline unsigned out_entry() {
  return Cfg::split_k > 1 ? blockIdx.z * gridDim.y + blockIdx.y : blockIdx.y;
}

/// The start of this block's part of out.
template <class Cfg>
__device__ inline typename Cfg::out_type* out_base(const GemmArgs& args) {
  return static_cast<typename Cfg::out_type*>(args.out) + out_entry<Cfg>() * (long long)args.out_batch;
}
template <class Cfg>
__device__ inline const typename Cfg::out_type* c_base(const GemmArgs& args) {
  return static_cast<const typename Cfg::out_type*>(args.c) + blockIdx.y * args.c_batch;
}

/// The value of element (row, col) of the result, before it is rounded.
template <class Cfg>
__device__ inline float result_element(const GemmArgs& args, int row, int col, float acc) {
  float value[1] = {args.alpha * acc};
  if constexpr (Cfg::use_c) {
    const auto old = c_base<Cfg>(args)[offset_of<Cfg::out_unit>(row, col, args.c_row, args.c_col)];
    value[0] = fmaf(args.beta, to_float(old), value[0]);
  }
  fuse<false>(args.fused, row, col, value);
  return value[0];
}

template <class Cfg>
__device__ inline void store_element(const GemmArgs& args, int row, int col, float acc) {
  using Out = typename Cfg::out_type;
  if (Cfg::edge && (row >= args.m || col >= args.n)) return;
  const float value = result_element<Cfg>(args, row, col, acc);
  out_base<Cfg>(args)[offset_of<Cfg::out_unit>(row, col, args.out_row, args.out_col)] = from_float<Out>(value);
}

/// Four 16-bit elements of a row that may start anywhere, in words where they lie in words: an odd row pitch (4095)
/// puts every other row on an odd address, and single elements take six times the sectors.
template <class Out>
__device__ inline void store_four(Out* to, const float (&value)[4]) {
  if ((reinterpret_cast<unsigned long long>(to) & 2) == 0) {
    reinterpret_cast<unsigned*>(to)[0] = pack<Out>(value[0], value[1]);
    reinterpret_cast<unsigned*>(to)[1] = pack<Out>(value[2], value[3]);
  } else {
    to[0] = from_float<Out>(value[0]);
    *reinterpret_cast<unsigned*>(to + 1) = pack<Out>(value[1], value[2]);
    to[3] = from_float<Out>(value[3]);
  }
}

// What every run of four fp32 elements passes has no loops: around them the compiler multiplies to get at each row of a
// tile, where else it adds.

/// value = alpha * acc
template <class Out, int count>
__device__ inline void scale(float (&value)[count], const float (&acc)[count], float alpha) {
  if constexpr (sizeof(Out) == 4 && count == 4) {
    value[0] = alpha * acc[0], value[1] = alpha * acc[1], value[2] = alpha * acc[2], value[3] = alpha * acc[3];
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) value[i] = alpha * acc[i];
  }
}

/// Words of `count` values, and back.
template <class Out, int count, int words>
__device__ inline void pack_run(unsigned (&word)[words], const float (&value)[count]) {
  if constexpr (sizeof(Out) == 4 && words == 4) {
    word[0] = __float_as_uint(value[0]), word[1] = __float_as_uint(value[1]);
    word[2] = __float_as_uint(value[2]), word[3] = __float_as_uint(value[3]);
  } else {
#pragma unroll
    for (int i = 0; i < words; ++i) {
      if constexpr (sizeof(Out) == 4)
        word[i] = __float_as_uint(value[i]);
      else if constexpr (sizeof(Out) == 1)
        word[i] = pack_four<Out>(&value[4 * i]);
      else
        word[i] = pack<Out>(value[2 * i], value[2 * i + 1]);
    }
  }
}
template <class Out>
__device__ inline float unpack_one(const unsigned* word, int i) {
  if constexpr (sizeof(Out) == 4)
    return __uint_as_float(word[i]);
  else
    return half_of<Out>(word[i / 2], i % 2);
}

/// `count` consecutive elements of a row, 4, 8 or 16 bytes of them, in one access where rows allow it (vector_out: a
/// run is inside or outside as a whole then).
template <class Cfg, int count>
__device__ inline void store_run(const GemmArgs& args, int row, int col, const float (&acc)[count]) {
  using Out = typename Cfg::out_type;
  constexpr int words = count * int(sizeof(Out)) / 4;
  static_assert(words == 1 || words == 2 || words == 4, "4, 8 or 16 bytes");
  if constexpr (!Cfg::vector_out) {
    if constexpr (sizeof(Out) == 2 && count == 4 && Cfg::out_unit == unit_col) {
      if (row < args.m && col + 4 <= args.n) {
        float value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = result_element<Cfg>(args, row, col + i, acc[i]);
        store_four(out_base<Cfg>(args) + row * args.out_row + col, value);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) store_element<Cfg>(args, row, col + i, acc[i]);
  } else {
    if (Cfg::edge && (row >= args.m || col >= args.n)) return;
    float value[count];
    scale<Out>(value, acc, args.alpha);
    if constexpr (Cfg::use_c) {
      unsigned word[words];
      load_words(word, c_base<Cfg>(args) + row * args.c_row + col);
#pragma unroll
      for (int i = 0; i < count; ++i) value[i] = fmaf(args.beta, unpack_one<Out>(word, i), value[i]);
    }
    fuse<true>(args.fused, row, col, value);
    unsigned word[words];
    pack_run<Out>(word, value);
    store_words(out_base<Cfg>(args) + row * args.out_row + col, word);
  }
}

/// A warp's 16 rows from `row0` on, `pieces` pieces of 16 columns from `col0` on. fp32: a lane's two elements of a row;
/// four lanes fill a sector. 16 bits: lanes 2i and 2i + 1 swap halves of two neighbouring products first,
///
///     product j:  lanes  0   1   2   3        after:  0 0 2 2   of product j
///                 cols   01  23  45  67               1 1 3 3   of product j + 1
///
/// so that a lane holds four elements of a row, and four lanes fill a sector of 32 bytes.
template <class Cfg, int columns>
__device__ inline void store_sixteen_rows(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < columns / 2; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 8 * half + lane / 4, col = col0 + 16 * j;
      const float* left = value[2 * j] + 2 * half;
      const float* right = value[2 * j + 1] + 2 * half;
      if constexpr (sizeof(typename Cfg::out_type) == 4) {
        store_run<Cfg, 2>(args, row, col + lane % 4 * 2, {left[0], left[1]});
        store_run<Cfg, 2>(args, row, col + 8 + lane % 4 * 2, {right[0], right[1]});
      } else {
        const bool odd = lane % 2;
        const float first = __shfl_xor_sync(~0u, odd ? left[0] : right[0], 1);
        const float second = __shfl_xor_sync(~0u, odd ? left[1] : right[1], 1);
        const float four[4] = {odd ? first : left[0], odd ? second : left[1], odd ? right[0] : first,
                               odd ? right[1] : second};
        store_run<Cfg, 4>(args, row, col + 8 * odd + lane % 4 / 2 * 4, four);
      }
    }
}

/// A lane's two rows of such 16, and the number of columns from `col` on that are inside the result: at most `most`,
/// where that is less than 32.
__device__ inline int row_of_half(int row0, int half) { return row0 + 8 * half + threadIdx.x % 32 / 4; }
template <class Cfg>
__device__ inline int columns_left(const GemmArgs& args, int row, int col, int most = 32) {
  const int left = !Cfg::edge ? 32 : row < args.m ? args.n - col : 0;
  return most < 32 && left > most ? most : left;
}

/// store_sixteen_rows for a caller that asks before it stores: here nothing is read ahead. `most`: all columns, or 16.
template <class Cfg, int columns>
struct StoreSixteenRows {
  __device__ void read(const GemmArgs&, int, int, int most = 32) {}
  __device__ void store(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4], int most = 32) {
    if (most < 32)
      store_sixteen_rows<Cfg>(args, row0, col0, reinterpret_cast<const float (&)[2][4]>(value));
    else
      store_sixteen_rows<Cfg>(args, row0, col0, value);
  }
};
