// expected: between which two numbers each element of a result may be. Sums in fp32 are scaled, C is added, and the
// epilogue is applied in interval arithmetic (gemm/fused.cuh: a text of its own, gemm/ranges.py). What that may
// give is rounded to the result's type, which keeps the order. `pairs` gets the two numbers. Where the element can be
// anything, NaN too, the first is the larger; where it must be NaN, both are.
#include "gemm/fused.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

/// gemm/params.py packs it. Strides in elements; rows of sums and pairs are contiguous.
struct ExpectedArgs {
  const float* sums;
  const void* c;
  float2* pairs;
  long long sums_batch, c_batch, pairs_batch, sums_row, c_row, c_col, pairs_row;
  int m, n;
  float alpha, beta;
  FusedArgs fused;  // eight bytes where it is empty
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) expected(const __grid_constant__ ExpectedArgs args) {
  using Out = typename Cfg::out_type;
  const unsigned long long index = blockIdx.x * (unsigned long long)Cfg::threads + threadIdx.x;
  const int row = int(index / unsigned(args.n)), col = int(index % unsigned(args.n));
  wait_for_earlier_grids();
  let_later_grids_start();
  if (row >= args.m) return;
  const float sum = args.sums[blockIdx.y * args.sums_batch + row * args.sums_row + col];
  Range value = exactly(args.alpha) * exactly(sum);
  if constexpr (Cfg::use_c) {
    const Out* c = static_cast<const Out*>(args.c) + blockIdx.y * args.c_batch;
    value = exactly(args.beta) * exactly(to_float(c[row * args.c_row + col * args.c_col])) + value;
  }
  value = fuse_range(args.fused, row, col, value);
  float2* to = args.pairs + blockIdx.y * args.pairs_batch + row * args.pairs_row + col;
  *to = make_float2(to_float(from_float<Out>(value.low)), to_float(from_float<Out>(value.high)));
}
