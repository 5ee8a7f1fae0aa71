#pragma once
// The 16-bit operands of a block, for h01 and h03 to h13: their tiles in shared memory and what copies them there.

#include "tile/copy16.cuh"
#include "tile/raster.cuh"

template <class Cfg, class Swz = NoSwizzle>
using TileA = SharedTile<Cfg::tile_m, Cfg::tile_k, Cfg::a_unit != unit_row, Swz>;
template <class Cfg, class Swz = NoSwizzle>
using TileB = SharedTile<Cfg::tile_n, Cfg::tile_k, Cfg::b_unit == unit_row, Swz>;

template <class Cfg, class Tile>
using CopyA16 = Copy16<Tile, Cfg::threads, Cfg::a_wide, Cfg::a_edge, Cfg::a_sectors>;
template <class Cfg, class Tile>
using CopyB16 = Copy16<Tile, Cfg::threads, Cfg::b_wide, Cfg::b_edge, Cfg::b_sectors>;

/// The copy of A's tiles from row `m0` on and from column `k0` on.
template <class Cfg, class Tile>
__device__ inline CopyA16<Cfg, Tile> copy_of_a(const GemmArgs& args, unsigned tile, int m0, int k0) {
  const auto* base = static_cast<const unsigned short*>(args.a) + blockIdx.y * args.a_batch;
  if constexpr (Tile::k_inner) return {tile, Source16{base, args.a_row, args.a_col, args.m, args.k}, m0, k0};
  return {tile, Source16{base, args.a_col, args.a_row, args.k, args.m}, k0, m0};
}
/// The copy of B's tiles from row `k0` and column `n0` on.
template <class Cfg, class Tile>
__device__ inline CopyB16<Cfg, Tile> copy_of_b(const GemmArgs& args, unsigned tile, int k0, int n0) {
  const auto* base = static_cast<const unsigned short*>(args.b) + blockIdx.y * args.b_batch;
  if constexpr (Tile::k_inner) return {tile, Source16{base, args.b_col, args.b_row, args.n, args.k}, n0, k0};
  return {tile, Source16{base, args.b_row, args.b_col, args.k, args.n}, k0, n0};
}
