#pragma once
// What the kernels of split attention share: their parameters, where partial results lie, and how results are written.

#include "attention/args.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

/// attn/split.py packs it.
struct SplitArgs : AttentionArgs {
  float* results;    // [slot][part_rows][d_head]: not yet divided by their sums
  float2* sums;      // [slot][part_rows]: maximum and sum; a sum of 0: no result was written
  const int* used;   // Cfg::seqused: [batch], the keys of each entry that are there
  int parts, tiles;  // blocks of one tile of rows; tiles of rows of an entry
  int part_rows;     // rows of a tile that can exist
  int part_tiles;    // tiles of keys of a part; 0: those that a tile of rows sees are shared evenly
};

/// Where a block's results lie while they are apart.
template <class Cfg>
__device__ inline long long slot_of(const SplitArgs& args, int item, int kv_head) {
  return ((long long)item * gridDim.y + kv_head) * args.part_rows;
}

/// A row of out in 16-byte chunks, and its LSE.
template <class Cfg>
struct SplitResult {
  const AttentionArgs& args;
  unsigned short* out;
  float* lse;

  /// `batch`, `start_q`, `seq_q`: of the entry; `row`: of its rows.
  __device__ SplitResult(const AttentionArgs& args, int batch, int head, int row, int start_q, int seq_q) : args(args) {
    const int query = start_q + row / Cfg::packed, h = head + row % Cfg::packed;
    out = static_cast<unsigned short*>(args.out) + batch * args.out_batch + query * args.out_row + h * args.out_head;
    const long long line =
        Cfg::varlen ? (long long)h * args.seq_q : ((long long)batch * gridDim.y * Cfg::packed + h) * seq_q;
    lse = args.lse + line + query;
  }

  __device__ void put(int col, const float (&value)[8]) const {
    using T = typename Cfg::in_type;
    *reinterpret_cast<uint4*>(out + col) = make_uint4(pack<T>(value[0], value[1]), pack<T>(value[2], value[3]),
                                                      pack<T>(value[4], value[5]), pack<T>(value[6], value[7]));
  }
  __device__ void put_lse(float max, float sum) const {
    constexpr float ln_2 = 0.6931471805599453f;
    *lse = sum == 0 ? minus_infinity() : fmaf(max, Cfg::scale_first ? 1.f : args.scale, __log2f(sum) * ln_2);
  }
};
