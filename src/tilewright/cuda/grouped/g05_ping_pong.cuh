// g05: new over g03: turns (h17). Two warpgroups make tiles of their own, one after the other: while one stores, the
// other has the tensor cores. Groups of few k, or of few rows, are mostly stores and first copies.
//
// Roles, barriers   as in g03. A stage is read by one warpgroup, which empties it.
// Tiles             each warpgroup learns of all that its block draws, and skips the stages of the other's.
// Turns             turn[w]: 4 arrivals, the other warpgroup's warps, which have waited for all stages of its tile.
//                   Before that w must not wait for a stage: the parity of an earlier fill would pass for its own.
#include "grouped/tma_groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/turns.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    grouped(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  static_assert(Cfg::turns == 2 && Cfg::threads == 256, "two warpgroups, each with tiles of its own");
  using Product = TmaProduct<Cfg>;
  using Drawn = Turns<Cfg::threads / 32>;
  GroupTile at;
  const unsigned tiles = shared_address(shared), results = tiles + Product::tile_bytes;
  const unsigned barriers = results + StagedRows<Cfg>::all_bytes;
  Product product(at.product, tiles, barriers);
  Drawn turns(barriers + Product::Buffers::barrier_bytes);
  const unsigned turn = turns.at + Drawn::bytes;  // two barriers
  if (threadIdx.x == 0) {
    product.buffers.init(1), turns.init();
    mbarrier_init(turn, 4), mbarrier_init(turn + 8, 4);
    mbarrier_init_fence();
  }
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x < Cfg::threads + 32) copy_drawn_tiles(product, maps, args, at, turns);
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> mine;
    GroupRows staged(maps.out, results);
    Groups<Cfg> groups(args);
    const unsigned set = __shfl_sync(~0u, threadIdx.x / 128, 0);
    for (unsigned number = 0; groups.find(turns.take(), at); ++number) {
      product.range = KRange<Cfg>(at.product.k);
      if (number % 2 != set) {
        product.buffers.skip(product.range.tiles);
        continue;
      }
      if (number > 0) mbarrier_wait(turn + 8 * set, (number - 1) / 2 % 2);
      const auto pass_on = [&] {
        __syncwarp();  // lanes may have parted while they waited
        if (threadIdx.x % 32 == 0) mbarrier_arrive(turn + 8 * (set ^ 1));
        __syncwarp();
      };
      if (product.range.tiles == 0) pass_on();
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      const auto landed = [&](int step, unsigned stage) {
        if constexpr (Cfg::axis == axis_k)
          clear_after_group<Product, 128>(stage, at.product.k - step * Cfg::tile_k, 1 + set);
        if (step + 1 == product.range.tiles) pass_on();
      };
      multiply_rows(product, sums, rows, at, mine, landed);
      leave(sums, rows, at, mine, staged);
      __syncwarp();
    }
    staged.finish();
  }
}
