#pragma once
// What happens to a score between Q K^T and the softmax: which pairs are seen, the scale, and what else a call asks
// for. The only place that knows.
//
// Query i sees key j when first(i) <= j <= last(i) and j < seq_k, with shift = seq_k - seq_q:
//
//     last(i)      i + shift             Cfg::is_causal: the last query sees the last key
//                  i + shift + right     Cfg::has_right
//     first(i)     i + shift - left      Cfg::has_left
//
// Rows of a tile are queries, or where Cfg::packed is above 1 pairs of a query and one of the `packed` heads that share
// a head of keys: row r is query r / packed and head place.head + r % packed.
//
// A score goes through  scale,  softcap tanh(s / softcap),  + bias,  Modification::run,  and the mask, in this order.

#include "attention/modification.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

/// Two neighbours of an array, as one access.
template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T low, high;
};

/// scale * x limited to (-cap, cap), where scale_by_cap = scale / cap. tanh(y) = 1 - 2 / (1 + e^(2 y)), which tends to
/// -1 and 1 without overflow; its error is absolute, a few units of 2^-24 of the cap.
__device__ inline float soft_cap(float x, float scale_by_cap, float cap) {
  constexpr float two_log2_e = 2.8853900817779268f;
  const float grown = exp2_approx(x * (scale_by_cap * two_log2_e));
  return fmaf(-2.f * cap, __fdividef(1.f, 1.f + grown), cap);
}

template <class Cfg>
struct Score {
  static constexpr bool bounded_left = Cfg::has_left, bounded_right = Cfg::is_causal || Cfg::has_right;
  static constexpr bool rewrites = Cfg::has_bias || Cfg::modifies;
  /// True where a row can be without any visible key, in a tile or in all: its maximum is then -inf.
  static constexpr bool may_hide_rows = bounded_left || bounded_right || rewrites || Cfg::varlen || Cfg::no_keys;
  /// True where the mask can hide a pair of some tile.
  static constexpr bool hides = Cfg::edge_k || bounded_left || bounded_right;
  using Bias = typename Cfg::bias_type;

  const AttentionArgs& args;
  int seq_q, seq_k, batch, head;
  int shift;  // the last visible key of query i is i + shift, and `right` more
  float scale;
  int first, end;              // the tiles of keys that some query of the block sees
  int whole_first, whole_end;  // tiles whole_first .. whole_end - 1 hide nothing from any query of the block
  const Bias* bias;            // of the head's first pair

  /// For the rows place.row0 .. place.row0 + rows - 1 (cut at the last query's).
  template <class Place>
  __device__ Score(const AttentionArgs& args, const Place& place, int rows)
      : args(args), seq_q(place.seq_q), seq_k(place.seq_k), batch(place.batch), head(place.head), shift(seq_k - seq_q),
        scale(args.scale), first(0), whole_first(0) {
    const int query0 = query_of(place.row0), query_end = min(query_of(place.row0 + rows - 1) + 1, seq_q);
    int keys = seq_k, whole = seq_k;
    if constexpr (bounded_right) {
      keys = min(keys, query_end + reach());
      whole = min(whole, query0 + 1 + reach());
    }
    if constexpr (bounded_left) {
      first = max(query0 + shift - args.left, 0) / Cfg::b_c;
      whole_first = (max(query_end - 1 + shift - args.left, 0) + Cfg::b_c - 1) / Cfg::b_c;
    }
    end = keys > 0 ? (keys + Cfg::b_c - 1) / Cfg::b_c : 0;
    if (Cfg::varlen && query0 >= seq_q) end = 0;
    whole_end = max(whole, 0) / Cfg::b_c;
    if constexpr (Cfg::has_bias)
      bias = static_cast<const Bias*>(args.bias) + batch * args.bias_batch + head * args.bias_head;
  }

  /// s[i][2 n + e / 2 ...] in the accumulator layout (ptx/mma.cuh): this thread's first row is `row`, its first key
  /// of the tile `key`. Scales where that comes first, changes as Cfg asks, and hides with -inf.
  template <int m, int n>
  __device__ void apply(float (&s)[m][n][4], int row, int key, int tile) const {
    if constexpr (Cfg::scale_first) {
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int j = 0; j < n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[i][j][e] =
                Cfg::has_softcap ? soft_cap(s[i][j][e], args.scale_by_cap, args.softcap) : __fmul_rn(s[i][j][e], scale);
    }
    if constexpr (rewrites) {
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int j = 0; j < n; ++j)
            rewrite(s[i][j][2 * half], s[i][j][2 * half + 1], query_of(row + 16 * i + 8 * half),
                    (row + 16 * i + 8 * half) % Cfg::packed, key + 8 * j);
    }
    if constexpr (hides) {
      if (tile < whole_end && (!bounded_left || tile >= whole_first)) return;
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = query_of(row + 16 * i + 8 * half);
          int last = seq_k - 1;
          if constexpr (bounded_right) last = min(last, query + reach());
          last -= key;
          const int lowest = bounded_left ? query + shift - args.left - key : 0;
#pragma unroll
          for (int j = 0; j < n; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (8 * j + e > last || (bounded_left && 8 * j + e < lowest)) s[i][j][2 * half + e] = minus_infinity();
        }
    }
  }

 private:
  static __device__ int query_of(int row) { return row / Cfg::packed; }
  /// The last visible key of query i is i + reach().
  __device__ int reach() const {
    if constexpr (Cfg::has_right) return shift + args.right;
    return shift;
  }

  /// Bias and modification of the scores of a query in the `h`-th head of the row's, and the keys `key`, `key` + 1.
  /// Pairs that do not exist have no bias to read; whatever they become, the mask or the end of out hides it.
  __device__ void rewrite(float& low, float& high, int query, int h, int key) const {
    if constexpr (Cfg::has_bias) {
      if (!Cfg::edge_q || query < seq_q) {
        const Bias* at = bias + h * args.bias_head + query * args.bias_row + key * args.bias_col;
        if constexpr (Cfg::bias_pairs) {
          if (!Cfg::edge_k || key < seq_k) {
            const Pair<Bias> both = *reinterpret_cast<const Pair<Bias>*>(at);
            low = added(low, to_float(both.low)), high = added(high, to_float(both.high));
          }
        } else {
          if (!Cfg::edge_k || key < seq_k) low = added(low, to_float(at[0]));
          if (!Cfg::edge_k || key + 1 < seq_k) high = added(high, to_float(at[args.bias_col]));
        }
      }
    }
    if constexpr (Cfg::modifies) {
      low = Modification::run(low, batch, head + h, query, key, args);
      high = Modification::run(high, batch, head + h, query, key + 1, args);
    }
  }
  /// A bias of -inf also hides a score that is NaN.
  static __device__ float added(float s, float bias) { return bias == minus_infinity() ? bias : s + bias; }
};
