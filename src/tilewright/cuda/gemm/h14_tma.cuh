// h14: new over h13: TMA and roles. One thread has whole tiles copied by the hardware; the warpgroups that multiply
// copy nothing, never meet at a barrier of the block, and have the registers that the copying one gave back.
//
// Roles     threads of Cfg::threads multiply and store; one of the warpgroup after them copies.
// Barriers  full[s]: 1 arrival + bytes of a stage. empty[s]: 1 arrival per multiplying warpgroup. (tile/tma_ring.cuh)
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma_prefetch.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/tma_product.cuh"

/// Has L2 fetch B's first tiles for the tile of the result at `origin`. A block that waits for the grid ahead gets them
/// sooner then, and loses nothing. B alone: where it matters there are few rows, and the grid ahead has made A.
template <class Cfg, class Product>
__device__ inline void fetch_ahead(const Product& product, const TensorMap& map, TileOrigin origin) {
  using B = typename Product::B;
  constexpr int most = 2;  // more take the copying unit longer than the wait lasts
  for (int tile = 0; tile < min(int(product.range.tiles), most); ++tile) {
    const int k = (product.range.first + tile) * Cfg::tile_k;
    const int x = B::k_inner ? k : origin.col, y = B::k_inner ? origin.col : k;
#pragma unroll
    for (int i = 0; i < B::inner; i += B::panel) {
      if constexpr (Cfg::b_batched)
        tma_prefetch(map, x + i, y, blockIdx.y);
      else
        tma_prefetch(map, x + i, y);
    }
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    gemm(const __grid_constant__ TmaMaps maps, const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  const unsigned tiles = shared_address(shared);
  Product product(args, tiles, tiles + Product::tile_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  __syncthreads();
  const unsigned all = tiles_of<Cfg>(args.m, args.n);
  if (threadIdx.x == Cfg::threads) fetch_ahead<Cfg>(product, maps.b, tile_origin<Cfg>(blockIdx.x, args.m, args.n));
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      if (product.range.tiles > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x)
        product.load(maps, tile_origin<Cfg>(tile, args.m, args.n));
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x) {
      const TileOrigin origin = tile_origin<Cfg>(tile, args.m, args.n);
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, origin, at);
      sums.store(rows, args, origin.row + at.row0, origin.col + at.col0);
    }
  }
}
