#pragma once
// The parameters of every kernel of attention's gradients, by value, and where a block's rows lie.
// attn/backward_kernels.py packs the same struct.

#include "attention/backward_modification.cuh"

struct BackwardArgs : ScoreNumbers {
  const void *q, *k, *v, *out, *grad;
  const float *lse, *grad_lse;  // natural logarithm; grad_lse where Cfg::has_grad_lse
  void *dq, *dk, *dv;
  float* stats;                // [head][padded row][2 or 4]: attention/query_rows.cuh
  int* turns;                  // [head][padded row / 32]: which block of keys adds next to sums, Cfg::ordered
  float* sums;                 // dQ in parts, [head][padded row / m][m * d_head]: attention/backward_sums.cuh
  float *dk_parts, *dv_parts;  // Cfg::parts > 1: attention/backward_parts.cuh
  // Strides in elements: batch, head, row.
  long long q_at[3], k_at[3], v_at[3], out_at[3], grad_at[3], dq_at[3], dk_at[3], dv_at[3], lse_at[3], grad_lse_at[3];
  long long bias_batch, bias_head, bias_row, bias_col;
  const void* bias;
  const int *starts_q, *starts_k;  // Cfg::varlen: the first row of each entry, and the end of the last
  int batch, heads_q, heads_kv, group;
  int seq_q, seq_k;     // where Cfg::varlen: the rows of all entries together
  float scale, factor;  // factor: what raw products are multiplied with to be exponents of 2
  float softcap, scale_by_cap;
  int left, right;  // keys seen to the left and to the right of a query's own
};

/// Rows of stats and sums come in runs of so many, each of one entry: every tile of rows divides it.
constexpr int row_run = 128;

/// Where a part of dK or dV of a head begins, in rows: [part][batch, head][row]; with Cfg::varlen rows of all entries.
template <class Cfg>
__device__ inline long long part_row(const BackwardArgs& args, int part, int batch, int head) {
  const long long batches = Cfg::varlen ? 1 : args.batch;
  return ((part * batches + (Cfg::varlen ? 0 : batch)) * args.heads_kv + head) * args.seq_k;
}

/// The entry and the rows of a block that has `rows` rows of q (or of k).
///
/// Cfg::varlen: entry b begins at tile (start_b + b * rows) / rows, which keeps entries apart and needs no list of
/// tiles. Entry `batch` is what lies after the last: rows that no entry has.
template <class Cfg, bool of_q, int rows>
struct RowPlace {
  int batch, head, row0, seq_q, seq_k, start_q = 0, start_k = 0;

  __device__ RowPlace(const BackwardArgs& args, int block_head, int block_tile) : seq_q(args.seq_q), seq_k(args.seq_k) {
    const int heads = of_q ? args.heads_q : args.heads_kv;
    if constexpr (!Cfg::varlen) {
      batch = block_head / heads, head = block_head - batch * heads, row0 = block_tile * rows;
    } else {
      head = block_head;
      int low = 0, high = args.batch;  // the last entry that begins at or before this tile
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (tile_of(args, middle) <= block_tile)
          low = middle;
        else
          high = middle - 1;
      }
      batch = low, row0 = (block_tile - tile_of(args, low)) * rows;
      start_q = start(args.starts_q, low, args.seq_q), start_k = start(args.starts_k, low, args.seq_k);
      if (low < args.batch) {
        seq_q = max(start(args.starts_q, low + 1, args.seq_q) - start_q, 0);
        seq_k = max(start(args.starts_k, low + 1, args.seq_k) - start_k, 0);
      } else {
        seq_q = args.seq_q - start_q, seq_k = args.seq_k - start_k;
      }
      if (row0 < 0) row0 = 0, seq_q = seq_k = 0;  // no numbers that begin with 0
    }
  }

  __device__ bool is_rest(const BackwardArgs& args) const { return Cfg::varlen && batch == args.batch; }
  __device__ int seq() const { return of_q ? seq_q : seq_k; }

  __device__ long long at_q(const long long (&strides)[3], int h) const { return at(strides, h, start_q); }
  __device__ long long at_k(const long long (&strides)[3], int h) const { return at(strides, h, start_k); }

  /// Of query head h, in rows of stats and sums: its first.
  __device__ long long padded(const BackwardArgs& args, int h) const {
    if constexpr (!Cfg::varlen)
      return ((long long)batch * args.heads_q + h) * ((seq_q + row_run - 1) / row_run * row_run);
    const long long whole = ((long long)args.seq_q + (long long)args.batch * row_run) / row_run * row_run;
    return h * whole + ((long long)start_q + (long long)batch * row_run) / row_run * row_run;
  }

 private:
  static __device__ int start(const int* starts, int entry, int rows_in_all) {
    return min(max(starts[entry], 0), rows_in_all);  // held within the operands, whatever the caller's numbers are
  }
  static __device__ int tile_of(const BackwardArgs& args, int entry) {
    const long long first = of_q ? start(args.starts_q, entry, args.seq_q) : start(args.starts_k, entry, args.seq_k);
    return int((first + (long long)entry * rows) / rows);
  }
  __device__ long long at(const long long (&strides)[3], int h, int first) const {
    return (Cfg::varlen ? first * strides[2] : batch * strides[0]) + h * strides[1];
  }
};
