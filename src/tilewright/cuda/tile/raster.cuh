#pragma once
// Which tile of the result a block makes.

struct TileOrigin {
  int row, col;  // of the tile's first element
};

/// The origin of tile number `index`. Tiles are walked along rows of tiles; with group_m > 1, down a group of
/// group_m tile rows first, so that blocks running together share operands in L2:
///
///     group_m = 1:  0 1 2 3     group_m = 2:  0 2 4 6
///                   4 5 6 7                   1 3 5 7
template <int tile_m, int tile_n, int group_m = 1>
__device__ inline TileOrigin tile_origin(unsigned index, int m, int n) {
  const unsigned tiles_n = (n + tile_n - 1) / tile_n;
  if constexpr (group_m == 1) return {int(index / tiles_n) * tile_m, int(index % tiles_n) * tile_n};
  const unsigned tiles_m = (m + tile_m - 1) / tile_m;
  const unsigned group = index / (group_m * tiles_n);
  const unsigned within = index % (group_m * tiles_n);
  const unsigned rows = min(tiles_m - group * group_m, unsigned(group_m));  // the last group may be shorter
  return {int(group * group_m + within % rows) * tile_m, int(within / rows) * tile_n};
}

/// How many there are.
template <int tile_m, int tile_n>
__device__ inline unsigned tiles_of(int m, int n) {
  return ((m + tile_m - 1) / tile_m) * ((n + tile_n - 1) / tile_n);
}
