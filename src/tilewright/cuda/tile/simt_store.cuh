#pragma once
// Accumulators of FFMA's products (tile/simt.cuh) to global memory, four elements of a row an access.

#include "tile/epilogue.cuh"

/// A thread's elements of a warp tile whose block's begins at (row0, col0).
template <class Cfg, class Tiling, int rows, int cols>
__device__ inline void store_warp_tile(const GemmArgs& args, int row0, int col0, const Tiling& at,
                                       const float (&acc)[rows][cols]) {
  static_assert(Cfg::thread_n % 4 == 0, "runs of four");
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = row0 + at.row(i / Cfg::thread_m) + i % Cfg::thread_m;
#pragma unroll
    for (int j = 0; j < cols; j += 4)
      store_run<Cfg, 4>(args, row, col0 + at.col(j / Cfg::thread_n) + j % Cfg::thread_n,
                        *reinterpret_cast<const float(*)[4]>(&acc[i][j]));
  }
}
