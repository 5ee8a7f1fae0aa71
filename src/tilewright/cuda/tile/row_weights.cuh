#pragma once
// Online softmax of the two rows of a thread (tile/softmax.cuh does it for mma.sync), in steps between which products
// run: raise the maxima, weigh the scores, and let out follow when no product writes it.
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

  /// Takes the scores into the maxima. A row follows its own that has outgrown the old by
  /// 2^8. True where one of the warp did: out must follow.
  template <bool first, int n>
  __device__ bool raise(const float (&s)[n][4], float factor) {
    float largest[2];
    bool grown[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = first ? s[0][2 * half] : max[half];
#pragma unroll
      for (int j = 0; j < n; ++j) x = fmaxf(x, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
      largest[half] = quad_max(x);
      grown[half] = (largest[half] - max[half]) * factor > 8.f;
    }
    if constexpr (first) {
#pragma unroll
      for (int half = 0; half < 2; ++half) max[half] = largest[half];
      return false;
    }
    const bool any = __any_sync(~0u, grown[0] || grown[1]);
    if (any) {
#pragma unroll
      for (int half = 0; half < 2; ++half) raise_row(half, grown[half], largest[half], factor);
    }
    return any;
  }

  /// Scores become weights, in place.
  template <int n>
  __device__ void weigh(float (&s)[n][4], float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = base(max[half]), scaled = -from * factor;
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s[j][e] = weight_of(s[j][e], factor, from, scaled);
          sum[half] += s[j][e];
        }
    }
  }

  /// Weights by the maxima of the tiles before, in pairs of T as the left operand of the next product takes them: no
  /// score is compared. Weights up to 2^12 are as good as others. Where one is larger, or a row had no key before, the
  /// maxima are raised and the weights made anew; then the result is true, and out must follow.
  template <class T, int n>
  __device__ bool weigh_by_old(const float (&s)[n][4], unsigned (&p)[n / 2][4], float factor) {
    constexpr float largest = 4096.f;
    float added[2];
    pack_weights<T>(s, p, added, factor);
    bool wrong[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      wrong[half] = !(added[half] <= largest);  // so is NaN
      if constexpr (may_hide) wrong[half] |= max[half] == minus_infinity();
    }
    const bool any = __any_sync(~0u, wrong[0] || wrong[1]);
    if (any) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned quad = __ballot_sync(~0u, wrong[half]) >> (threadIdx.x % 32 & ~3) & 15;
        float x = max[half];
#pragma unroll
        for (int j = 0; j < n; ++j) x = fmaxf(x, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
        raise_row(half, quad != 0, quad_max(x), factor);
      }
      pack_weights<T>(s, p, added, factor);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) sum[half] += added[half];
    return any;
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
  /// A row's maximum becomes `largest` if it is to, and its sum follows. Each row by itself: its bits then do not
  /// depend on what else is in the tile.
  __device__ void raise_row(int half, bool raised, float largest, float factor) {
    keep[half] = raised ? exp2_approx((max[half] - base(largest)) * factor) : 1.f;
    if (raised) max[half] = largest;
    sum[half] *= keep[half];
  }

  template <class T, int n>
  __device__ void pack_weights(const float (&s)[n][4], unsigned (&p)[n / 2][4], float (&added)[2], float factor) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float from = base(max[half]), scaled = -from * factor;
      added[half] = 0;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float weight[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          weight[e] = weight_of(s[j][2 * half + e], factor, from, scaled);
          added[half] += weight[e];
        }
        p[j / 2][j % 2 * 2 + half] = pack<T>(weight[0], weight[1]);
      }
    }
  }

  static __device__ float weight_of(float score, float factor, float from, float scaled) {
    return exp2_approx(fused ? fmaf(score, factor, scaled) : __fmul_rn(__fsub_rn(score, from), factor));
  }
  static __device__ float base(float max) { return may_hide && max == minus_infinity() ? 0.f : max; }
};
