#pragma once
// The main loop of f07 and f08: A in shared memory row by row, as it lies in global memory, read 4 k of a row at a
// time.

#include "tile/copy.cuh"
#include "tile/simt.cuh"

template <class Cfg>
__device__ inline void warp_tiled_gemm(const GemmArgs& args) {
  __shared__ __align__(16) float a_tile[Cfg::tile_m * Cfg::tile_k], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, Cfg::tile_k, true> copy_a;
  CopyB<Cfg, Cfg::tile_n, true> copy_b;
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  for (int tile = 0; tile < args.k; tile += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, tile);
    copy_b.copy(b_tile, b, tile, origin.col);
    __syncthreads();
#pragma unroll
    for (int k0 = 0; k0 < Cfg::tile_k; k0 += 4) {
      float a_rows[Tiling::rows][4];
      at.template load_a_rows<Cfg::tile_k>(a_rows, a_tile + k0);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float b_row[Tiling::cols];
        at.load_b(b_row, b_tile + (k0 + k) * Cfg::tile_n + at.col0);
        outer_product(acc, a_rows, k, b_row);
      }
    }
    __syncthreads();
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
