// h16: new over h15: clusters. Two blocks whose tiles lie under or beside each other each copy half of the operand that
// both need, to both of them: L2 gives it once.
//
// Roles     as in h14, in each block.
// Barriers  full[s]: 1 arrival + bytes of a stage, some of them copied by the peer.
//           empty[s]: 1 arrival per multiplying warpgroup of either block. A block ends when both have ended.
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/cluster_tiles.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"

extern "C" __global__ void __cluster_dims__(ClusterTiles<Cfg>::blocks, 1, 1)
    __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
        gemm(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GemmArgs args,
             const __grid_constant__ WalkArgs walk) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  const unsigned stages = shared_address(shared), results = stages + Product::tile_bytes;
  Product product(args, stages, results + StagedRows<Cfg>::all_bytes);
  const ClusterTiles<Cfg> tiles(args, walk);
  product.share(tiles.down, tiles.across);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  tiles.sync();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      if (product.range.tiles > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      for (unsigned tile = tiles.first; tile < tiles.count; tile += tiles.step) {
        const TilePlace at = tiles.place_of(tile);
        product.load(maps, at.origin, at.entry);
      }
    }
    if constexpr (Product::also > 0)
      if (threadIdx.x / 32 == Cfg::threads / 32 + 1)
        for (unsigned tile = tiles.first; tile < tiles.count; tile += tiles.step)
          product.load_also(tiles.origin_of(tile));
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    StagedRows<Cfg> staged(maps.out, results);
    for (unsigned tile = tiles.first; tile < tiles.count; tile += tiles.step) {
      const TilePlace place = tiles.place_of(tile);
      const TileOrigin origin = place.origin;
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, origin, at);
      sums.leave(rows, args, origin.row + at.row0, origin.col + at.col0, staged, tiles.out_entry(place));
    }
    staged.finish();
  }
  tiles.sync();  // the peer may copy into this block, and arrive at its barriers, until it has ended too
}
