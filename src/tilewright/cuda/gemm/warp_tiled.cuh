#pragma once
// The main loop of f07 and f08: A in shared memory row by row, as it lies in global memory.

#include "gemm/operands.cuh"
#include "tile/epilogue.cuh"
#include "tile/simt.cuh"

template <class Cfg>
__device__ inline void warp_tiled_gemm(const GemmArgs& args) {
  __shared__ __align__(16) float a_tile[Cfg::tile_m * Cfg::tile_k], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg::tile_m, Cfg::tile_n>(blockIdx.x, args.m, args.n);
  const TileSource<float> a = source_a(args), b = source_b(args);
  CopyA<Cfg, Cfg::tile_k, true> copy_a;
  CopyB<Cfg, Cfg::tile_n, true> copy_b;
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      float a_column[Tiling::rows], b_row[Tiling::cols];
      at.template load_a_column<Cfg::tile_k>(a_column, a_tile, k);
      at.load_b(b_row, b_tile + k * Cfg::tile_n + at.col0);
      outer_product(acc, a_column, b_row);
    }
    __syncthreads();
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
