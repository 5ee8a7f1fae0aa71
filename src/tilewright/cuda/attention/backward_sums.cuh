#pragma once
// dQ as sums of what blocks of keys add to it, in fp32, in the order in which threads hold them.
//
// A tile of `m` queries is multiplied by `warps` warps, each for m / along_m rows and d_head / along_d columns. Every
// product's 16 x 8 accumulators lie together, lane after lane: an addition of a warp is 512 neighbouring bytes.

#include "tile/head_tile.cuh"

template <class Cfg>
struct SumsTile {
  static constexpr int m = Cfg::sums_rows, along_m = Cfg::sums_along, along_d = Cfg::n_warps / along_m;
  static constexpr int rows = m / along_m, cols = Cfg::d_head / along_d, pieces = rows / 16, depth = cols / 16;
  static_assert(rows % 16 == 0 && cols % 16 == 0, "a warp's part is whole 16 x 16 pieces");
  static __device__ int row() { return threadIdx.x / 32 % along_m * rows; }
  static __device__ int col() { return threadIdx.x / 32 / along_m * cols; }
  /// The place of the product's accumulators in a tile: of this thread's first where four lie together.
  static __device__ int place(int i, int j) {
    return (((threadIdx.x / 32) * pieces + i) * (2 * depth) + j) * 128 + threadIdx.x % 32 * 4;
  }
};
