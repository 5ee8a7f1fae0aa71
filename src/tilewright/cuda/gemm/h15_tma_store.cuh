// h15: new over h14: results leave by TMA. A warp rounds its sums into buffers in shared memory, 16 rows x 64 columns
// each, and goes on to the next tile's products while TMA stores them.
//
// Roles, barriers   as in h14.
// Buffers           Cfg::staged of each warp that multiplies, waited for by its first lane (tile/store_staged.cuh).
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    gemm(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  const unsigned tiles = shared_address(shared), results = tiles + Product::tile_bytes;
  Product product(args, tiles, results + StagedRows<Cfg>::all_bytes);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  const unsigned all = tiles_of<Cfg>(args.m, args.n);
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      if (product.range.tiles > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x)
        product.load(maps, tile_origin<Cfg>(tile, args.m, args.n));
    }
    if constexpr (Product::also > 0)
      if (threadIdx.x / 32 == Cfg::threads / 32 + 1)
        for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x)
          product.load_also(tile_origin<Cfg>(tile, args.m, args.n));
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    StagedRows<Cfg> staged(maps.out, results);
    for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x) {
      const TileOrigin origin = tile_origin<Cfg>(tile, args.m, args.n);
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      product.multiply(sums, rows, origin, at);
      sums.leave(rows, args, origin.row + at.row0, origin.col + at.col0, staged);
    }
    staged.finish();
  }
}
