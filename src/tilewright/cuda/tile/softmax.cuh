#pragma once
// Online softmax of a warp's rows, in fp32 and powers of 2. A row's elements lie in the four lanes of a quad
// (ptx/mma.cuh): of piece i, row half h is registers 2 h and 2 h + 1 of every product.
//
//     max     the largest score of the row so far, in the score's own units
//     sum     this lane's part of sum 2^((score - max) factor); the quad's parts are added at the end

#include "ptx/ex2.cuh"

/// The largest value of the quad.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// `fused`: scale and subtraction in one FFMA. `may_hide`: a row's maximum can be -inf; it must not be subtracted then.
template <int m, bool fused, bool may_hide>
struct Softmax {
  float max[m][2], sum[m][2];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) max[i][half] = minus_infinity(), sum[i][half] = 0;
  }

  /// Scores become weights; out and sums follow the new maximum. `first`: there is nothing yet to follow it.
  template <bool first, int n, int d>
  __device__ void update(float (&s)[m][n][4], float (&out)[m][d][4], float factor) {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = first ? s[i][0][2 * half] : max[i][half];
#pragma unroll
        for (int j = 0; j < n; ++j) largest = fmaxf(largest, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
        largest = quad_max(largest);
        const float base = may_hide && largest == minus_infinity() ? 0.f : largest;
        if constexpr (!first) {
          const float keep = exp2_approx((max[i][half] - base) * factor);
          sum[i][half] *= keep;
#pragma unroll
          for (int j = 0; j < d; ++j) {
            out[i][j][2 * half] *= keep;
            out[i][j][2 * half + 1] *= keep;
          }
        }
        max[i][half] = largest;
        const float offset = -base * factor;
        float added = first ? 0.f : sum[i][half];
#pragma unroll
        for (int j = 0; j < n; ++j)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[i][j][e] = exp2_approx(fused ? fmaf(s[i][j][e], factor, offset)
                                           : __fmul_rn(__fsub_rn(s[i][j][e], base), factor));
            added += s[i][j][e];
          }
        sum[i][half] = added;
      }
  }

  /// The sums of whole rows.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[i][half] = quad_sum(sum[i][half]);
  }
};
