#pragma once
// out = alpha * acc + beta * C, then the problem's own epilogue (gemm/fused.cuh), out and C in fp32, bf16 or fp16. With
// use_c false (beta = 0) C is never read.

#include "ptx/number16.cuh"
#include "tile/fuse.cuh"
#include "tile/select.cuh"

/// Where this block's part of out begins. With split_k, block z writes partial sum z behind all of z - 1's.
template <class Cfg>
__device__ inline typename Cfg::out_type* out_base(const GemmArgs& args) {
  const long long index = Cfg::split_k > 1 ? blockIdx.z * (long long)gridDim.y + blockIdx.y : blockIdx.y;
  return static_cast<typename Cfg::out_type*>(args.out) + index * args.out_batch;
}
template <class Cfg>
__device__ inline const typename Cfg::out_type* c_base(const GemmArgs& args) {
  return static_cast<const typename Cfg::out_type*>(args.c) + blockIdx.y * args.c_batch;
}

/// What goes to (row, col), an element of the result.
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

/// Four 16-bit elements of a row that may start anywhere, in words where they lie in words: an odd row pitch (4095) puts
/// every other row on an odd address, and single elements take six times the sectors.
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

/// `count` consecutive elements of a row, 8 or 16 bytes of them, in one access where rows allow it (vector_out: a run
/// is inside or outside as a whole then).
template <class Cfg, int count>
__device__ inline void store_run(const GemmArgs& args, int row, int col, const float (&acc)[count]) {
  using Out = typename Cfg::out_type;
  constexpr int words = count * int(sizeof(Out)) / 4;
  static_assert(words == 2 || words == 4, "8 or 16 bytes");
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
    using Word = typename Select<words == 4, uint4, uint2>::type;
    float value[count];
    scale<Out>(value, acc, args.alpha);
    if constexpr (Cfg::use_c) {
      const Word old = *reinterpret_cast<const Word*>(c_base<Cfg>(args) + row * args.c_row + col);
      unsigned word[words];
      word[0] = old.x, word[1] = old.y;
      if constexpr (words == 4) word[2] = old.z, word[3] = old.w;
#pragma unroll
      for (int i = 0; i < count; ++i) value[i] = fmaf(args.beta, unpack_one<Out>(word, i), value[i]);
    }
    fuse<true>(args.fused, row, col, value);
    unsigned word[words];
    pack_run<Out>(word, value);
    Word* to = reinterpret_cast<Word*>(out_base<Cfg>(args) + row * args.out_row + col);
    if constexpr (words == 4)
      *to = make_uint4(word[0], word[1], word[2], word[3]);
    else
      *to = make_uint2(word[0], word[1]);
  }
}
