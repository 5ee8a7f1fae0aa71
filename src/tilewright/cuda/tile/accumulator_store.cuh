#pragma once
// Accumulators of tensor-core products (ptx/mma.cuh) to global memory, straight from the registers, 8 bytes an access.

#include "tile/epilogue.cuh"

/// A warp's 16 rows from `row0` on, `pieces` pieces of 16 columns from `col0` on. fp32: a lane's two elements of a row;
/// four lanes fill a sector. 16 bits: lanes 2i and 2i + 1 swap halves of two neighbouring products first,
///
///     product j:  lanes  0   1   2   3        after:  0 0 2 2   of product j
///                 cols   01  23  45  67               1 1 3 3   of product j + 1
///
/// so that a lane holds four elements of a row, and four lanes fill a sector of 32 bytes.
template <class Cfg, int columns>
__device__ inline void store_sixteen_rows(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < columns / 2; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row0 + 8 * half + lane / 4, col = col0 + 16 * j;
      const float* left = value[2 * j] + 2 * half;
      const float* right = value[2 * j + 1] + 2 * half;
      if constexpr (sizeof(typename Cfg::out_type) == 4) {
        store_run<Cfg, 2>(args, row, col + lane % 4 * 2, {left[0], left[1]});
        store_run<Cfg, 2>(args, row, col + 8 + lane % 4 * 2, {right[0], right[1]});
      } else {
        const bool odd = lane % 2;
        const float first = __shfl_xor_sync(~0u, odd ? left[0] : right[0], 1);
        const float second = __shfl_xor_sync(~0u, odd ? left[1] : right[1], 1);
        const float four[4] = {odd ? first : left[0], odd ? second : left[1], odd ? right[0] : first,
                               odd ? right[1] : second};
        store_run<Cfg, 4>(args, row, col + 8 * odd + lane % 4 / 2 * 4, four);
      }
    }
}
