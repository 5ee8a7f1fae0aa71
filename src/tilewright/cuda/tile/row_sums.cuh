#pragma once
// Sums over the rows of a matrix in fp64, and the random signs of Freivalds' check.

#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

/// +1 or -1 for column j, as good as drawn at random (the finaliser of MurmurHash3).
__device__ inline double sign_of(int j, unsigned seed) {
  unsigned h = (unsigned(j) + 1) * 0x9E3779B9u ^ seed;
  h = (h ^ h >> 16) * 0x85EBCA6Bu;
  h = (h ^ h >> 13) * 0xC2B2AE35u;
  return (h ^ h >> 16) & 1 ? 1.0 : -1.0;
}

constexpr int sum_rows = Cfg::rows, sum_phases = Cfg::threads / sum_rows;  // rows of a block; threads that share one
struct RowSums {
  double first, second;
};

/// The sums of row threadIdx.x % 32 of this block's rows: `add(row, j, sums)` is called for each j < extent.
/// Neighbouring threads read neighbouring elements: along a row where rows are contiguous (unit_col), else along a
/// column.
template <int unit, class Add>
__device__ inline RowSums sum_row(int rows, int extent, Add add) {
  __shared__ double part[2][sum_phases][sum_rows];
  const int place = threadIdx.x;
  const int row = unit == unit_row ? place % sum_rows : place / sum_phases;
  const int phase = unit == unit_row ? place / sum_rows : place % sum_phases;
  RowSums sums{0, 0};
  const int at = blockIdx.x * sum_rows + row;
  if (at < rows)
    for (int j = phase; j < extent; j += sum_phases) add(at, j, sums);
  __syncthreads();  // all have read what the call before left
  part[0][phase][row] = sums.first, part[1][phase][row] = sums.second;
  __syncthreads();
  sums = {0, 0};
#pragma unroll
  for (int p = 0; p < sum_phases; ++p)
    sums.first += part[0][p][place % sum_rows], sums.second += part[1][p][place % sum_rows];
  return sums;
}
