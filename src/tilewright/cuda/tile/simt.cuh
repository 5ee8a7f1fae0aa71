#pragma once
// The multiply stage of the fp32 rungs: fragments in registers, products by FFMA.

#include "ptx/shared.cuh"
#include "tile/store_rows.cuh"

/// `count` consecutive floats, 128 bits at a time where their number allows.
template <int count>
__device__ inline void load_line(float* to, const float* shared) {
  if constexpr (count % 4 == 0) {
#pragma unroll
    for (int i = 0; i < count; i += 4)
      load_shared_128(*reinterpret_cast<float (*)[4]>(to + i), shared_address(shared + i));
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = shared[i];
  }
}

/// One row of an outer product, forward or backward.
template <int cols>
__device__ inline void multiply_row(float (&acc)[cols], float a, const float (&b)[cols], bool backward) {
#pragma unroll
  for (int step = 0; step < cols; ++step) {
    const int j = backward ? cols - 1 - step : step;
    acc[j] = fmaf(a, b[j], acc[j]);
  }
}

/// acc[i][j] += a[i] * b[j], rows walked to and fro:
///
///     0 1 2 3        An FFMA reads three registers from two banks that give one each a cycle; the third must come
///     7 6 5 4        from the operand cache, which holds what the instruction before had in the same place. Along a
///     8 9 ...        row that is a[i]; turning back at its end keeps b[j] where a[i] changes.
template <int rows, int cols>
__device__ inline void outer_product(float (&acc)[rows][cols], const float (&a)[rows], const float (&b)[cols]) {
#pragma unroll
  for (int i = 0; i < rows; ++i) multiply_row(acc[i], a[i], b, i % 2);
}

/// The same with column k of four.
template <int rows, int cols>
__device__ inline void outer_product(float (&acc)[rows][cols], const float (&a)[rows][4], int k,
                                     const float (&b)[cols]) {
#pragma unroll
  for (int i = 0; i < rows; ++i) multiply_row(acc[i], a[i][k], b, i % 2);
}

/// Where a long k loses fewer bits: products of `sum_every` tiles are added up by themselves, their sums to `all`. The
/// error of a chain grows with its length, and so with k / sum_every + sum_every in place of k. 0: one chain.
template <class Cfg, int rows, int cols, int every = Cfg::sum_every>
struct SumsOfSums {
  float all[rows][cols] = {};
  int left = every;

  /// After each tile's products.
  __device__ void after_tile(float (&acc)[rows][cols]) {
    if (--left > 0) return;
    left = every;
    finish(acc);
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < cols; ++j) all[i][j] = acc[i][j], acc[i][j] = 0;
  }
  /// Leaves the sum of everything in `acc`.
  __device__ void finish(float (&acc)[rows][cols]) const {
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < cols; ++j) acc[i][j] += all[i][j];
  }
};
template <class Cfg, int rows, int cols>
struct SumsOfSums<Cfg, rows, cols, 0> {
  __device__ void after_tile(float (&)[rows][cols]) {}
  __device__ void finish(float (&)[rows][cols]) const {}
};

/// A thread's elements within the block tile, where warps own warp_m x warp_n tiles, in subtiles_m x
/// subtiles_n pieces, each piece spread over the 32 lanes as thread_m x thread_n elements per lane:
///
///     warp tile, 2 x 2 subtiles          one subtile, lanes_n = 4 (each lane thread_m x thread_n)
///     +-----------+-----------+           0  2  4  6
///     | (0,0)     | (0,1)     |           1  3  5  7
///     +-----------+-----------+           8 10 12 14
///     | (1,0)     | (1,1)     |           9 11 13 15  ...
///     +-----------+-----------+
///
/// Lanes zigzag, because a 128-bit shared load is served in quarters of a warp, and two quarters go together only
/// where lanes i and i^1, or i and i^2, ask for the same address. Here lanes i and i^1 share a column, i and i^2 a
/// row: loads of either operand take 2 wavefronts. Lanes in plain row order would take 4 for B.
template <class Cfg>
struct WarpTiling {
  static constexpr int sub_m = Cfg::warp_m / Cfg::subtiles_m, sub_n = Cfg::warp_n / Cfg::subtiles_n;
  static constexpr int lanes_n = sub_n / Cfg::thread_n, lanes_m = sub_m / Cfg::thread_m;
  static_assert(lanes_m * lanes_n == 32 && lanes_m >= 2,
                "a subtile is spread over exactly 32 lanes, two rows at least");
  static constexpr int rows = Cfg::subtiles_m * Cfg::thread_m, cols = Cfg::subtiles_n * Cfg::thread_n;

