// f02: new over f01: neighbouring threads take neighbouring columns.
// A warp's loads of B and its stores now cover one contiguous line of 128 bytes, 4 full sectors; its load of A is one
// element for all. Nothing else changed.
#include "gemm/args.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const int row = origin.row + threadIdx.x / Cfg::tile_n;
  const int col = origin.col + threadIdx.x % Cfg::tile_n;
  if (Cfg::edge && (row >= args.m || col >= args.n)) return;

  const float* a = static_cast<const float*>(args.a) + blockIdx.y * args.a_batch;
  const float* b = static_cast<const float*>(args.b) + blockIdx.y * args.b_batch;
  float sum = 0;
  for (int k = 0; k < args.k; ++k)
    sum = fmaf(a[offset_of<Cfg::a_unit>(row, k, args.a_row, args.a_col)],
               b[offset_of<Cfg::b_unit>(k, col, args.b_row, args.b_col)], sum);
  store_element<Cfg>(args, row, col, sum);
}
