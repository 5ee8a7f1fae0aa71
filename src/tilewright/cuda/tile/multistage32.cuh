#pragma once
// The main loop of f12: a tile of the result from a ring of buffers, in fp32 (gemm/f12_multistage.cuh says how).

#include "tile/copy.cuh"
#include "tile/ring.cuh"
#include "tile/simt.cuh"

/// The tile of the result at `origin`, through buffers from `shared` on. `before_copies`: as in tile/multistage.cuh.
template <class Cfg, class Before>
__device__ inline void multistage32(const GemmArgs& args, float* shared, TileOrigin origin,
                                    const Before& before_copies) {
  using Tiles = TransposedTiles<Cfg>;
  float* const a_tiles = shared;
  float* const b_tiles = shared + Cfg::stages * Tiles::a_size;
  const KRange<Cfg> range(args.k);
  AsyncA<Cfg, Tiles::a_pitch> copy_a(a_tiles, lines_of_a<float, false>(args), range.first * Cfg::tile_k, origin.row);
  AsyncB<Cfg, Tiles::b_pitch> copy_b(b_tiles, lines_of_b<float, true>(args), range.first * Cfg::tile_k, origin.col);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  constexpr unsigned a_bytes = Tiles::a_size * sizeof(float), b_bytes = Tiles::b_size * sizeof(float);
  // One of `parts` equal parts of the copy of the next tile.
  const auto start_part = [&](int stage, int part, int parts) {
    copy_a.template start_part<Cfg::cache_all>(stage * a_bytes, part, parts);
    copy_b.template start_part<Cfg::cache_all>(stage * b_bytes, part, parts);
    if (part + 1 == parts) copy_a.advance(), copy_b.advance();
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  SumsOfSums<Cfg, Tiling::rows, Tiling::cols> sums;
  float a_column[2][Tiling::rows], b_row[2][Tiling::cols];
  before_copies();
  Ring<Cfg::stages> ring;
  ring.fill(range.tiles, [&](int stage) { start_part(stage, 0, 1); });
  fetch_fused<Cfg>(args.fused, origin.row, origin.col, args.m, args.n);
  ring.wait();
  const float* const a_first = a_tiles + at.row0;
  const float* const b_first = b_tiles + at.col0;
  if (range.tiles > 0) {
    at.load_a(a_column[0], a_first);
    at.load_b(b_row[0], b_first);
  }

  // One tile's products; `copying` while there are tiles whose copy has not been started.
  const auto multiply_tile = [&](bool copying, bool last) {
    const float* a_tile = a_first + ring.read * Tiles::a_size;
    const float* b_tile = b_first + ring.read * Tiles::b_size;
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      // The copies are spread over the steps: sent at once they would queue, and hold the warp that sends them.
      constexpr int parts = Cfg::tile_k < 8 ? Cfg::tile_k : 8, every = Cfg::tile_k / parts;
      if (copying && k % every == 0) start_part(ring.write, k / every, parts);
      if (k == Cfg::tile_k - 1) {
        ring.advance();
        a_tile = a_first + ring.read * Tiles::a_size;
        b_tile = b_first + ring.read * Tiles::b_size;
      }
      const int next = (k + 1) % Cfg::tile_k;
      if (next != 0 || !last) {
        at.load_a(a_column[(k + 1) % 2], a_tile + next * Tiles::a_pitch);
        at.load_b(b_row[(k + 1) % 2], b_tile + next * Tiles::b_pitch);
      }
      outer_product(acc, a_column[k % 2], b_row[k % 2]);
    }
    sums.after_tile(acc);
  };
  int tile = 0;
  if constexpr (Cfg::a_edge && Cfg::b_edge &&
                Cfg::split_k == 1) {  // copies beyond the end of k fill zeros and read nothing
    for (; tile < range.tiles; ++tile) multiply_tile(true, tile + 1 == range.tiles);
  } else {
    for (; tile < range.tiles - (Cfg::stages - 1); ++tile) multiply_tile(true, false);
    for (; tile < range.tiles; ++tile) multiply_tile(false, tile + 1 == range.tiles);
  }
  cp_async_wait<0>();
  sums.finish(acc);
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
