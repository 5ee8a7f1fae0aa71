#pragma once
// What f09 to f12 share: both operands in shared memory k by k, so that a fragment of either is 128-bit loads.
//
//     a_tile[k][m]   pitch tile_m + 4: a transposing store walks k first; 4 banks a line keep 8 lines apart
//     b_tile[k][n]   pitch tile_n, or tile_n + 4 where B is transposed too

#include "gemm/operands.cuh"
#include "tile/simt.cuh"
#include "tile/simt_store.cuh"

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
