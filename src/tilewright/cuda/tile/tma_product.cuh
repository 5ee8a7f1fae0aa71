#pragma once
// The two sides of h14's main loop: a thread that has tiles copied by TMA, and warpgroups that multiply them.
//
//     producer   stage free?  expect its bytes, start the copies of A and B; next stage
//     consumer   stage landed?  start its products; wait for those of the stage before, and give that one back
//
// So the products of two stages are in flight, as in h12 and h13, but no thread that multiplies copies, computes an
// address of global memory, or waits at a barrier of the whole block.

#include "ptx/warpgroup.cuh"
#include "tile/tma_ring.cuh"
#include "tile/wgmma_sums.cuh"

struct TmaMaps {
  TensorMap a, b;
};
struct TmaMapsAndOut {
  TensorMap a, b, out;
};

/// `also`: lanes of another warp that bring something to each stage.
template <class Cfg, int also_ = 0>
struct TmaProduct {
  static constexpr int also = also_;
  using A = WgmmaTile<SharedTile<Cfg::tile_m, Cfg::tile_k, Cfg::a_unit != unit_row>>;
  using B = WgmmaTile<SharedTile<Cfg::b_extent, Cfg::tile_k, Cfg::b_unit == unit_row>>;
  using Sums = WarpgroupAccumulators<Cfg, A, B>;
  using Buffers = TmaRing<Cfg::stages, Cfg::cluster_m * Cfg::cluster_n, also>;
  static constexpr int stage_bytes = A::bytes + B::bytes, tile_bytes = Cfg::stages * stage_bytes;

  const GemmArgs& args;
  unsigned tiles;  // shared address of the stages, each a tile of A and one of B
  Buffers buffers;
  KRange<Cfg> range;
  TmaTile<A, Cfg::cluster_n> a;  // blocks of a cluster beside each other share A, those under each other B
  TmaTile<B, Cfg::cluster_m> b;

  __device__ TmaProduct(const GemmArgs& args, unsigned tiles, unsigned barriers)
      : args(args), tiles(tiles), buffers(barriers), range(args.k) {}

  /// In a cluster whose blocks lie in it as ClusterTiles says: this one copies its part of what others need too.
  __device__ void share(unsigned down, unsigned across) {
    a.part = across, b.part = down;
    a.blocks = b.blocks = 3;  // both
  }

  /// The producer: everything along k for the tile of the result at `origin`, from entry `entry` of what is a batch
  /// and from k = first_k on.
  template <class Maps>
  __device__ void load(const Maps& maps, TileOrigin origin, int entry = blockIdx.y, int first_k = 0) {
    for (int tile = 0; tile < range.tiles; ++tile, buffers.turn()) {
      const unsigned to = tiles + buffers.stage * stage_bytes;
      const int k = first_k + (range.first + tile) * Cfg::tile_k;
      buffers.begin(stage_bytes);
      a.template load<Cfg::a_batched>(to, maps.a, origin.row, k, entry, buffers.full());
      b.template load<Cfg::b_batched>(to + A::bytes, maps.b, origin.col, k, entry, buffers.full());
    }
  }

  /// What comes to the same stages besides: nothing here (tile/promoted_tma.cuh).
  __device__ void load_also(TileOrigin) {}

  /// A consumer whose part of the tile is outside the result: it gives stage after stage back. Its warps stay together:
  /// one that is a turn of the ring late or early would take a stage's parity for another turn's.
  __device__ void pass() {
    for (int tile = 0; tile < range.tiles; ++tile) {
      buffers.wait();
      __syncwarp();  // lanes may have parted while they waited
      named_barrier_sync(1 + threadIdx.x / 128, 128);
      buffers.turn();
      release_previous();
    }
  }

  /// A consumer: the products of the same. What the epilogue reads first is on its way afterwards. Before its products
  /// each stage is given to `landed`, with the number of its tile along k. `products`: the rows after the first so many
  /// times 64 lie outside the result, and are not multiplied.
  template <int products = WarpgroupTiling<Cfg>::products, class Landed>
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at,
                           const Landed& landed) {
    const int turn = threadIdx.x / 32 * unsigned(range.tiles) / (Cfg::threads / 32);
    __syncwarp();  // lanes may have parted while they stored
    sums.clear();
    for (int tile = 0; tile < range.tiles; ++tile, buffers.turn()) {
      const unsigned from = tiles + buffers.stage * stage_bytes;
      buffers.wait();
      landed(tile, from);
      sums.template multiply<products>(from, from + A::bytes, at);
      wgmma_wait<1>();
      if (tile > 0) release_previous();
      fetch_fused<Cfg, false>(args.fused, origin.row, origin.col, args.m, args.n, tile == turn);
    }
    sums.read_ahead(rows, args, origin.row + at.row0, origin.col + at.col0);
    sums.finish();
    if (range.tiles > 0) release_previous();
  }
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at) {
    multiply(sums, rows, origin, at, [](int, unsigned) {});
  }

  __device__ void release_previous() const { buffers.release_previous(threadIdx.x % 128); }
};

/// The two sides for operands of Cfg::in_type: others where a sum is more than its products (tile/promoted_tma.cuh).
template <class Cfg, class Type = typename Cfg::in_type>
struct ProductOf {
  using Product = TmaProduct<Cfg>;
};
