// An experiment: f02 on 16-bit operands. Half the bytes of A and B, as many loads; each is widened before its product.
#include "gemm/args.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using T = typename Cfg::in_type;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const int row = origin.row + threadIdx.x / Cfg::tile_n;
  const int col = origin.col + threadIdx.x % Cfg::tile_n;
  if (Cfg::edge && (row >= args.m || col >= args.n)) return;

  const T* a = static_cast<const T*>(args.a) + blockIdx.y * args.a_batch;
  const T* b = static_cast<const T*>(args.b) + blockIdx.y * args.b_batch;
  float sum = 0;
  for (int k = 0; k < args.k; ++k)
    sum = fmaf(to_float(a[offset_of<Cfg::a_unit>(row, k, args.a_row, args.a_col)]),
               to_float(b[offset_of<Cfg::b_unit>(k, col, args.b_row, args.b_col)]), sum);
  store_element<Cfg>(args, row, col, sum);
}
