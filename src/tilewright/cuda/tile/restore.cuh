#pragma once
// What ends a product of scaled halves (tile/halved.cuh): sums get their lines' exponents back, and those that halves
// cannot give are made again in fp64, from the operands themselves:
//
//     not finite        there are infinities or NaN: scaled numbers and their sums are far from overflow
//     close to zero     small elements of the row or the column have lost bits that may matter (HalvedLine::lost)
//
// A warp makes them together, one after the other: its lanes share k.

#include "tile/halved.cuh"

/// The exponents of a row and a column, applied. Twice, since the sum of both may be beyond those of fp32.
__device__ inline float scale_back(float value, int exponent) {
  exponent = max(exponent, -250);
  const int half = exponent / 2;
  return value * __uint_as_float((127 + half) << 23) * __uint_as_float((127 + exponent - half) << 23);
}

/// A warp's sums of 16 rows from `row0` on and 8 * columns columns from `col0` on.
template <class Cfg, int parts, int columns>
struct Restorer {
  const GemmArgs& args;
  Halved<parts> a, b;
  int row0, col0, entry_a, entry_b;

  __device__ Restorer(const GemmArgs& args, int row0, int col0)
      : args(args), a(args.a, args.m, args.k, Cfg::a_batched ? gridDim.y : 1),
        b(args.b, args.n, args.k, Cfg::b_batched ? gridDim.y : 1), row0(row0), col0(col0),
        entry_a(Cfg::a_batched ? blockIdx.y : 0), entry_b(Cfg::b_batched ? blockIdx.y : 0) {}

  __device__ static int row_of(int lane, int e) { return lane / 4 + e / 2 * 8; }
  __device__ static int col_of(int lane, int j, int e) { return 8 * j + lane % 4 * 2 + e % 2; }

  /// Every lane calls it.
  __device__ void restore(float (&value)[columns][4]) const {
    const int lane = threadIdx.x % 32;
    HalvedLine row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = row0 + row_of(lane, 2 * h);
      row[h] = at < args.m ? a.line(entry_a, at) : HalvedLine{0, 0};
    }
    bool again = false;
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = col0 + col_of(lane, j, c);
        const HalvedLine col = at < args.n ? b.line(entry_b, at) : HalvedLine{0, 0};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float& x = value[j][2 * h + c];
          const float size = fabsf(x);
          if (size <= 0x1.fffffep127f && size >= row[h].lost + col.lost)
            x = scale_back(x, row[h].exponent + col.exponent);
          else
            x = __uint_as_float(0x7fffffff), again = true;
        }
      }
    if (__any_sync(~0u, again)) mend(value);
  }

 private:
  /// Makes those again that are NaN now.
  __device__ void mend(float (&value)[columns][4]) const {
    const int lane = threadIdx.x % 32;
    const HalvedOrigin &of_a = a.origin(), &of_b = b.origin();
    for (int done = -1;;) {  // of this lane: numbers up to it
      int next = 4 * columns;
#pragma unroll
      for (int i = 4 * columns - 1; i >= 0; --i)
        if (i > done && value[i / 4][i % 4] != value[i / 4][i % 4] && exists(lane, i)) next = i;
      const unsigned waiting = __ballot_sync(~0u, next < 4 * columns);
      if (waiting == 0) return;
      const int whose = __ffs(waiting) - 1, which = __shfl_sync(~0u, next, whose);
      const float* left = of_a.base + entry_a * of_a.batch_stride + (row0 + row_of(whose, which % 4)) * of_a.stride;
      const float* right =
          of_b.base + entry_b * of_b.batch_stride + (col0 + col_of(whose, which / 4, which % 4)) * of_b.stride;
      double sum = 0;
#pragma unroll 4
      for (int k = lane; k < args.k; k += 32) sum += double(left[k * of_a.k_stride]) * double(right[k * of_b.k_stride]);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane != whose) continue;
      done = which;
#pragma unroll
      for (int i = 0; i < 4 * columns; ++i)
        if (i == which) value[i / 4][i % 4] = float(sum);
    }
  }

  __device__ bool exists(int lane, int i) const {
    return !Cfg::edge || (row0 + row_of(lane, i % 4) < args.m && col0 + col_of(lane, i / 4, i % 4) < args.n);
  }
};
