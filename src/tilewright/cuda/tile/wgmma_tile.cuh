#pragma once
// The multiply stage of h12: wgmma reads both operands from shared memory, no fragment passes through registers.
//
// A warpgroup makes 4 warp_m x warp_n of the block's tile, warp_m / 16 products of 64 x warp_n under one another; of
// each product a warp holds 16 rows (ptx/wgmma.cuh).

#include "ptx/wgmma.cuh"
#include "tile/accumulator_store.cuh"
#include "tile/tile16.cuh"

/// A tile as wgmma reads it: lines in panels of at most 128 bytes, swizzled.
template <class Tile, int panel = (Tile::inner < 64 ? Tile::inner : 64)>
using WgmmaTile = SharedTile<Tile::extent, Tile::tile_k, Tile::k_inner, ConflictFree<panel>, panel>;

/// Where the lines of `Tile` from `line` on lie, at k = 16 * step, in the tile at `tile`.
template <class Tile>
__device__ inline unsigned long long wgmma_operand_of(unsigned tile, int line, int step) {
  // The swizzle is wgmma's own: it is given the address as it were without.
  return wgmma_operand<2 * Tile::panel>(tile + 2 * Tile::offset(line, 16 * step), Tile::panel_bytes);
}

template <class Cfg>
struct WarpgroupTiling {
  static constexpr int products = Cfg::warp_m / 16, columns = Cfg::warp_n / 8;
  static constexpr int groups_n = Cfg::tile_n / Cfg::warp_n;
  static_assert(Cfg::tile_m % (4 * Cfg::warp_m) == 0, "a block is whole warpgroups");
  int row0, col0;  // of the warpgroup's tile within the block's

  __device__ WarpgroupTiling() {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler knows it the same for a warp
    row0 = group / groups_n * 4 * Cfg::warp_m;
    col0 = group % groups_n * Cfg::warp_n;
  }
};

template <class Cfg, class A, class B>
struct WarpgroupAccumulators {
  using At = WarpgroupTiling<Cfg>;
  float value[At::products][At::columns][4] = {};

  /// Starts the products of the tiles at `a` and `b`, as one group.
  __device__ void multiply(unsigned a, unsigned b, const At& at) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step)
#pragma unroll
      for (int i = 0; i < At::products; ++i)
        Wgmma<typename Cfg::in_type, !A::k_inner, !B::k_inner, At::columns>::multiply(
            value[i], wgmma_operand_of<A>(a, at.row0 + 64 * i, step), wgmma_operand_of<B>(b, at.col0, step));
    wgmma_commit();
  }

  /// Waits for all products.
  __device__ void finish() {
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < At::products; ++i) wgmma_arrived(value[i]);
  }

  /// To global memory; `row0`, `col0`: of the warpgroup's tile.
  __device__ void store(const GemmArgs& args, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < At::products; ++i)
      store_sixteen_rows<Cfg>(args, row0 + 64 * i + threadIdx.x / 32 % 4 * 16, col0, value[i]);
  }
};
