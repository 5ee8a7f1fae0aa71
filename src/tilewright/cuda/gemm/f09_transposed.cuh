// f09: new over f08: A is transposed on its way into shared memory.
// Its column k then lies contiguous: a thread reads its part by 128-bit loads, as it does of B.
#include "tile/copy.cuh"
#include "tile/simt.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  __shared__ __align__(16) float a_tile[Tiles::a_size], b_tile[Tiles::b_size];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, false>(args), b = lines_of_b<float, true>(args);
  CopyATransposed<Cfg, Tiles::a_pitch, true> copy_a;
  CopyB<Cfg, Tiles::b_pitch, true> copy_b;
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, k0, origin.row);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
    multiply_tiles<Cfg>(acc, at, a_tile, b_tile);
    __syncthreads();
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
