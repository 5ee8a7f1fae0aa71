// g03: new over g02: TMA and roles (h14), and results that leave by TMA (h15). Stores alone end where the group does
// (grouped/tma_groups.cuh).
#include "grouped/tma_groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/turns.cuh"

constexpr int clearing = 15;  // the consumers' barrier

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    grouped(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  GroupTile at;
  const unsigned tiles = shared_address(shared), results = tiles + Product::tile_bytes;
  const unsigned barriers = results + StagedRows<Cfg>::all_bytes;
  Product product(at.product, tiles, barriers);
  constexpr int readers = Cfg::threads / 32 + (Product::also > 0);
  Turns<readers> turns(barriers + Product::Buffers::barrier_bytes + Cfg::scale_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128), turns.init();
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x < Cfg::threads + 32) copy_drawn_tiles(product, maps, args, at, turns);
    if constexpr (Product::also > 0)
      if (threadIdx.x / 32 == Cfg::threads / 32 + 1) {
        Groups<Cfg> groups(args);
        while (groups.find(turns.take(), at)) {
          product.range = KRange<Cfg>(at.product.k);
          product.load_also(at.origin);
        }
      }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> mine;
    GroupRows staged(maps.out, results);
    Groups<Cfg> groups(args);
    while (groups.find(turns.take(), at)) {
      product.range = KRange<Cfg>(at.product.k);
      if (clear_rest<Cfg>(args, at, Cfg::threads)) continue;
      if (Cfg::axis != axis_k && at.origin.row + mine.row0 >= at.product.m) {
        product.pass();
        continue;
      }
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      const auto landed = [&](int step, unsigned stage) {
        if constexpr (Cfg::axis == axis_k)
          clear_after_group<Product, Cfg::threads>(stage, at.product.k - step * Cfg::tile_k, clearing);
      };
      multiply_rows(product, sums, rows, at, mine, landed);
      leave(sums, rows, at, mine, staged);
      __syncwarp();
    }
    staged.finish();
  }
}
