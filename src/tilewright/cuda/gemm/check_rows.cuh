// check_rows: the second half of Freivalds' check. Each row of out, summed with the signs, is compared with
// alpha A (B x) + beta C x, from what sign_rows left. For each row its error goes to `multiples`, as a multiple of what
// rounding can do to it.
//
// With x of random signs the errors e_j of a row's elements add up to at most 6 |e|_2, but for one in 10^7 rows. Of an
// element: |e_j| <= Cfg::rounding |out_j| + s (|alpha| sum_p |a_p b_pj| + |beta c_j|) + Cfg::least, where s is
// Cfg::step (k + 16), and Cfg::operands more where operands are rounded before they are multiplied (tf32); and by the
// triangle inequality the 2-norm over j of sum_p |a_p b_pj| is at most sum_p |a_p| |b_p|_2.
#include "tile/row_sums.cuh"

/// gemm/params.py packs it. Strides in elements.
struct CheckRowsArgs {
  const void *a, *c, *out;
  const double* sums;  // what sign_rows left
  double* multiples;   // a number per row, product after product
  long long a_batch, c_batch, out_batch, sums_batch, a_row, a_col, c_row, c_col, out_row, out_col;
  int m, n, k;
  unsigned seed;  // of the signs
  float alpha, beta;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) check_rows(const __grid_constant__ CheckRowsArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  using Out = typename Cfg::out_type;
  const auto* a = static_cast<const typename Cfg::in_type*>(args.a) + blockIdx.y * args.a_batch;
  const auto* out = static_cast<const Out*>(args.out) + blockIdx.y * args.out_batch;
  const double* signed_rows = args.sums + blockIdx.y * args.sums_batch;
  const RowSums product = sum_row<Cfg::a_unit>(args.m, args.k, [&](int row, int p, RowSums& s) {
    const double value = to_float(a[offset_of<Cfg::a_unit>(row, p, args.a_row, args.a_col)]);
    s.first += value * signed_rows[2 * p];
    s.second += fabs(value) * signed_rows[2 * p + 1];
  });
  const auto with_signs = [&](const Out* matrix, long long row_stride, long long col_stride) {
    return sum_row<Cfg::out_unit>(args.m, args.n, [&](int row, int j, RowSums& s) {
      const double value = to_float(matrix[offset_of<Cfg::out_unit>(row, j, row_stride, col_stride)]);
      s.first += sign_of(j, args.seed) * value;
      s.second += value * value;
    });
  };
  const RowSums result = with_signs(out, args.out_row, args.out_col);
  double expected = args.alpha * product.first, size = fabs(double(args.alpha)) * product.second;
  if constexpr (Cfg::use_c) {
    const RowSums c = with_signs(static_cast<const Out*>(args.c) + blockIdx.y * args.c_batch, args.c_row, args.c_col);
    expected += args.beta * c.first;
    size += fabs(double(args.beta)) * sqrt(c.second);
  }
  const int row = blockIdx.x * sum_rows + threadIdx.x;
  if (threadIdx.x >= sum_rows || row >= args.m) return;
  const double allowed = 6 * (Cfg::rounding * sqrt(result.second) +
                              (Cfg::step * (args.k + 16.0) + Cfg::operands) * size + Cfg::least * sqrt(double(args.n)));
  const double off = fabs(result.first - expected);
  double multiple = off / allowed;
  if (!isfinite(result.first)) {
    // infinite or not a number: right where an operand is, where elements may be beyond the type's range, or their sums
    // beyond float32's before alpha makes them small
    const bool beyond = !(size < Cfg::largest) || !(product.second < 3.4028234e38);
    multiple = !isfinite(expected) || beyond ? 0.0 : 1.0 / 0.0;
  } else if (!isfinite(expected)) {
    multiple = 1.0 / 0.0;
  }
  args.multiples[blockIdx.y * (long long)args.m + row] = multiple;
}
