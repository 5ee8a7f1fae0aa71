#pragma once
// The main loop of h12 and h13: a ring of tiles that cp.async fills and wgmma reads.
//
//     tile t      wait until it has landed, and for the products of tile t - 1 - lag; barrier;
//                 start its products; start the copy of tile t + ahead
//
// lag 1: the products of two tiles are in flight, so that the tensor cores do not run dry at the barrier. The copy goes
// to the buffer of tile t - 2, since after the barrier all warpgroups have waited for that. lag 0: to that of tile
// t - 1, so that one buffer more is on its way; where blocks share an SM, the others keep the tensor cores busy.
//
// wgmma reads both operands from shared memory: no fragment passes through registers. A warpgroup makes 4 warp_m x
// warp_n of the block's tile, warp_m / 16 products of 64 x warp_n under one another; of each product a warp holds 16
// rows (ptx/wgmma.cuh).

#include "ptx/wgmma.cuh"
#include "tile/copy16.cuh"
#include "tile/ring.cuh"
#include "tile/store_by_lane.cuh"
#include "tile/store_by_quad.cuh"
#include "tile/store_rows.cuh"

/// A tile as wgmma reads it: lines in panels of at most 128 bytes, swizzled.
template <class Tile, bool by_lane = false, int panel = (Tile::inner < 64 ? Tile::inner : 64)>
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
  static constexpr int groups_n = Cfg::tile_n / Cfg::warp_n;
  static_assert(Cfg::tile_m % (4 * Cfg::warp_m) == 0, "a block is whole warpgroups");
  int row0, col0;  // of the warpgroup's tile within the block's

  __device__ WarpgroupTiling() {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler knows it the same for a warp
    row0 = group / groups_n * 4 * Cfg::warp_m;
    col0 = group % groups_n * Cfg::warp_n;
  }
};

/// A warp's 16 rows of results, `columns` products wide, stored by `Group`s of 32 columns. What they read first is
/// asked for ahead of the sums, as far as `free` registers hold it.
template <class Cfg, class Group, int columns, int free>
struct StoreGroups {
  static constexpr int groups = columns / 4, each = Group::registers;
  static constexpr int ahead = each * groups <= free ? groups : each < free ? free / each : 1;

  Group group[groups];

  __device__ void read(const GemmArgs& args, int row0, int col0) {
#pragma unroll
    for (int g = 0; g < ahead; ++g) group[g].read(args, row0, col0 + 32 * g);
  }

  __device__ void store(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      // Never false without edges, but the compiler does not know that. It would put all stores after all arithmetic,
      // and memory would wait for the threads first, then they for memory.
      if (col0 + 32 * g < args.n) group[g].store(args, row0, col0 + 32 * g, &value[4 * g]);
      if (g + ahead < groups) group[g + ahead].read(args, row0, col0 + 32 * (g + ahead));
    }
  }
};

/// The way out of a warp's rows: by lane or by quad in 16-byte accesses, or as those of mma.sync where no such access
/// suits a row or a row ends within eight columns (fp32: n = 100).
template <class Cfg, int columns, int free, bool by_lane>
__device__ auto way_out() {
  if constexpr (!Cfg::whole_eights)
    return StoreSixteenRows<Cfg, columns>();
  else if constexpr (by_lane)
    return StoreGroups<Cfg, StoreByLane<Cfg>, columns, free>();
  else
    return StoreGroups<Cfg, StoreByQuad<Cfg>, columns, free>();
}

template <class Cfg, class A, class B>
struct WarpgroupAccumulators {
  using At = WarpgroupTiling<Cfg>;
  // A thread's, at the occupancy asked for, less the sums and what addresses and the main loop's state take.
  static constexpr int registers = 65536 / (Cfg::threads * Cfg::min_blocks), kept = Cfg::edge ? 90 : 28;
  static constexpr int free = (registers < 255 ? registers : 255) - 4 * At::products * At::columns - kept;
  using Rows = decltype(way_out<Cfg, At::columns, free, B::by_lane>());
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

  /// Stores the sums, after read_ahead; `row0`, `col0`: of the warpgroup's tile.
  __device__ void store(Rows& rows, const GemmArgs& args, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < At::products; ++i) {
      if (i > 0) rows.read(args, row_of(row0, i), col0);
      rows.store(args, row_of(row0, i), col0, value[i]);
    }
  }
};

template <class Cfg>
struct WgmmaRing {
  static constexpr int lag = Cfg::min_blocks > 1 ? 0 : 1;
  static constexpr int ahead = Cfg::stages - 1 - lag;  // tiles that are being copied while one is multiplied
  using Buffers = Ring<Cfg::stages, ahead>;
  using A = WgmmaTile<TileA<Cfg>>;
  // Lines of B that lie along k may lie in any order: in the one that results are stored by.
  using B = WgmmaTile<TileB<Cfg>, TileB<Cfg>::k_inner && Cfg::whole_eights>;
  using Sums = WarpgroupAccumulators<Cfg, A, B>;

  const GemmArgs& args;
  unsigned a_tiles, b_tiles;  // shared addresses of the buffers
  KRange<Cfg> range;
  WarpgroupTiling<Cfg> at;
  CopyA16<Cfg, A> copy_a;
  CopyB16<Cfg, B> copy_b;

  __device__ WgmmaRing(const GemmArgs& args, unsigned shared, TileOrigin origin)
      : args(args), a_tiles(shared), b_tiles(shared + Cfg::stages * A::bytes), range(args.k),
        copy_a(copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k)),
        copy_b(copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col)) {}

  /// Goes on to another tile of the result. The buffers must be free.
  __device__ void move_to(TileOrigin origin) {
    copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k);
    copy_b = copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col);
  }

  /// Starts the copy of tile number `tile`, the next along k, if there is one.
  __device__ void start(int tile, int buffer) {
    if (tile < range.tiles) {
      copy_a.start(buffer * A::bytes);
      copy_b.start(buffer * B::bytes);
    }
    cp_async_commit();
  }

  /// Starts the copies of the first tiles. With edges in a loop, which is a third less code and no slower.
  __device__ void fill() {
#pragma unroll(Cfg::edge ? 1 : ahead)
    for (int buffer = 0; buffer < ahead; ++buffer) start(buffer, buffer);
  }

  /// Everything along k of the tile of the result at `origin`, after `fill`. No copy and no product of this warpgroup
  /// is under way afterwards; what the epilogue reads first is. Its operands come to L2 a part at a time, warp after
  /// warp, so that memory serves them between the copies.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin) {
    const int turn = threadIdx.x / 32 * unsigned(range.tiles) / (Cfg::threads / 32);
    Buffers buffers;
    sums.clear();
    for (int tile = 0; tile < range.tiles; ++tile) {
      cp_async_wait<ahead - 1>();
      wgmma_wait<lag>();
      fence_proxy_async();
      __syncthreads();
      sums.multiply(a_tiles + buffers.read * A::bytes, b_tiles + buffers.read * B::bytes, at);
      start(tile + ahead, buffers.write);
      fetch_fused<Cfg, false>(args.fused, origin.row, origin.col, args.m, args.n, tile == turn);
      buffers.turn();
    }
    cp_async_wait<0>();
    sums.read_ahead(rows, args, origin.row + at.row0, origin.col + at.col0);
    sums.finish();
  }
};
