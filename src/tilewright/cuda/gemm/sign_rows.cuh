// sign_rows: the first half of Freivalds' check. For each row p of B two numbers go to sums[2 p]: its sum with random
// signs, and its 2-norm.
#include "tile/row_sums.cuh"

/// gemm/params.py packs it. Strides in elements.
struct SignRowsArgs {
  const void* b;
  double* sums;
  long long b_batch, sums_batch, b_row, b_col;
  int k, n;       // of B
  unsigned seed;  // of the signs
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) sign_rows(const __grid_constant__ SignRowsArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  const auto* b = static_cast<const typename Cfg::in_type*>(args.b) + blockIdx.y * args.b_batch;
  const RowSums sums = sum_row<Cfg::a_unit>(args.k, args.n, [&](int row, int j, RowSums& s) {
    const double value = to_float(b[offset_of<Cfg::a_unit>(row, j, args.b_row, args.b_col)]);
    s.first += sign_of(j, args.seed) * value;
    s.second += value * value;
  });
  const int row = blockIdx.x * sum_rows + threadIdx.x;
  if (threadIdx.x >= sum_rows || row >= args.k) return;
  double* to = args.sums + blockIdx.y * args.sums_batch + 2 * (long long)row;
  to[0] = sums.first, to[1] = sqrt(sums.second);
}
