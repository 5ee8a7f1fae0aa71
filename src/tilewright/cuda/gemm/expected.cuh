// expected: between which two numbers each element of a result may be. Of args: `a` holds sums in fp32; they are
// scaled, C is added, and the epilogue applied in interval arithmetic (gemm/fused.cuh: a text of its own,
// epilogue/ranges.py); what that may give is rounded to the result's type, which keeps the order. `out` gets the
// pair; where it can be anything, NaN too, the first is the larger; where it must be NaN, both are.
#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number16.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) expected(const __grid_constant__ GemmArgs args) {
  using Out = typename Cfg::out_type;
  const unsigned long long index = blockIdx.x * (unsigned long long)Cfg::threads + threadIdx.x;
  const int row = int(index / unsigned(args.n)), col = int(index % unsigned(args.n));
  wait_for_earlier_grids();
  let_later_grids_start();
  if (row >= args.m) return;
  const float sum = static_cast<const float*>(args.a)[blockIdx.y * args.a_batch + row * args.a_row + col];
  Range value = exactly(args.alpha) * exactly(sum);
  if constexpr (Cfg::use_c) {
    const Out* c = static_cast<const Out*>(args.c) + blockIdx.y * args.c_batch;
    value = exactly(args.beta) * exactly(to_float(c[row * args.c_row + col * args.c_col])) + value;
  }
  value = fuse_range(args.fused, row, col, value);
  float2* to = static_cast<float2*>(args.out) + blockIdx.y * args.out_batch + row * args.out_row + col;
  *to = make_float2(to_float(from_float<Out>(value.low)), to_float(from_float<Out>(value.high)));
}
