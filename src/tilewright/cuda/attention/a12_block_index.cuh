#pragma once
// a12: new over a11: a block computes where its rows of Q, K, V and out begin once; copies walk on from there with a
// running pointer. Rows are multiplied with 1 / sum instead of divided. Under a causal mask the blocks that see most
// keys come first.
#include "attention/a11_strided_store.cuh"

struct A12 : A11 {
  static constexpr bool heavy_first = true;
  static constexpr bool multiply_inverse = true;
  template <class Tile, int threads, bool edge>
  using CopyKV = RunningCopy<Tile, threads, edge, Tile::rows>;
};
