#pragma once
// out = alpha * acc + beta * C, then the problem's own epilogue (gemm/fused.cuh). With use_c false (beta = 0) C is never
// read: NaN in it cannot leak.

#include "gemm/args.cuh"

/// Where this block's part of out begins. Of `parts` partial sums block z writes number z, each behind the one before.
template <int parts>
__device__ inline float* out_base(const GemmArgs& args) {
  const long long index = parts > 1 ? blockIdx.z * (long long)gridDim.y + blockIdx.y : blockIdx.y;
  return static_cast<float*>(args.out) + index * args.out_batch;
}

/// One element.
template <class Cfg, int parts = 1>
__device__ inline void store_element(const GemmArgs& args, int row, int col, float acc) {
  if (Cfg::edge && (row >= args.m || col >= args.n)) return;
  float value[1] = {args.alpha * acc};
  if constexpr (Cfg::use_c) {
    const float* c = static_cast<const float*>(args.c) + blockIdx.y * args.c_batch;
    value[0] = fmaf(args.beta, c[offset_of<Cfg::out_unit>(row, col, args.c_row, args.c_col)], value[0]);
  }
  fuse<false>(args.fused, row, col, value);
  float* out = out_base<parts>(args);
  out[offset_of<Cfg::out_unit>(row, col, args.out_row, args.out_col)] = value[0];
}

/// Four elements of a row, in one 128-bit access where rows allow it: a vector is inside or outside as a whole then.
template <class Cfg, int parts = 1>
__device__ inline void store_vector(const GemmArgs& args, int row, int col, const float* acc) {
  if constexpr (!Cfg::vector_out) {
#pragma unroll
    for (int j = 0; j < 4; ++j) store_element<Cfg, parts>(args, row, col + j, acc[j]);
  } else {
    if (Cfg::edge && (row >= args.m || col >= args.n)) return;
    float4 value = make_float4(args.alpha * acc[0], args.alpha * acc[1], args.alpha * acc[2], args.alpha * acc[3]);
    if constexpr (Cfg::use_c) {
      const float* c = static_cast<const float*>(args.c) + blockIdx.y * args.c_batch;
      const float4 old = *reinterpret_cast<const float4*>(c + row * args.c_row + col);
      value.x = fmaf(args.beta, old.x, value.x), value.y = fmaf(args.beta, old.y, value.y);
      value.z = fmaf(args.beta, old.z, value.z), value.w = fmaf(args.beta, old.w, value.w);
    }
    fuse<true>(args.fused, row, col, *reinterpret_cast<float(*)[4]>(&value));
    float* out = out_base<parts>(args);
    *reinterpret_cast<float4*>(out + row * args.out_row + col) = value;
  }
}

/// The accumulators of a warp-tiled kernel (tile/simt.cuh).
template <class Cfg, int parts = 1, class Tiling, int rows, int cols>
__device__ inline void store_warp_tile(const GemmArgs& args, int row0, int col0, const Tiling& at,
                                       const float (&acc)[rows][cols]) {
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = row0 + at.row(i / Cfg::thread_m) + i % Cfg::thread_m;
    if constexpr (Cfg::thread_n % 4 == 0) {
#pragma unroll
      for (int j = 0; j < cols; j += 4)
        store_vector<Cfg, parts>(args, row, col0 + at.col(j / Cfg::thread_n) + j % Cfg::thread_n, &acc[i][j]);
    } else {
#pragma unroll
      for (int j = 0; j < cols; ++j)
        store_element<Cfg, parts>(args, row, col0 + at.col(j / Cfg::thread_n) + j % Cfg::thread_n, acc[i][j]);
    }
  }
}
