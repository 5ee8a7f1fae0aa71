#pragma once
// Results that products of parts cannot give are made again by a plain fp32 product: fmaf along k, from global memory.
//
//     not finite        infinity minus its own part is NaN, and a sum may overflow in one order and not in another
//     close to zero     parts of numbers below 2^-100, and products below 2^-126, lose bits or vanish: an error of at
//                       most 2^-125 (|a| + |b| + 1) a product, which matters only to results that are small themselves

#include "tile/format32.cuh"

/// An fp32 operand, by rows of A or columns of B: element k of line i is base[i * stride + k * k_stride].
struct Lines {
  const float* base;
  long long stride, k_stride;
};

/// Joins the values of all threads of a block to one. `scratch`: a float per warp. Every thread must call it, with a
/// barrier between two calls.
template <int warps, class Join>
__device__ inline float join_block(float value, float* scratch, Join join) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value = join(value, __shfl_xor_sync(~0u, value, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
#pragma unroll
  for (int warp = 1; warp < warps; ++warp) value = join(value, scratch[warp]);
  return value;
}

/// Calls visit(i, j, e) for the elements of the warp's tile that exist.
template <class Cfg, class Visit>
__device__ inline void each_element(const GemmArgs& args, int i, int row, int col, Visit visit) {
#pragma unroll
  for (int j = 0; j < 2 * MmaTiling<Cfg>::cols; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (!Cfg::edge || (row + 16 * i + e / 2 * 8 < args.m && col + 8 * j + e % 2 < args.n)) visit(j, e);
}

/// The magnitude below which results are made again, 0 for none. `most_a`, `most_b`: the largest magnitudes of the
/// block's operands. `least()` gives their least magnitudes that are not 0; it is called only where a result is so
/// small that it may matter. Every thread of the block must call it.
template <class Cfg, class Least>
__device__ inline float least_trusted(const GemmArgs& args, const Accumulators<Cfg>& acc, int row0, int col0,
                                      float most_a, float most_b, Least least) {
  const float trusted = 0x1p-101f * args.k * (most_a + most_b + 1);
  const int lane = threadIdx.x % 32;
  bool small = false;
#pragma unroll
  for (int i = 0; i < MmaTiling<Cfg>::rows; ++i)
    each_element<Cfg>(args, i, row0 + lane / 4, col0 + lane % 4 * 2,
                      [&](int j, int e) { small |= fabsf(acc.value[i][j][e]) < trusted; });
  if (!__syncthreads_or(small)) return 0;
  const float2 of = least();
  constexpr float tiny = 0x1p-100f;
  return of.x >= tiny && of.y >= tiny && of.x * of.y >= tiny ? 0 : trusted;
}

/// Makes those results again. (row0, col0): the warp's first element of the result. `a`, `b`: A's rows and B's columns.
template <class Cfg>
__device__ inline void mend(const GemmArgs& args, Accumulators<Cfg>& acc, int row0, int col0, float trusted,
                            const Lines& a, const Lines& b) {
  constexpr int cols = 2 * MmaTiling<Cfg>::cols;
  static_assert(4 * cols <= 32, "a bit an element");
  const int lane = threadIdx.x % 32, row = row0 + lane / 4, col = col0 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < MmaTiling<Cfg>::rows; ++i) {
    unsigned again = 0;
    each_element<Cfg>(args, i, row, col, [&](int j, int e) {
      const float size = fabsf(acc.value[i][j][e]);
      if (!(size <= 0x1.fffffep127f && size >= trusted)) again |= 1u << (4 * j + e);
    });
    while (again) {
      const int at = __ffs(again) - 1;
      again &= again - 1;
      const float* left = a.base + (row + 16 * i + at % 4 / 2 * 8) * a.stride;
      const float* right = b.base + (col + at / 4 * 8 + at % 2) * b.stride;
      float sum = 0;
      for (int k = 0; k < args.k; ++k) sum = fmaf(left[k * a.k_stride], right[k * b.k_stride], sum);
#pragma unroll
      for (int j = 0; j < cols; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (4 * j + e == at) acc.value[i][j][e] = sum;
    }
  }
}
