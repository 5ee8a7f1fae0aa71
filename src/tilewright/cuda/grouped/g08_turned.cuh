// g08: new over g03: the product is turned, so that groups cut its columns, which wgmma takes 16 at a time; rows it
// takes 64 at a time. A group's columns are shared out evenly among its tiles, and a tile is as wide as its columns
// ask.
//
//     out^T [n, M] = B[group]^T [n, k] @ A^T [k, rows of the group]      n in tiles of tile_m, rows in tiles of tile_n
//
// Rows of the result are columns of a tile: they leave by way of movmatrix, in sectors of 16 elements.
//
// Roles, barriers   as in g03.
#include "grouped/tma_groups.cuh"
#include "grouped/turned_tiles.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/turns.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    grouped(const __grid_constant__ TmaMaps maps, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(Cfg::axis == axis_n, "groups cut columns");
  using Product = TmaProduct<Cfg>;
  GroupTile at;
  const unsigned tiles = shared_address(shared), barriers = tiles + Product::tile_bytes;
  Product product(at.product, tiles, barriers);
  Turns<Cfg::threads / 32> turns(barriers + Product::Buffers::barrier_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128), turns.init();
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x < Cfg::threads + 32) {
      const bool first = threadIdx.x == Cfg::threads;
      draw_tiles(args, at, turns, [&] {
        product.range = KRange<Cfg>(at.product.k);
        if (first) load_turned(product, maps, at);
      });
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> mine;
    Groups<Cfg> groups(args);
    while (groups.find(turns.take(), at)) {
      product.range = KRange<Cfg>(at.product.k);
      const TurnedTile<Cfg> tile(at);
      typename Product::Sums sums;
      __syncwarp();  // lanes may have parted while they stored
      sums.clear();
      with_columns<Cfg::tile_n / 8>(
          tile.columns, [&](auto eights) { multiply_columns<decltype(eights)::value>(product, sums, mine); });
#pragma unroll
      for (int i = 0; i < WarpgroupTiling<Cfg>::products; ++i)
        store_turned<Cfg>(sums.value[i], at.product, at.origin.row + mine.row0 + 64 * i, tile);
      __syncwarp();
    }
  }
}
