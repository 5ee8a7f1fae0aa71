// g03: new over g02: h14's TMA and roles. A tile's copies run over the end of its group into the next one. A row of a
// product depends on no other row, so stores alone end where the group does. Along k the consumers clear what lies
// after the end, in both operands: what is there may be infinite.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/tma_product.cuh"

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
    grouped(const __grid_constant__ TmaMaps maps, const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = TmaProduct<Cfg>;
  GroupTile at;
  const unsigned tiles = shared_address(shared);
  Product product(at.product, tiles, tiles + Product::tile_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x < Cfg::threads + 32) {  // a warp finds the tiles, a thread of it copies
      Groups<Cfg> groups(args);
      for (unsigned tile = blockIdx.x; groups.find(tile, at); tile += gridDim.x) {
        product.range = KRange<Cfg>(at.product.k);
        const TileOrigin from = {at.origin.row + (Cfg::axis == axis_m ? at.begin : 0),
                                 at.origin.col + (Cfg::axis == axis_n ? at.begin : 0)};
        if (threadIdx.x == Cfg::threads) product.load(maps, from, at.group, Cfg::axis == axis_k ? at.begin : 0);
        __syncwarp();
      }
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> mine;
    Groups<Cfg> groups(args);
    for (unsigned tile = blockIdx.x; groups.find(tile, at); tile += gridDim.x) {
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
          named_barrier_sync(clearing, Cfg::threads);
        }
      });
      sums.store(rows, at.product, at.origin.row + mine.row0, at.origin.col + mine.col0);
      __syncwarp();
    }
  }
}
