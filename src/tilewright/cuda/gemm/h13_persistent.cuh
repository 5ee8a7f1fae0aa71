// h13: new over h12: blocks stay. min_blocks an SM take tile after tile of the result; the first copies of the next
// tile are on their way while the results of this one are stored, and no block starts but once.
//
//     copies      1 1 1 1 1 1   2 2 2 2 2 2 2   3 3 ...
//     products      1 1 1 1 1 1       2 2 2 2 2 2
//     stores                    1 1 1             2 2 2
#include "ptx/grid_dependency.cuh"
#include "tile/wgmma_ring.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const auto origin_of = [&](unsigned tile) { return tile_origin<Cfg>(tile, args.m, args.n); };
  const unsigned all = tiles_of<Cfg>(args.m, args.n);
  TileOrigin origin = origin_of(blockIdx.x);
  WgmmaRing<Cfg> ring(args, shared_address(shared), origin);
  start_after_earlier_grids<Cfg::alone>();
  ring.fill();
  for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x) {
    typename WgmmaRing<Cfg>::Sums sums;
    typename WgmmaRing<Cfg>::Sums::Rows rows;
    ring.multiply(sums, rows, origin);
    const TileOrigin made = origin;
    if (tile + gridDim.x < all) {
      __syncthreads();  // all have read the last tiles
      origin = origin_of(tile + gridDim.x);
      ring.move_to(origin);
      ring.fill();
    }
    sums.store(rows, args, made.row + ring.at.row0, made.col + ring.at.col0);
  }
}
