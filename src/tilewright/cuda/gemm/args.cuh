#pragma once
// The parameters of every GEMM kernel, by value, and from them a block's operands and its tile of the result.
// gemm/rung.py packs the same struct.

#include "gemm/fused.cuh"

// Which index of a matrix walks memory one element at a time (Matrix.unit in gemm/problem.py).
constexpr int unit_none = 0, unit_col = 1, unit_row = 2;

struct GemmArgs {
  const void *a, *b, *c;
  void* out;
  long long a_batch, b_batch, c_batch, out_batch;  // strides in elements, all of them
  long long a_row, a_col, b_row, b_col, c_row, c_col, out_row, out_col;
  int m, n, k;
  float alpha, beta;
  FusedArgs fused;  // of an epilogue; without one it is empty, in what padding there is
};

/// The element offset of (row, col); a unit stride known at compile time costs no multiplication.
template <int unit>
__device__ inline long long offset_of(int row, int col, long long row_stride, long long col_stride) {
  if constexpr (unit == unit_col) return row * row_stride + col;
  if constexpr (unit == unit_row) return row + col * col_stride;
  return row * row_stride + col * col_stride;
}

/// An operand as the copies see it: element (line, i) at base[line * line_stride + i * inner_stride]; those beyond the
/// limits are 0.
template <class T>
struct Source {
  const T* base;
  long long line_stride, inner_stride;  // in elements
  int line_limit, inner_limit;
};

/// A of this block's product. A line is a row of it (by_rows), or a column.
template <class T, bool by_rows>
__device__ inline Source<T> lines_of_a(const GemmArgs& args) {
  const T* base = static_cast<const T*>(args.a) + blockIdx.y * args.a_batch;
  if constexpr (by_rows) return {base, args.a_row, args.a_col, args.m, args.k};
  return {base, args.a_col, args.a_row, args.k, args.m};
}
/// The same of B.
template <class T, bool by_rows>
__device__ inline Source<T> lines_of_b(const GemmArgs& args) {
  const T* base = static_cast<const T*>(args.b) + blockIdx.y * args.b_batch;
  if constexpr (by_rows) return {base, args.b_row, args.b_col, args.k, args.n};
  return {base, args.b_col, args.b_row, args.n, args.k};
}

struct TileOrigin {
  int row, col;  // of the tile's first element
};

/// The origin of tile number `index` of the result. Tiles are walked along rows of tiles; with group_m > 1, down a
/// group of group_m tile rows first, so that blocks running together share operands in L2:
///
///     group_m = 1:  0 1 2 3     group_m = 2:  0 2 4 6
///                   4 5 6 7                   1 3 5 7
template <class Cfg>
__device__ inline TileOrigin tile_origin(unsigned index, int m, int n) {
  const unsigned tiles_n = (n + Cfg::tile_n - 1) / Cfg::tile_n;
  if constexpr (Cfg::group_m == 1) return {int(index / tiles_n) * Cfg::tile_m, int(index % tiles_n) * Cfg::tile_n};
  const unsigned tiles_m = (m + Cfg::tile_m - 1) / Cfg::tile_m;
  const unsigned group = index / (Cfg::group_m * tiles_n);
  const unsigned within = index % (Cfg::group_m * tiles_n);
  const unsigned rows = min(tiles_m - group * Cfg::group_m, unsigned(Cfg::group_m));  // the last group may be shorter
  return {int(group * Cfg::group_m + within % rows) * Cfg::tile_m, int(within / rows) * Cfg::tile_n};
}

/// The number of tiles.
template <class Cfg>
__device__ inline unsigned tiles_of(int m, int n) {
  return ((m + Cfg::tile_m - 1) / Cfg::tile_m) * ((n + Cfg::tile_n - 1) / Cfg::tile_n);
}

/// This block's tiles along k: [first, first + tiles). With split_k, block z takes part z of all of them.
template <class Cfg>
struct KRange {
  int first, tiles;

  __device__ explicit KRange(int k) {
    const int all = (k + Cfg::tile_k - 1) / Cfg::tile_k;
    first = Cfg::split_k > 1 ? (long long)all * blockIdx.z / Cfg::split_k : 0;
    tiles = (Cfg::split_k > 1 ? (long long)all * (blockIdx.z + 1) / Cfg::split_k : all) - first;
  }
};
