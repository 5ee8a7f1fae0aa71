// h12: new over h11: Hopper's wgmma. A warpgroup multiplies straight from shared memory, asynchronously: no fragments,
// no ldmatrix, and while the tensor cores work on one tile the same threads start the copy of a later one
// (tile/wgmma_ring.cuh).
#include "ptx/grid_dependency.cuh"
#include "tile/wgmma_ring.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  WgmmaRing<Cfg> ring(args, shared_address(shared), origin);
  typename WgmmaRing<Cfg>::Sums sums;
  start_after_earlier_grids<Cfg::alone>();
  ring.fill();
  typename WgmmaRing<Cfg>::Sums::Rows rows;
  ring.multiply(sums, rows, origin);
  sums.store(rows, args, origin.row + ring.at.row0, origin.col + ring.at.col0);
}
