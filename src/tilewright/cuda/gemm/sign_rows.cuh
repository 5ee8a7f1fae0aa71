// sign_rows: the first half of Freivalds' check. Of args: `a` is B, m = k rows of n columns. For each row p two numbers
// go to out[2 p]: its sum with random signs, and its 2-norm. The signs' seed is b_col.
#include "tile/row_sums.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) sign_rows(const __grid_constant__ GemmArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  const auto* b = static_cast<const typename Cfg::in_type*>(args.a) + blockIdx.y * args.a_batch;
  const unsigned seed = unsigned(args.b_col);
  const RowSums sums = sum_row<Cfg::a_unit>(args.m, args.n, [&](int row, int j, RowSums& s) {
    const double value = to_float(b[offset_of<Cfg::a_unit>(row, j, args.a_row, args.a_col)]);
    s.first += sign_of(j, seed) * value;
    s.second += value * value;
  });
  const int row = blockIdx.x * sum_rows + threadIdx.x;
  if (threadIdx.x >= sum_rows || row >= args.m) return;
  double* to = static_cast<double*>(args.out) + blockIdx.y * args.out_batch + 2 * (long long)row;
  to[0] = sums.first, to[1] = sqrt(sums.second);
}
