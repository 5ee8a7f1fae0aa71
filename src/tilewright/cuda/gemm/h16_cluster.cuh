// h16: new over h15: clusters. Two blocks whose tiles lie under or beside each other each copy half of the operand that
// both need, to both of them: L2 gives it once.
//
// Roles     as in h14, in each block.
// Barriers  full[s]: 1 arrival + bytes of a stage, some of them copied by the peer.
//           empty[s]: 1 arrival a multiplying warpgroup of either block. A block ends when both have ended.
#include "ptx/cluster.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"

/// What a cluster makes at a time.
struct ClusterTile {
  static constexpr int blocks = Cfg::cluster_m * Cfg::cluster_n, group_m = Cfg::group_m;
  static constexpr int tile_m = Cfg::cluster_m * Cfg::tile_m, tile_n = Cfg::cluster_n * Cfg::tile_n;
};

extern "C" __global__ void __cluster_dims__(ClusterTile::blocks, 1, 1)
    __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
        gemm(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = TmaProduct<Cfg>;
  const unsigned tiles = shared_address(shared), results = tiles + Product::tile_bytes;
  Product product(args, tiles, results + StagedRows<Cfg>::all_bytes);
  const unsigned rank = cluster_rank(), down = rank / Cfg::cluster_n, across = rank % Cfg::cluster_n;
  static_assert(ClusterTile::blocks == 2, "all blocks of a cluster copy into one another");
  product.a.part = across, product.b.part = down;
  product.a.blocks = product.b.blocks = 3;
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  cluster_sync();
  start_after_earlier_grids<Cfg::alone>();
  const unsigned all = tiles_of<ClusterTile>(args.m, args.n);
  const auto origin_of = [&](unsigned tile) {
    const TileOrigin first = tile_origin<ClusterTile>(tile, args.m, args.n);
    return TileOrigin{first.row + int(down) * Cfg::tile_m, first.col + int(across) * Cfg::tile_n};
  };
  const unsigned start = blockIdx.x / ClusterTile::blocks, step = gridDim.x / ClusterTile::blocks;
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      if (product.range.tiles > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      for (unsigned tile = start; tile < all; tile += step) product.load(maps, origin_of(tile));
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    StagedRows<Cfg> staged(maps.out, results);
    for (unsigned tile = start; tile < all; tile += step) {
      const TileOrigin origin = origin_of(tile);
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, origin, at);
      sums.leave(rows, args, origin.row + at.row0, origin.col + at.col0, staged);
    }
    staged.finish();
  }
  __syncwarp();
  cluster_sync();  // the peer may copy into this block, and arrive at its barriers, until it has ended too
}
