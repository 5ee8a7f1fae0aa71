// h15: new over h14: results leave by TMA. A warp rounds its sums into buffers in shared memory, 16 rows x 64 columns
// each, and goes on to the next tile's products while TMA stores them.
//
// Roles, barriers   as in h14.
// Buffers           Cfg::staged of each warp that multiplies, waited for by its first lane (tile/store_staged.cuh).
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/cluster_tiles.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    gemm(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GemmArgs args,
         const __grid_constant__ WalkArgs walk) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  const unsigned stages = shared_address(shared), results = stages + Product::tile_bytes;
  Product product(args, stages, results + StagedRows<Cfg>::all_bytes);
  const ClusterTiles<Cfg> tiles(args, walk);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  __syncthreads();
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
}
