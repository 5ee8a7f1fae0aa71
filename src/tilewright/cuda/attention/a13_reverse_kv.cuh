#pragma once
// a13: new over a12: keys and values are walked backwards. Tiles with hidden pairs come first, and the count of tiles
// left is the index of the next: no end to compare with.
#include "attention/a12_block_index.cuh"

struct A13 : A12 {
  static constexpr bool backwards = true;
  template <class Tile, int threads, bool edge>
  using CopyKV = RunningCopy<Tile, threads, edge, -Tile::rows>;
};
