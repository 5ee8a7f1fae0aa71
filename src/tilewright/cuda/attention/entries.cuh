#pragma once
// Entries of different lengths, one after the other (Cfg::varlen): where they lie, and which of them a block works on.
// Nobody but the device knows the lengths. The host starts as many blocks as the rows of all entries can need, and each
// block finds its entry.

#include "attention/args.cuh"

/// An entry's rows, held within the operands whatever the caller's numbers are.
struct Entry {
  int start_q, seq_q, start_k, seq_k;

  __device__ Entry(const AttentionArgs& args, int entry)
      : start_q(clamp(args.starts_q[entry], args.seq_q)), seq_q(clamp(args.starts_q[entry + 1], args.seq_q) - start_q),
        start_k(clamp(args.starts_k[entry], args.seq_k)), seq_k(clamp(args.starts_k[entry + 1], args.seq_k) - start_k) {
  }

  static __device__ int clamp(int start, int rows) { return min(max(start, 0), rows); }
};

/// The last entry whose first block is `block` or one before it; `first_of` gives an entry's first block, and does not
/// fall from entry to entry. Each warp looks by itself, at 32 entries at a time.
template <class First>
__device__ inline int entry_of(int block, int entries, const First& first_of) {
  int low = 0, count = entries;  // it is one of the `count` entries from `low` on
  while (count > 1) {
    const int step = (count + 31) / 32, probed = threadIdx.x % 32 * step;
    const unsigned reached = __ballot_sync(~0u, probed < count && first_of(low + probed) <= block);
    const int steps = reached == 0 ? 0 : 31 - __clz(reached);
    low += steps * step;
    count = min(step, count - steps * step);
  }
  return low;
}

/// The first of the tiles of `tile` rows that entry `entry` has: an entry has at most one more than its whole ones.
/// `packed`: rows per query.
__device__ inline int first_tile_of(const AttentionArgs& args, int entry, int tile, int packed) {
  return Entry::clamp(args.starts_q[entry], args.seq_q) * packed / tile + entry;
}
