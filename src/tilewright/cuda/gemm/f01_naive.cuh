// f01: one thread makes one element. The ground floor.
// Neighbouring threads take neighbouring rows, so a warp walks down a column: its loads of A and its stores touch
// 32 different rows, one 32-byte sector each for 4 bytes used; its load of B is one element for all.
#include "gemm/args.cuh"
#include "ptx/number16.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  const unsigned tiles_n = (args.n + Cfg::tile_n - 1) / Cfg::tile_n;  // blocks walk along rows of tiles
  const int row = int(blockIdx.x / tiles_n) * Cfg::tile_m + threadIdx.x % Cfg::tile_m;
  const int col = int(blockIdx.x % tiles_n) * Cfg::tile_n + threadIdx.x / Cfg::tile_m;
  if (Cfg::edge && (row >= args.m || col >= args.n)) return;

  // blockIdx.y is the product of the batch; offset_of(row, col) multiplies by the strides that are not 1.
  const float* a = static_cast<const float*>(args.a) + blockIdx.y * args.a_batch;
  const float* b = static_cast<const float*>(args.b) + blockIdx.y * args.b_batch;
  float sum = 0;
  for (int k = 0; k < args.k; ++k)
    sum = fmaf(a[offset_of<Cfg::a_unit>(row, k, args.a_row, args.a_col)],
               b[offset_of<Cfg::b_unit>(k, col, args.b_row, args.b_col)], sum);

  // out = f(alpha * sum + beta * C), where f is the caller's epilogue (gemm/fused.cuh).
  using Out = typename Cfg::out_type;
  float value[1] = {args.alpha * sum};
  if constexpr (Cfg::use_c) {
    const Out* c = static_cast<const Out*>(args.c) + blockIdx.y * args.c_batch;
    const float old = to_float(c[offset_of<Cfg::out_unit>(row, col, args.c_row, args.c_col)]);
    value[0] = fmaf(args.beta, old, value[0]);
  }
  fuse<false>(args.fused, row, col, value);
  Out* out = static_cast<Out*>(args.out) + blockIdx.y * args.out_batch;
  out[offset_of<Cfg::out_unit>(row, col, args.out_row, args.out_col)] = from_float<Out>(value[0]);
}
