// f10: new over f09: two buffers. Global loads of the next tile are under way while this one is multiplied.
// No warp waits for memory any more. But the loads pass through registers, which the products need: half as many warps
// fit, and one barrier remains.
#include "tile/copy.cuh"
#include "tile/simt.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  __shared__ __align__(16) float a_tile[2][Tiles::a_size], b_tile[2][Tiles::b_size];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, false>(args), b = lines_of_b<float, true>(args);
  CopyATransposed<Cfg, Tiles::a_pitch, true> copy_a;
  CopyB<Cfg, Tiles::b_pitch, true> copy_b;
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  if (args.k > 0) {
    copy_a.copy(a_tile[0], a, 0, origin.row);
    copy_b.copy(b_tile[0], b, 0, origin.col);
  }
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    const bool more = k0 + Cfg::tile_k < args.k;
    if (more) {
      copy_a.fetch(a, k0 + Cfg::tile_k, origin.row);
      copy_b.fetch(b, k0 + Cfg::tile_k, origin.col);
    }
    multiply_tiles<Cfg>(acc, at, a_tile[buffer], b_tile[buffer]);
    if (more) {
      copy_a.put(a_tile[buffer ^ 1]);
      copy_b.put(b_tile[buffer ^ 1]);
    }
    __syncthreads();  // the other buffer is full, and this one has been read
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
