#pragma once
// The parameters of every GEMM kernel, by value. ladder/rung.py packs the same struct.

#include "gemm/fused.cuh"

// Which index of a matrix walks memory one element at a time (Matrix.unit in problems.py).
constexpr int unit_none = 0, unit_col = 1, unit_row = 2;

struct GemmArgs {
  const void *a, *b, *c;
  void* out;
  long long a_batch, b_batch, c_batch, out_batch;  // strides in elements, all of them
  long long a_row, a_col, b_row, b_col, c_row, c_col, out_row, out_col;
  int m, n, k;
  float alpha, beta;
  FusedArgs fused;  // of an epilogue; without one it is empty, in what padding there is
};

/// The element offset of (row, col); a unit stride known at compile time costs no multiplication.
template <int unit>
__device__ inline long long offset_of(int row, int col, long long row_stride, long long col_stride) {
  if constexpr (unit == unit_col) return row * row_stride + col;
  if constexpr (unit == unit_row) return row + col * col_stride;
  return row * row_stride + col * col_stride;
}
