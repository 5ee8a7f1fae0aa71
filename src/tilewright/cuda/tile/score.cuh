#pragma once
// What happens to a score between Q K^T and the softmax: which pairs are seen, and the scale. The only place that knows.
//
// Query i sees key j when j < seq_k and, if causal, j <= i + seq_k - seq_q: the last query sees the last key.

#include "ptx/ex2.cuh"

template <class Cfg>
struct Score {
  /// Whether a row can be without any visible key, in a tile or in all: its maximum is then -inf.
  static constexpr bool may_hide_rows = Cfg::is_causal;
  /// Whether any pair of any tile can be hidden.
  static constexpr bool hides = Cfg::edge_k || Cfg::is_causal;

  int seq_k, shift;  // the last visible key of query i is i + shift
  float scale;
  int first, end;    // the tiles of keys that some query of the block sees
  int whole_end;     // tiles first .. whole_end - 1 hide nothing from any query of the block

  /// For the queries row0 .. row0 + rows - 1 (cut at seq_q).
  __device__ Score(float scale, int seq_q, int seq_k, int row0, int rows)
      : seq_k(seq_k), shift(seq_k - seq_q), scale(scale), first(0) {
    int keys = seq_k, whole = seq_k;
    if constexpr (Cfg::is_causal) {
      keys = min(keys, min(row0 + rows, seq_q) + shift);
      whole = min(whole, row0 + 1 + shift);
    }
    end = keys > 0 ? (keys + Cfg::b_c - 1) / Cfg::b_c : 0;
    whole_end = max(whole, 0) / Cfg::b_c;
  }

  /// s[i][2 n + e / 2 ...] in the accumulator layout (ptx/mma.cuh): this thread's first query is `row`, its first key
  /// of the tile `key`. Scales where that comes first, and hides with -inf.
  template <int m, int n>
  __device__ void apply(float (&s)[m][n][4], int row, int key, int tile) const {
    if constexpr (Cfg::scale_first) {
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int j = 0; j < n; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[i][j][e] = __fmul_rn(s[i][j][e], scale);
    }
    if constexpr (hides) {
      if (tile < whole_end) return;
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int last = seq_k - 1;
          if constexpr (Cfg::is_causal) last = min(last, row + 16 * i + 8 * half + shift);
          last -= key;
#pragma unroll
          for (int j = 0; j < n; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (8 * j + e > last) s[i][j][2 * half + e] = minus_infinity();
        }
    }
  }
};
