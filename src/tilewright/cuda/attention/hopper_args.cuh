#pragma once
// The parameters of Hopper's attention kernels, after the tensor maps of Q, K and V. attn/hopper.py packs the same.

#include "attention/args.cuh"

struct HopperArgs : AttentionArgs {
  int heads, row_tiles, tiles;  // query heads; tiles of out of a head (Cfg::varlen: of all entries), and in all
  unsigned* drawn;              // Cfg::draws: tiles that blocks have come for besides their first ones
};
