#pragma once
// The parameters of every attention kernel, by value. attn/rung.py packs the same struct.

#include "attention/modification.cuh"

struct AttentionArgs : ScoreNumbers {
  const void *q, *k, *v;
  void* out;
  float* lse;  // [batch][heads][seq_q], natural logarithm; written where Cfg::with_lse
  // Strides in elements. Rows lie contiguous and start at multiples of 16 bytes.
  long long q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, out_batch, out_head, out_row;
  int group;         // query heads that share one head of keys and values
  int seq_q, seq_k;  // where Cfg::varlen: the rows of all entries together
  float scale;
  float factor;  // what scores that come out of tile/score.cuh are multiplied with to be exponents of 2
  int entries;   // Cfg::varlen: of the batch
  // What a score may go through (tile/score.cuh); read where Cfg asks for it.
  long long bias_batch, bias_head, bias_row, bias_col;
  int left, right;  // keys seen to the left and to the right of a query's own
  float softcap, scale_by_cap;
  const void* bias;
  const int *starts_q, *starts_k;  // Cfg::varlen: the first row of each entry, and the end of the last
};
