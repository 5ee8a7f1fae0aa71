// h17: new over h16: turns. Two sets of warpgroups each make tiles of their own, one after the other: while one stores,
// the other has the tensor cores.
//
//     products      1 1 1 1 1 1 2 2 2 2 2 2 3 3 3 3 3 3
//     set 0         1 1 1 1 1 1   stores    3 3 3 3 3 3
//     set 1                     2 2 2 2 2 2   stores
//
// Roles, barriers   as in h16; a stage is read by one set, so its warpgroups alone empty it.
// Named barriers    1 + set: its turn. A set must not wait for a stage while an earlier fill of it is not waited for
// yet:
//                   the parity of the one before that would pass for its own.
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
  using Product = TmaProduct<Cfg>;
  constexpr int of_a_set = Cfg::threads / Cfg::turns;
  const unsigned stages = shared_address(shared), results = stages + Product::tile_bytes;
  Product product(args, stages, results + StagedRows<Cfg>::all_bytes);
  const ClusterTiles<Cfg> tiles(args, walk);
  product.share(tiles.down, tiles.across);
  if (threadIdx.x == 0) product.buffers.init(of_a_set / 128);
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
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    StagedRows<Cfg> staged(maps.out, results);
    const unsigned set = __shfl_sync(~0u, threadIdx.x / of_a_set, 0);
    product.buffers.skip(set * product.range.tiles);
    for (unsigned tile = tiles.first + set * tiles.step; tile < tiles.count; tile += Cfg::turns * tiles.step) {
      const TilePlace place = tiles.place_of(tile);
      const TileOrigin origin = place.origin;
      if (tile != tiles.first && product.range.tiles > 0) named_barrier_sync(1 + set, Cfg::threads);
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, origin, at, [&](int step, unsigned) {
        if (step + 1 == product.range.tiles && tile + tiles.step < tiles.count)
          named_barrier_arrive(1 + (set + 1) % Cfg::turns, Cfg::threads);
      });
      product.buffers.skip((Cfg::turns - 1) * product.range.tiles);
      sums.leave(rows, args, origin.row + at.row0, origin.col + at.col0, staged, tiles.out_entry(place));
    }
    staged.finish();
  }
  tiles.sync();
}
