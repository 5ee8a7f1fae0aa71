#pragma once
// From products to weights and their gradients, pair by pair of a query and a key; and which pairs are seen.
//
// A tile has rows r (what a block keeps) and columns c (what passes by): keys and queries where Cfg::by_keys, else
// queries and keys. Column c is seen from row r when
//
//     r + low <= c <= r + high       shift - left, shift + right      rows are queries
//                                    -shift - right, left - shift     rows are keys
//
// with shift = seq_k - seq_q, and when the key exists. Queries that do not exist have weights of 0 by their statistics
// (attention/query_rows.cuh).
//
//     x   scale s     softcap tanh(x / softcap)     x + bias     Modification::run(x)
//     p   e^(x - lse)
//     ds  p (dp - delta) dx/d(scale s)              the scale itself multiplies dQ and dK at their end

#include "attention/backward_args.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

/// The statistics of a query (attention/query_rows.cuh).
struct QueryStats {
  float lse, delta, share;
};

/// A score, and its slope, of a pair; which pairs are seen.
template <class Cfg>
struct Scoring {
  static constexpr bool right_bound = Cfg::is_causal || Cfg::has_right;
  static constexpr float log2_e = 1.4426950408889634f;
  using Bias = typename Cfg::bias_type;

  const BackwardArgs& args;
  int batch, seq_q, seq_k;

  template <class Place>
  __device__ Scoring(const BackwardArgs& args, const Place& place)
      : args(args), batch(place.batch), seq_q(place.seq_q), seq_k(place.seq_k) {}

  /// x of s = q k; `slope` is multiplied by dx/d(scale s).
  __device__ float score(float s, int query, int key, int head, float& slope) const {
    float x = s * args.scale;
    if constexpr (Cfg::has_softcap) {  // tanh(y) = 1 - 2 share, with share = 1 / (1 + e^(2 y))
      const float share = __fdividef(1.f, 1.f + exp2_approx(s * (args.scale_by_cap * 2 * log2_e)));
      x = fmaf(-2.f * args.softcap, share, args.softcap);
      slope *= 4 * share * (1 - share);
    }
    if constexpr (Cfg::has_bias) {
      if ((!Cfg::edge_q || query < seq_q) && (!Cfg::edge_k || key < seq_k)) {
        const float bias = to_float(static_cast<const Bias*>(
            args.bias)[batch * args.bias_batch + head * args.bias_head + query * args.bias_row + key * args.bias_col]);
        x = bias == minus_infinity() ? bias : x + bias;  // it also hides a score that is NaN
      }
    }
    if constexpr (Cfg::modifies) {
      slope *= Modification::slope(x, batch, head, query, key, args);
      x = Modification::run(x, batch, head, query, key, args);
    }
    return x;
  }

  __device__ int lowest_key(int query) const { return Cfg::has_left ? query + seq_k - seq_q - args.left : 0; }
  __device__ int highest_key(int query) const {
    return right_bound ? query + seq_k - seq_q + (Cfg::has_right ? args.right : 0) : seq_k - 1;
  }
};

template <class Cfg>
struct Pairs : Scoring<Cfg> {
  using Scoring<Cfg>::right_bound;
  using Scoring<Cfg>::args;
  using Scoring<Cfg>::seq_q;
  using Scoring<Cfg>::seq_k;
  static constexpr bool by_keys = Cfg::by_keys;
  static constexpr bool has_low = by_keys ? right_bound : Cfg::has_left;
  static constexpr bool has_high = by_keys ? Cfg::has_left : right_bound;
  static constexpr bool slopes = Cfg::has_softcap || Cfg::modifies;

  int low = 0, high = 0;

  template <class Place>
  __device__ Pairs(const BackwardArgs& args, const Place& place) : Scoring<Cfg>(args, place) {
    const int shift = seq_k - seq_q;
    const int left = Cfg::has_left ? shift - args.left : 0;
    const int right = shift + (Cfg::has_right ? args.right : 0);
    if constexpr (by_keys) {
      if constexpr (right_bound) low = -right;
      if constexpr (Cfg::has_left) high = -left;
    } else {
      if constexpr (Cfg::has_left) low = left;
      if constexpr (right_bound) high = right;
    }
  }

