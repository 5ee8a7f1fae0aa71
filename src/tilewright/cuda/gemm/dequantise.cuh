// dequantise: an fp8 operand as fp32, each element times the scale of its block of 128: what a check multiplies.
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

/// gemm/params.py packs it. Strides in elements. A block is 1 row x 128 columns (Cfg::rows = 1), or 128 x 128.
struct DequantiseArgs {
  const void* from;
  const float* scales;
  float* to;
  long long from_batch, scales_batch, to_batch, from_row, from_col, scales_row, scales_col;
  int m, n;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) dequantise(const __grid_constant__ DequantiseArgs args) {
  const unsigned long long index = blockIdx.x * (unsigned long long)Cfg::threads + threadIdx.x;
  const int row = int(index / unsigned(args.n)), col = int(index % unsigned(args.n));
  wait_for_earlier_grids();
  let_later_grids_start();
  if (row >= args.m) return;
  const auto* from = static_cast<const typename Cfg::in_type*>(args.from) + blockIdx.y * args.from_batch;
  float value = to_float(from[row * args.from_row + col * args.from_col]);
  if constexpr (Cfg::scaled)
    value *= args.scales[blockIdx.y * args.scales_batch + row / Cfg::rows * args.scales_row +
                         col / Cfg::columns * args.scales_col];
  args.to[blockIdx.y * args.to_batch + row * (long long)args.n + col] = value;
}
