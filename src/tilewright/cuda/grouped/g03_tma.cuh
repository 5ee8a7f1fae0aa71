// g03: new over g02: TMA and roles (h14), and along k results that leave by TMA (h15). A tile's copies run over the end
// of its group into the next one. A row of a product depends on no other row, so stores alone end where the group does.
// Along k the consumers clear what lies after the end, in both operands: what is there may be infinite.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"
#include "tile/turns.cuh"

constexpr int clearing = 15;  // the consumers' barrier

/// Sets a tile to 0 from k = `left` on. Its lines lie along m or n: TMA could not start anywhere in one along k.
template <class Tile>
__device__ inline void clear_from(unsigned tile, int left) {
  static_assert(!Tile::k_inner, "lines along m or n");
  constexpr int chunks = Tile::inner / 8;  // of a line
  for (int i = threadIdx.x; i < (Tile::lines - left) * chunks; i += Cfg::threads) {
    const unsigned at = Tile::address(tile, Tile::place(left + i / chunks, i % chunks * 8));
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    grouped(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = TmaProduct<Cfg>;
  GroupTile at;
  const unsigned tiles = shared_address(shared), results = tiles + Product::tile_bytes;
  const unsigned barriers = results + StagedRows<Cfg>::all_bytes;
  Product product(at.product, tiles, barriers);
  Turns<Cfg::threads / 32> turns(barriers + Product::Buffers::barrier_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128), turns.init();
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x < Cfg::threads + 32) {  // a warp finds the tiles, a thread of it draws and copies
      const bool first = threadIdx.x == Cfg::threads;
      Groups<Cfg> groups(args);
      unsigned tile = blockIdx.x;
      for (bool more = true; more;) {
        unsigned next = 0;
        if (first) turns.give(tile), next = gridDim.x + atomicAdd(args.drawn, 1);
        more = groups.find(tile, at);
        if (more) {
          product.range = KRange<Cfg>(at.product.k);
          const TileOrigin from = {at.origin.row + (Cfg::axis == axis_m ? at.begin : 0),
                                   at.origin.col + (Cfg::axis == axis_n ? at.begin : 0)};
          if (first) product.load(maps, from, at.group, Cfg::axis == axis_k ? at.begin : 0);
          tile = __shfl_sync(~0u, next, 0);
        }
      }
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> mine;
    StagedRows<Cfg> staged(maps.out, results);
    Groups<Cfg> groups(args);
    while (groups.find(turns.take(), at)) {
      product.range = KRange<Cfg>(at.product.k);
      if (Cfg::axis != axis_k && at.origin.row + mine.row0 >= at.product.m) {
        product.pass();
        continue;
      }
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, at.origin, mine, [&](int step, unsigned stage) {
        if constexpr (Cfg::axis == axis_k) {
          const int left = at.product.k - step * Cfg::tile_k;
          if (left >= Cfg::tile_k) return;
          clear_from<typename Product::A>(stage, left);
          clear_from<typename Product::B>(stage + Product::A::bytes, left);
          fence_proxy_async();
          __syncwarp();
          named_barrier_sync(clearing, Cfg::threads);
        }
      });
      sums.leave(rows, at.product, at.origin.row + mine.row0, at.origin.col + mine.col0, staged, at.group);
      __syncwarp();
    }
    staged.finish();
  }
}