  /// The tiles of columns that some row of row0 .. row0 + Cfg::rows - 1 sees: first .. end - 1.
  __device__ void range(int row0, int& first, int& end) const {
    const int last = min(row0 + Cfg::rows, by_keys ? seq_k : seq_q) - 1;
    int cols = by_keys ? seq_q : seq_k, begin = 0;
    if constexpr (has_low) begin = max(row0 + low, 0);
    if constexpr (has_high) cols = min(cols, last + high + 1);
    first = begin / Cfg::cols;
    end = last < row0 || cols <= begin ? first : (cols + Cfg::cols - 1) / Cfg::cols;
  }

  /// Whether the tile has pairs that are not seen, but for queries that do not exist.
  __device__ bool hides(int row0, int col0) const {
    bool some = false;
    if constexpr (has_low) some |= col0 < row0 + Cfg::rows - 1 + low;
    if constexpr (has_high) some |= col0 + Cfg::cols - 1 > row0 + high;
    if constexpr (Cfg::edge_k) some |= (by_keys ? row0 + Cfg::rows : col0 + Cfg::cols) > seq_k;
    return some;
  }

  /// In the accumulators' layout (ptx/mma.cuh): s becomes the weights, dp their scores' gradients. `row`, `col`: of
  /// this thread's first element; stats(i, half, j, e): the statistics of that element's query.
  template <bool masked, int m, int n, class Stats>
  __device__ void apply(float (&s)[m][n][4], float (&dp)[m][n][4], int row, int col, int head,
                        const Stats& stats) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const auto of_column = stats.column(j);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const QueryStats of = stats.of(of_column, i, half, e);
            float &x = s[i][j][2 * half + e], &y = dp[i][j][2 * half + e], slope = 1;
            x = weight<masked>(x, row + 16 * i + 8 * half, col + 8 * j + e, head, of, slope);
            y = graded(x, y, of.delta, slope);
          }
    }
  }

  /// The first half of it, where dx/ds is 1: s becomes the weights.
  template <bool masked, int m, int n, class Stats>
  __device__ void weigh(float (&s)[m][n][4], int row, int col, int head, const Stats& stats) const {
    static_assert(!slopes, "the slope is found with the weight");
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const auto of_column = stats.column(j);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float &x = s[i][j][2 * half + e], slope = 1;
            x = weight<masked>(x, row + 16 * i + 8 * half, col + 8 * j + e, head, stats.of(of_column, i, half, e),
                               slope);
          }
    }
  }

  /// The second half: dp becomes the gradients of the weights' scores.
  template <int m, int n, class Stats>
  __device__ void grade(const float (&p)[m][n][4], float (&dp)[m][n][4], const Stats& stats) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const auto of_column = stats.column(j);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            dp[i][j][2 * half + e] =
                graded(p[i][j][2 * half + e], dp[i][j][2 * half + e], stats.of(of_column, i, half, e).delta, 1.f);
    }
  }

 private:
  template <bool masked>
  __device__ float weight(float s, int r, int c, int head, const QueryStats& of, float& slope) const {
    float p;
    if constexpr (Cfg::plain) {
      p = exp2_approx(fmaf(s, args.factor, -of.lse));
    } else {
      const float x = this->score(s, by_keys ? c : r, by_keys ? r : c, head, slope);
      p = exp2_approx((x - of.lse) * Scoring<Cfg>::log2_e);
      if constexpr (Cfg::wide) p *= of.share;
      if constexpr (Cfg::modifies)
        p = of.lse == -minus_infinity() ? 0.f : p;  // whatever it makes of a row without keys
    }
    if constexpr (masked) {
      bool seen = true;
      if constexpr (has_low) seen &= c >= r + low;
      if constexpr (has_high) seen &= c <= r + high;
      if constexpr (Cfg::edge_k) seen &= (by_keys ? r : c) < seq_k;
      p = seen ? p : 0.f;
    }
    return p;
  }
  static __device__ float graded(float p, float dp, float delta, float slope) {
    const float ds = p * (dp - delta);
    if constexpr (slopes) return p == 0 ? 0.f : ds * slope;
    return ds;
  }
};
