#pragma once
// What a warpgroup multiplies and holds, and how its sums leave.
//
// wgmma reads both operands from shared memory: no fragment passes through registers. A warpgroup makes 4 warp_m x
// warp_n of the block's tile, warp_m / 16 products of 64 x warp_n under one another; of each product a warp holds 16
// rows (ptx/wgmma.cuh).

#include "ptx/wgmma.cuh"
#include "tile/store_by_lane.cuh"
#include "tile/store_by_quad.cuh"
#include "tile/store_rows.cuh"
#include "tile/tile16.cuh"

/// A tile as wgmma reads it: lines in panels of at most 128 bytes, swizzled.
template <class Tile, bool by_lane = false,
          int panel = (Tile::inner < 64   ? Tile::inner
                       : Tile::inner % 64 ? 32
                                          : 64)>
using WgmmaTile = SharedTile<Tile::extent, Tile::tile_k, Tile::k_inner, ConflictFree<panel>, panel, by_lane>;

/// The operand of lines `line` and following at k = 16 * step, in the tile at `tile`.
template <class Tile>
__device__ inline unsigned long long wgmma_operand_of(unsigned tile, int line, int step) {
  // wgmma swizzles by itself: it takes the address before the swizzle.
  return wgmma_operand<2 * Tile::panel>(tile + 2 * Tile::offset(line, 16 * step), Tile::panel_bytes);
}

template <class Cfg>
struct WarpgroupTiling {
  static constexpr int products = Cfg::warp_m / 16, columns = Cfg::warp_n / 8;
  static constexpr int groups_n = Cfg::tile_n / Cfg::warp_n, groups = Cfg::tile_m / (4 * Cfg::warp_m) * groups_n;
  static_assert(Cfg::tile_m % (4 * Cfg::warp_m) == 0, "a block is whole warpgroups");
  int row0, col0;  // of the warpgroup's tile within the block's

  __device__ WarpgroupTiling() {
    // so that the compiler knows it the same for a warp
    const int group = __shfl_sync(~0u, threadIdx.x / 128 % groups, 0);
    row0 = group / groups_n * 4 * Cfg::warp_m;
    col0 = group % groups_n * Cfg::warp_n;
  }
};

/// The columns of group `group` where a warp's rows are `columns` products wide.
template <int columns>
constexpr __device__ int width_of(int group) {
  return columns - 4 * group < 4 ? 16 : 32;
}

/// A warp's 16 rows of results, `columns` products wide, stored by `Group`s of 32 columns, the last of them 32 or 16.
/// What they read first is asked for ahead of the sums, as far as `free` registers hold it.
template <class Cfg, class Group, int columns, int free>
struct StoreGroups {
  static constexpr int groups = (columns + 3) / 4, each = Group::registers;
  static constexpr int ahead = each * groups <= free ? groups : each < free ? free / each : 1;

  Group group[groups];

  __device__ void read(const GemmArgs& args, int row0, int col0) {
#pragma unroll
    for (int g = 0; g < ahead; ++g) group[g].read(args, row0, col0 + 32 * g, width_of<columns>(g));
  }

  __device__ void store(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      // Never false without edges, but the compiler does not know that. It would put all stores after all arithmetic,
      // and memory would wait for the threads first, then they for memory.
      if (col0 + 32 * g < args.n) {
        if (width_of<columns>(g) == 32) {
          group[g].store(args, row0, col0 + 32 * g, &value[4 * g]);
        } else {
          const float last[4][4] = {
              {value[4 * g][0], value[4 * g][1], value[4 * g][2], value[4 * g][3]},
              {value[4 * g + 1][0], value[4 * g + 1][1], value[4 * g + 1][2], value[4 * g + 1][3]}};
          group[g].store(args, row0, col0 + 32 * g, last, 16);
        }
      }
      if (g + ahead < groups) group[g + ahead].read(args, row0, col0 + 32 * (g + ahead), width_of<columns>(g + ahead));
    }
  }

  /// The same by way of shared memory (tile/store_staged.cuh).
  template <class Staged>
  __device__ void stage(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4], Staged& staged,
                        int entry) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      if (g % Staged::groups == 0) staged.begin();
      group[g].stage(args, &value[4 * g], staged, g % Staged::groups);
      if ((g + 1) % Staged::groups == 0) staged.end(row0, col0 + 32 * (g + 1 - Staged::groups), entry);
      if (g + ahead < groups) group[g + ahead].read(args, row0, col0 + 32 * (g + ahead));
    }
  }
};

/// The way out of 32 columns of a warp's rows: by lane or by quad in 16-byte accesses, or as those of mma.sync where no
/// such access suits a row or a row ends within eight columns (fp32: n = 100).
template <class Cfg, bool by_lane>
__device__ auto group_out() {
  if constexpr (!Cfg::whole_eights)
    return StoreSixteenRows<Cfg, 4>();
  else if constexpr (by_lane)
    return StoreByLane<Cfg>();
  else
    return StoreByQuad<Cfg>();
}

template <class Cfg, bool by_lane>
using GroupOut = decltype(group_out<Cfg, by_lane>());

/// The way out of all columns of a warp's rows.
template <class Cfg, int columns, int free, bool by_lane>
__device__ auto way_out() {
  if constexpr (!Cfg::whole_eights)
    return StoreSixteenRows<Cfg, columns>();
  else
    return StoreGroups<Cfg, GroupOut<Cfg, by_lane>, columns, free>();
}

template <class Cfg, class A, class B>
struct WarpgroupAccumulators {
  using At = WarpgroupTiling<Cfg>;
  static constexpr bool by_lane = B::by_lane;
  using Rows = decltype(way_out<Cfg, At::columns, Cfg::free_registers, by_lane>());
  float value[At::products][At::columns][4];

  /// Sets all to 0. The registers are marked as written here: otherwise the compiler zeroes them on the path that skips
  /// the products, takes that for a write between products, and waits after each one.
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < At::products; ++i) {
#pragma unroll
      for (int j = 0; j < 4 * At::columns; ++j) value[i][j / 4][j % 4] = 0;
      wgmma_arrived(value[i]);
    }
  }

  /// Starts the first `products` products of the tiles at `a` and `b`, as one group.
  template <int products = At::products>
  __device__ void multiply(unsigned a, unsigned b, const At& at) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step)
#pragma unroll
      for (int i = 0; i < products; ++i)
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

  /// Stores the sums, after read_ahead; `row0`, `col0`: of the warpgroup's tile.
  __device__ void store(Rows& rows, const GemmArgs& args, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < At::products; ++i) {
      if (i > 0) rows.read(args, row_of(row0, i), col0);
      rows.store(args, row_of(row0, i), col0, value[i]);
    }
  }

  /// The same by way of shared memory, where the result allows that.
  template <class Staged>
  __device__ void leave(Rows& rows, const GemmArgs& args, int row0, int col0, Staged& staged,
                        unsigned entry = out_entry<Cfg>()) const {
    if constexpr (Cfg::staged == 0) {
      store(rows, args, row0, col0);
    } else {
#pragma unroll
      for (int i = 0; i < At::products; ++i) {
        if (i > 0) rows.read(args, row_of(row0, i), col0);
        rows.stage(args, row_of(row0, i), col0, value[i], staged, entry);
      }
    }
  }
};
