#pragma once
// What the kernels of split attention share: their parameters, where partial results lie, and how results are written.

#include "attention/entries.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"
#include "tile/head_copy.cuh"

/// attn/split.py packs it.
struct SplitArgs : AttentionArgs {
  float* results;    // [slot][part_rows][d_head]: not yet divided by their sums
  float2* sums;      // [slot][part_rows]: maximum and sum; a sum of 0: no result was written
  const int* used;   // Cfg::seqused: [batch], the keys of each entry that are there
  const int* pages;  // Cfg::page: [batch][page_row], the pages of each entry in order; k_batch is a page's stride
  int parts, tiles;  // blocks of one tile of rows, and tiles of rows of an entry, where the host knows
  int part_rows;     // rows of a tile that can exist
  int part_keys;     // keys of a part; 0: those that a tile of rows sees are shared evenly by `parts`
  int page_row, page_count;
};

/// A tile of rows of one entry and head of keys, and how many blocks share its keys.
///
/// Blocks lie in the grid part by part, and in each part tile by tile. Of packed entries (Cfg::varlen) each has its own
/// number of tiles; its keys are shared by as many blocks as make parts of about part_keys keys, divided by its tiles.
/// So an entry never has more blocks than ceil(keys / part_keys) + tiles - 1, which is what the host starts for it.
template <class Cfg>
struct SplitTile {
  int batch, kv_head, head, row0 = 0, seq_q, seq_k, start_q = 0, start_k = 0;
  int parts;              // 0: there is no such tile
  int part = 0;           // the block's, where it makes one
  int first_block, step;  // of part 0, and from part to part

  /// Of block `block` of the grid that makes parts, or (`merges`) of the grid that has one block for all of them.
  __device__ SplitTile(const SplitArgs& args, int block, bool merges)
      : kv_head(blockIdx.y), head(kv_head * Cfg::packed), seq_q(args.seq_q), seq_k(args.seq_k), parts(args.parts),
        step(args.tiles) {
    int tile;
    if constexpr (Cfg::varlen) {
      const auto first_tile = [&](int entry) { return first_tile_of(args, entry, Cfg::b_r, Cfg::packed); };
      const auto first_part = [&](int entry) {
        const int before = Cfg::split ? Entry::clamp(args.starts_k[entry], args.seq_k) / args.part_keys : 0;
        return before + first_tile(entry);
      };
      batch = merges ? entry_of(block, args.entries, first_tile) : entry_of(block, args.entries, first_part);
      const Entry entry(args, batch);
      start_q = entry.start_q, seq_q = entry.seq_q, start_k = entry.start_k, seq_k = entry.seq_k;
      step = max((rows() + Cfg::b_r - 1) / Cfg::b_r, 0), parts = step > 0;
      if (Cfg::split && step > 0) {
        const int pieces = max((seq_k + args.part_keys - 1) / args.part_keys, 1);
        parts = (pieces + step - 1) / step;
      }
      tile = block - (merges ? first_tile(batch) : first_part(batch));
      const bool starts_at_0 = tile >= 0;
      if (!merges && step > 0) part = tile / step, tile %= step;
      if (!starts_at_0 || tile >= step || part >= parts) parts = 0;
      first_block = first_part(batch) + tile;
      // Numbers that lie can claim more parts than there are blocks.
      const int blocks = first_part(args.entries), left = blocks - first_block;
      if (parts > 0) parts = left > 0 ? min(parts, (left - 1) / step + 1) : 0;
    } else {
      tile = block % args.tiles, batch = block / args.tiles;
      if (!merges) part = batch % parts, batch /= parts;
      if constexpr (Cfg::seqused) seq_k = min(max(args.used[batch], 0), seq_k);
      first_block = batch * parts * step + tile;
    }
    row0 = tile * Cfg::b_r;
  }

  __device__ int rows() const { return seq_q * Cfg::packed; }
  /// Where the results of a part lie: its first row among all.
  __device__ long long slot(const SplitArgs& args, int part) const {
    return ((long long)(first_block + part * step) * gridDim.y + kv_head) * args.part_rows;
  }

  __device__ HeadSource k(const AttentionArgs& args) const {
    const long long row = Cfg::k_stride > 0 ? Cfg::k_stride : args.k_row;
    return {at(args.k, Cfg::page ? 0 : args.k_batch, args.k_head * kv_head + start_k * row), row, seq_k};
  }
  __device__ HeadSource v(const AttentionArgs& args) const {
    const long long row = Cfg::v_stride > 0 ? Cfg::v_stride : args.v_row;
    return {at(args.v, Cfg::page ? 0 : args.v_batch, args.v_head * kv_head + start_k * row), row, seq_k};
  }
  /// The page of a key, held within those there are whatever the table says.
  __device__ int page(const SplitArgs& args, int key) const {
    return min(max(args.pages[(long long)batch * args.page_row + key / Cfg::page], 0), args.page_count - 1);
  }
  /// A row of Q, and of out.
  __device__ const unsigned short* q(const AttentionArgs& args, int row) const {
    return at(args.q, args.q_batch,
              (start_q + row / Cfg::packed) * args.q_row + (head + row % Cfg::packed) * args.q_head);
  }
  __device__ unsigned short* out(const AttentionArgs& args, int row) const {
    return const_cast<unsigned short*>(
        at(args.out, args.out_batch,
           (start_q + row / Cfg::packed) * args.out_row + (head + row % Cfg::packed) * args.out_head));
  }
  __device__ float* lse(const AttentionArgs& args, int row) const {
    const long long h = head + row % Cfg::packed;
    const long long line = Cfg::varlen ? h * args.seq_q : (batch * (long long)gridDim.y * Cfg::packed + h) * seq_q;
    return args.lse + line + start_q + row / Cfg::packed;
  }

  /// Eight columns of a row of out: `value` over the row's sum. Column 0 brings the LSE with it.
  __device__ void put(const AttentionArgs& args, int row, int col, float largest, float sum, float (&value)[8]) const {
    using T = typename Cfg::in_type;
    const float inverse = sum == 0 ? 0.f : 1.f / sum;
#pragma unroll
    for (int e = 0; e < 8; ++e) value[e] *= inverse;
    *reinterpret_cast<uint4*>(out(args, row) + col) =
        make_uint4(pack<T>(value[0], value[1]), pack<T>(value[2], value[3]), pack<T>(value[4], value[5]),
                   pack<T>(value[6], value[7]));
    if constexpr (Cfg::with_lse) {
      constexpr float ln_2 = 0.6931471805599453f;
      if (col == 0)
        *lse(args, row) =
            sum == 0 ? minus_infinity() : fmaf(largest, Cfg::scale_first ? 1.f : args.scale, __log2f(sum) * ln_2);
    }
  }

 private:
  __device__ const unsigned short* at(const void* base, long long batch_stride, long long offset) const {
    return static_cast<const unsigned short*>(base) + (Cfg::varlen ? 0 : batch * batch_stride) + offset;
  }
};
