#pragma once
// The operands of a block, as the shared-memory rungs read them: tiles from one row of tiles of A and one column of
// tiles of B. Included by f03 to f12, which differ in what they do with these.

#include "tile/copy.cuh"
#include "tile/raster.cuh"

/// Shared memory as [m][k]: a line of the tile is a row of A.
__device__ inline TileSource<float> source_a(const GemmArgs& args) {
  return {static_cast<const float*>(args.a) + blockIdx.y * args.a_batch, args.a_row, args.a_col, args.m, args.k};
}
/// Shared memory as [k][m]: a line of the tile is a column of A.
__device__ inline TileSource<float> source_a_transposed(const GemmArgs& args) {
  return {static_cast<const float*>(args.a) + blockIdx.y * args.a_batch, args.a_col, args.a_row, args.k, args.m};
}
/// Shared memory as [k][n]: a line of the tile is a row of B.
__device__ inline TileSource<float> source_b(const GemmArgs& args) {
  return {static_cast<const float*>(args.b) + blockIdx.y * args.b_batch, args.b_row, args.b_col, args.k, args.n};
}
/// Shared memory as [n][k]: a line of the tile is a column of B.
__device__ inline TileSource<float> source_b_transposed(const GemmArgs& args) {
  return {static_cast<const float*>(args.b) + blockIdx.y * args.b_batch, args.b_col, args.b_row, args.n, args.k};
}

// The copies. `wide` asks for 128-bit accesses, which only the aligned path takes.
template <class Cfg, int pitch, bool wide>
using CopyA = TileCopy<float, Cfg::tile_m, Cfg::tile_k, pitch, Cfg::threads, Cfg::a_unit != unit_row,
                       wide && !Cfg::edge ? 4 : 1, Cfg::edge>;
template <class Cfg, int pitch, bool wide>
using CopyATransposed = TileCopy<float, Cfg::tile_k, Cfg::tile_m, pitch, Cfg::threads, Cfg::a_unit == unit_row,
                                 wide && !Cfg::edge ? 4 : 1, Cfg::edge>;
template <class Cfg, int pitch, bool wide>
using CopyB = TileCopy<float, Cfg::tile_k, Cfg::tile_n, pitch, Cfg::threads, Cfg::b_unit != unit_row,
                       wide && !Cfg::edge ? 4 : 1, Cfg::edge>;

// The same by cp.async, each operand with an edge of its own. Transposing cp.async moves one element a time, whatever the
// alignment: only the direct direction is wide.
template <class Cfg, int pitch>
using AsyncA = AsyncTileCopy<float, Cfg::tile_k, Cfg::tile_m, pitch, Cfg::threads,
                             Cfg::a_unit == unit_row, Cfg::a_unit == unit_row && !Cfg::a_edge ? 4 : 1, Cfg::a_edge>;
template <class Cfg, int pitch>
using AsyncB = AsyncTileCopy<float, Cfg::tile_k, Cfg::tile_n, pitch, Cfg::threads,
                             Cfg::b_unit != unit_row, Cfg::b_unit != unit_row && !Cfg::b_edge ? 4 : 1, Cfg::b_edge>;
