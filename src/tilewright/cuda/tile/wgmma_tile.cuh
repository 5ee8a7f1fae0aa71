#pragma once
// The multiply stage of h12 and h13: wgmma reads both operands from shared memory, no fragment passes through registers.
//
// A warpgroup makes 4 warp_m x warp_n of the block's tile, warp_m / 16 products of 64 x warp_n under one another; of
// each product a warp holds 16 rows (ptx/wgmma.cuh).

#include "ptx/wgmma.cuh"
#include "tile/result_rows.cuh"
#include "tile/tile16.cuh"

/// A tile as wgmma reads it: lines in panels of at most 128 bytes, swizzled.
template <class Tile, bool by_lane = false, int panel = (Tile::inner < 64 ? Tile::inner : 64)>
using WgmmaTile = SharedTile<Tile::extent, Tile::tile_k, Tile::k_inner, ConflictFree<panel>, panel, by_lane>;

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
  // A thread's, at the occupancy asked for, less the sums and what addresses and the main loop's state take.
  static constexpr int registers = 65536 / (Cfg::threads * Cfg::min_blocks), kept = Cfg::edge ? 90 : 28;
  static constexpr int free = (registers < 255 ? registers : 255) - 4 * At::products * At::columns - kept;
  using Rows = ResultRows<Cfg, At::columns, free, B::by_lane>;
  float value[At::products][At::columns][4];

  /// To zero, here: where the compiler writes them on a way around the products only, it takes that for a write among
  /// them, and waits for each.
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < At::products; ++i) {
#pragma unroll
      for (int j = 0; j < 4 * At::columns; ++j) value[i][j / 4][j % 4] = 0;
      wgmma_arrived(value[i]);
    }
  }

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

  /// A warp's first row of product i, where the warpgroup's tile starts at `row0`.
  static __device__ int row_of(int row0, int i) { return row0 + 64 * i + threadIdx.x / 32 % 4 * 16; }

  /// Asks for what storing the sums will need first: while products are under way.
  __device__ void read_ahead(Rows& rows, const GemmArgs& args, int row0, int col0) const {
    rows.read(args, row_of(row0, 0), col0);
  }

  /// To global memory, behind read_ahead; `row0`, `col0`: of the warpgroup's tile.
  __device__ void store(Rows& rows, const GemmArgs& args, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < At::products; ++i) {
      if (i > 0) rows.read(args, row_of(row0, i), col0);
      rows.store(args, row_of(row0, i), col0, value[i]);
    }
  }
};
