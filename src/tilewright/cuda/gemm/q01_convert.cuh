// q01: fp8 on mma.sync, from sm_80 on. Tiles of bytes come through the ring of 16-bit elements, two numbers in one. On
// the way from fragment to product each number becomes an fp16, which holds every e4m3 and e5m2, so the products and
// sums are those of 16 bits: no scale is needed, and none is missed (tile/converted.cuh).
#include "ptx/grid_dependency.cuh"
#include "tile/converted.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  converted<Cfg>(args, shared_address(shared), origin, [] { start_after_earlier_grids<Cfg::alone>(); });
}