  int row0, col0;  // of this thread's first element

  __device__ WarpTiling() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int warps_n = Cfg::tile_n / Cfg::warp_n;
    row0 = warp / warps_n * Cfg::warp_m + (lane % 2 + lane / (2 * lanes_n) * 2) * Cfg::thread_m;
    col0 = warp % warps_n * Cfg::warp_n + lane / 2 % lanes_n * Cfg::thread_n;
  }
  __device__ int row(int subtile) const { return row0 + subtile * sub_m; }
  __device__ int col(int subtile) const { return col0 + subtile * sub_n; }

  /// This thread's part of one line of B: `line` points at the line's element col0.
  static __device__ void load_b(float (&b)[cols], const float* line) {
#pragma unroll
    for (int s = 0; s < Cfg::subtiles_n; ++s) load_line<Cfg::thread_n>(b + s * Cfg::thread_n, line + s * sub_n);
  }
  /// The same of one line of A stored k by k (transposed): `line` points at the line's element row0.
  static __device__ void load_a(float (&a)[rows], const float* line) {
#pragma unroll
    for (int s = 0; s < Cfg::subtiles_m; ++s) load_line<Cfg::thread_m>(a + s * Cfg::thread_m, line + s * sub_m);
  }
  /// Four k of A stored row by row: `line` points at the first of them in row 0 of the tile.
  template <int pitch>
  __device__ void load_a_rows(float (&a)[rows][4], const float* line) const {
#pragma unroll
    for (int i = 0; i < rows; ++i) load_line<4>(a[i], line + (row(i / Cfg::thread_m) + i % Cfg::thread_m) * pitch);
  }
};

/// A thread's elements of a warp tile whose block's begins at (row0, col0).
template <class Cfg, class Tiling, int rows, int cols>
__device__ inline void store_warp_tile(const GemmArgs& args, int row0, int col0, const Tiling& at,
                                       const float (&acc)[rows][cols]) {
  static_assert(Cfg::thread_n % 4 == 0, "runs of four");
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = row0 + at.row(i / Cfg::thread_m) + i % Cfg::thread_m;
#pragma unroll
    for (int j = 0; j < cols; j += 4)
      store_run<Cfg, 4>(args, row, col0 + at.col(j / Cfg::thread_n) + j % Cfg::thread_n,
                        *reinterpret_cast<const float (*)[4]>(&acc[i][j]));
  }
}

// f09 to f12: both operands in shared memory k by k, so that a fragment of either is 128-bit loads.
//
//     a_tile[k][m]   pitch tile_m + 4: a transposing store walks k first; 4 banks a line keep 8 lines apart
//     b_tile[k][n]   pitch tile_n, or tile_n + 4 where B is transposed too

template <class Cfg>
struct TransposedTiles {
  static constexpr int a_pitch = Cfg::tile_m + (Cfg::a_unit == unit_row ? 0 : 4);
  static constexpr int b_pitch = Cfg::tile_n + (Cfg::b_unit == unit_row ? 4 : 0);
  static constexpr int a_size = Cfg::tile_k * a_pitch, b_size = Cfg::tile_k * b_pitch;  // floats of one stage
};

/// All products of one pair of tiles.
template <class Cfg, class Tiling>
__device__ inline void multiply_tiles(float (&acc)[Tiling::rows][Tiling::cols], const Tiling& at, const float* a_tile,
                                      const float* b_tile) {
  using Tiles = TransposedTiles<Cfg>;
#pragma unroll
  for (int k = 0; k < Cfg::tile_k; ++k) {
    float a_column[Tiling::rows], b_row[Tiling::cols];
    at.load_a(a_column, a_tile + k * Tiles::a_pitch + at.row0);
    at.load_b(b_row, b_tile + k * Tiles::b_pitch + at.col0);
    outer_product(acc, a_column, b_row);
  }
}
