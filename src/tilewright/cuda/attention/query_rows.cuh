#pragma once
// What the gradients need of each query: two floats per row, or four where Cfg::wide.
//
//     stats[0]    the LSE, in powers of 2 where scores are scaled within the exponent (Cfg::plain); +inf for a row that
//                 sees no key or does not exist, whose weights are then all 0
//     stats[1]    sum(grad * out) - grad_lse: what the softmax takes from every gradient of a weight
//     stats[2]    what e^(score - LSE) is multiplied with to be a weight, Cfg::wide. It is 1 but where the LSE is so
//                 large that its last digits are lost: where a mask of large negative numbers hides every key of a row
//     stats[3]    0, Cfg::wide: those who read take four at once

#include "attention/backward_args.cuh"
#include "attention/backward_pairs.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

/// Makes them for rows of query head `head`, by the `threads` threads of a block.
template <class Cfg, class Place, int threads>
struct QueryRows {
  using T = typename Cfg::in_type;
  static constexpr int chunks = Cfg::d_there / 8, stat_floats = Cfg::wide ? 4 : 2;
  static constexpr int v_chunks = Cfg::d_v / 8, lanes = v_chunks <= 4    ? 4
                                                        : v_chunks <= 8  ? 8
                                                        : v_chunks <= 16 ? 16
                                                                         : 32;
  static constexpr float large = 16384;  // |LSE| from here on is off by 2^-11 and more

  const BackwardArgs& args;
  const Place& place;
  const int head;

  static __device__ float sum(const uint4& a, const uint4& b, float before) {
    const unsigned x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) before = fmaf(half_of<T>(x[i / 2], i % 2), half_of<T>(y[i / 2], i % 2), before);
    return before;
  }
  static __device__ uint4 load(const unsigned short* from) { return *reinterpret_cast<const uint4*>(from); }
  __device__ const unsigned short* row_of(const void* base, const long long (&at)[3], int row) const {
    return static_cast<const unsigned short*>(base) + place.at_q(at, head) + row * at[2];
  }
  __device__ float lse_of(int row) const {
    return row < place.seq_q ? args.lse[place.at_q(args.lse_at, head) + row * args.lse_at[2]] : minus_infinity();
  }

  /// Those of `rows` rows from row0 on.
  __device__ void fill(float* stats, int row0, int rows) const {
    const int lane = threadIdx.x % lanes;
    for (int r = threadIdx.x / lanes; r < rows; r += threads / lanes) {
      const int row = row0 + r;
      const bool exists = row < place.seq_q;
      float delta = 0;
      if (exists && lane < v_chunks)
        delta = sum(load(row_of(args.out, args.out_at, row) + lane * 8),
                    load(row_of(args.grad, args.grad_at, row) + lane * 8), 0);
#pragma unroll
      for (int step = lanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(~0u, delta, step);
      if (lane == 0) {
        const float lse = lse_of(row);
        const bool none = lse == minus_infinity();
        if constexpr (Cfg::has_grad_lse) {
          if (exists) delta -= args.grad_lse[place.at_q(args.grad_lse_at, head) + row * args.grad_lse_at[2]];
        }
        stats[r * stat_floats] = none ? -minus_infinity() : Cfg::plain ? lse * 1.4426950408889634f : lse;
        stats[r * stat_floats + 1] = none ? 0.f : delta;
      }
    }
    if constexpr (Cfg::wide) {
      for (int r = threadIdx.x / 32; r < rows; r += threads / 32) {
        const float share = share_of(row0 + r);
        if (threadIdx.x % 32 == 0) stats[r * stat_floats + 2] = share, stats[r * stat_floats + 3] = 0;
      }
    }
  }

  /// 1 / sum(e^(score - LSE)) over the keys that a row sees, where that need not be 1: by a warp.
  __device__ float share_of(int row) const {
    const float lse = lse_of(row);
    if (lse == minus_infinity() || fabsf(lse) < large) return 1;
    const Scoring<Cfg> scoring(args, place);
    const auto* keys = static_cast<const unsigned short*>(args.k) + place.at_k(args.k_at, head / args.group);
    const int low = max(scoring.lowest_key(row), 0), high = min(scoring.highest_key(row), place.seq_k - 1);
    float total = 0;
    for (int key = low + threadIdx.x % 32; key <= high; key += 32) {
      float s = 0, slope = 1;
      for (int chunk = 0; chunk < chunks; ++chunk)
        s = sum(load(row_of(args.q, args.q_at, row) + chunk * 8), load(keys + key * args.k_at[2] + chunk * 8), s);
      total += exp2_approx((scoring.score(s, row, key, head, slope) - lse) * Scoring<Cfg>::log2_e);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    return 1 / total;
  }
};
