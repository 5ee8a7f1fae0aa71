// h19: new over h14: the blocks of a cluster share a tile, each with its part of k, and add their sums up through each
// other's shared memory. A product with few tiles and a long k keeps every SM busy, without sums in global memory and
// without a second launch.
//
// Roles, barriers   as in h14.
// Sums              tile/cluster_sums.cuh: who finishes which columns, and where the others' sums lie.
// Named barrier     1: all warpgroups have read their stages, whose place the sums take.
#include "ptx/cluster.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/cluster_sums.cuh"
#include "tile/tma_product.cuh"

extern "C" __global__ void __cluster_dims__(Cfg::cluster_k, 1, 1) __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
    gemm(const __grid_constant__ TmaMaps maps, const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = typename ProductOf<Cfg>::Product;
  using Sums = ClusterSums<Cfg, typename Product::Sums>;
  constexpr int place = Product::tile_bytes > Sums::bytes ? Product::tile_bytes : Sums::bytes;
  const unsigned tiles = shared_address(shared);
  const unsigned rank = cluster_rank();
  Product product(args, tiles, tiles + place);
  const long long steps = product.range.tiles;
  product.range.first = steps * rank / Cfg::cluster_k;
  product.range.tiles = steps * (rank + 1) / Cfg::cluster_k - product.range.first;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x / Cfg::cluster_k, args.m, args.n);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  __syncthreads();
  start_after_earlier_grids<Cfg::alone>();
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      if (product.range.tiles > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      product.load(maps, origin);
    }
    if constexpr (Product::also > 0)
      if (threadIdx.x / 32 == Cfg::threads / 32 + 1) product.load_also(origin);
    __syncwarp();
    cluster_sync();
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    typename Product::Sums sums;
    typename Product::Sums::Rows rows;
    product.multiply(sums, rows, origin, at);
    __syncwarp();
    named_barrier_sync(1, Cfg::threads);
    const Sums all{tiles, rank};
    all.leave(sums.value);
    __syncwarp();
    cluster_sync();
    all.finish(sums.value, args, origin.row + at.row0, origin.col + at.col0);
    __syncwarp();
  }
  cluster_sync();  // a block's shared memory is there until the others have read it
}
