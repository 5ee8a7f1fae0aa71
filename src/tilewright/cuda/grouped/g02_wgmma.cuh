// g02: new over g01: h13's wgmma, and its overlap: the first copies of the next tile, of this group or another, are on
// their way while the results of this one are stored.
#include "grouped/groups.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/wgmma_ring.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    grouped(const __grid_constant__ GroupedArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  start_after_earlier_grids<Cfg::alone>();  // the ends too may be what an earlier grid writes
  Groups<Cfg> groups(args);
  GroupTile at;
  unsigned tile = blockIdx.x;
  if (!groups.find(tile, at)) return;
  WgmmaRing<Cfg> ring(at.product, shared_address(shared), at.origin);
  ring.fill();
  for (bool more = true; more;) {
    typename WgmmaRing<Cfg>::Sums sums;
    typename WgmmaRing<Cfg>::Sums::Rows rows;
    ring.multiply(sums, rows, at.origin);
    const GroupTile made = at;
    tile += gridDim.x;
    more = groups.find(tile, at);
    if (more) {
      __syncthreads();  // all have read the last tiles
      ring.range = KRange<Cfg>(at.product.k);
      ring.move_to(at.origin);
      ring.fill();
    }
    sums.store(rows, made.product, made.origin.row + ring.at.row0, made.origin.col + ring.at.col0);
  }
}
