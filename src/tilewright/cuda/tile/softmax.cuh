#pragma once
// Online softmax of a warp's rows, in fp32 and powers of 2. A row's elements lie in the four lanes of a quad
// (ptx/mma.cuh): of piece i, row half h is registers 2 h and 2 h + 1 of every product.
//
//     max     the largest score of the row so far, in the score's own units
//     sum     this lane's part of sum 2^((score - max) factor); the quad's parts are added at the end

#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

/// The largest value of the quad.
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// `fused`: scale and subtraction are one FFMA. Its error is up to 2^-24 of the maximum, so subtraction comes first
/// where a bias may put a row at -10^38. `lazy`: out and sums follow the maximum only when a row of the warp has
/// outgrown its old one by 2^8. Until then weights are up to 2^8, which fp32 sums and 16-bit weights hold as well; the
/// final division takes that out again. `may_hide`: a maximum can be -inf, which must not be subtracted. `apart`: a row
/// follows its own maximum only, so that its bits do not depend on what other rows the warp has.
template <int m, bool fused, bool lazy, bool may_hide, bool apart = false>
struct Softmax {
  float max[m][2], sum[m][2];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) max[i][half] = minus_infinity(), sum[i][half] = 0;
  }

  /// Scores become weights p, in pairs of T as the left operand of the next product takes them; out and sums follow the
  /// new maximum. `first`: there is nothing yet to follow it.
  template <class T, bool first, int n, int d>
  __device__ void update(const float (&s)[m][n][4], unsigned (&p)[n / 2][m][4], float (&out)[m][d][4], float factor) {
    float largest[m][2];
    bool grown = false;
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = first ? s[i][0][2 * half] : max[i][half];
#pragma unroll
        for (int j = 0; j < n; ++j) x = fmaxf(x, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
        largest[i][half] = quad_max(x);
        if constexpr (lazy && !first) {
          const bool own = (largest[i][half] - max[i][half]) * factor > 8.f;
          if (apart && !own) largest[i][half] = max[i][half];
          grown |= own;
        }
      }
    if constexpr (first) {
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) max[i][half] = largest[i][half], sum[i][half] = 0;
    } else if (!lazy || __any_sync(~0u, grown)) {
      follow(largest, out, factor);
    }
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float base = base_of(max[i][half]);
          float weight[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float x = s[i][j][2 * half + e];
            weight[e] = exp2_approx(fused ? fmaf(x, factor, -base * factor) : __fmul_rn(__fsub_rn(x, base), factor));
            sum[i][half] += weight[e];
          }
          p[j / 2][i][j % 2 * 2 + half] = pack<T>(weight[0], weight[1]);
        }
  }

  /// The sums of whole rows.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) sum[i][half] = quad_sum(sum[i][half]);
  }

 private:
  static __device__ float base_of(float max) { return may_hide && max == minus_infinity() ? 0.f : max; }

  template <int d>
  __device__ void follow(const float (&largest)[m][2], float (&out)[m][d][4], float factor) {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float keep = exp2_approx((max[i][half] - base_of(largest[i][half])) * factor);
        max[i][half] = largest[i][half];
        sum[i][half] *= keep;
#pragma unroll
        for (int j = 0; j < d; ++j) {
          out[i][j][2 * half] *= keep;
          out[i][j][2 * half + 1] *= keep;
        }
      }
  }
};
