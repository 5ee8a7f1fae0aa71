#pragma once
// Online softmax of the two rows of a thread (tile/softmax.cuh does it for mma.sync), in steps between which products
// run: raise the maxima, weigh the scores in place, and let out follow when no product writes it.
//
//     max     the largest score of the row so far, in the score's own units
//     sum     this lane's part of sum 2^((score - max) factor); the quad's parts are added at the end
//     keep    what out and sum of the rows before are multiplied with

#include "tile/softmax.cuh"

/// `fused`, `may_hide`: as Softmax has them.
template <bool fused, bool may_hide>
struct RowWeights {
  float max[2], sum[2], keep[2];

  __device__ void clear() {
#pragma unroll
    for (int half = 0; half < 2; ++half) max[half] = minus_infinity(), sum[half] = 0;
  }

  /// Takes the scores into the maxima. True where out must follow: a row of the warp has outgrown its maximum by 2^8.
  template <bool first, int n>
  __device__ bool raise(const float (&s)[n][4], float factor) {
    float largest[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = first ? s[0][2 * half] : max[half];
#pragma unroll
      for (int j = 0; j < n; ++j) x = fmaxf(x, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
      largest[half] = quad_max(x);
      grown |= (largest[half] - max[half]) * factor > 8.f;
    }
    if constexpr (first) {
#pragma unroll
      for (int half = 0; half < 2; ++half) max[half] = largest[half];
      return false;
    }
    grown = __any_sync(~0u, grown);
    if (grown) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        keep[half] = exp2_approx((max[half] - base(largest[half])) * factor);
        max[half] = largest[half];
        sum[half] *= keep[half];
      }
    }
    return grown;
  }

  /// Scores become weights.
  template <int n>
  __device__ void weigh(float (&s)[n][4], float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = base(max[half]), scaled = -from * factor;
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float x = fused ? fmaf(s[j][e], factor, scaled) : __fmul_rn(__fsub_rn(s[j][e], from), factor);
          s[j][e] = exp2_approx(x);
          sum[half] += s[j][e];
        }
    }
  }

  template <int d>
  __device__ void follow(float (&out)[d][4]) const {
#pragma unroll
    for (int j = 0; j < d; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] *= keep[e / 2];
  }

  /// The sums of whole rows.
  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] = quad_sum(sum[half]);
  }

 private:
  static __device__ float base(float max) { return may_hide && max == minus_infinity() ? 0.f : max; }
};
