// v02: a result of few elements, each a long sum, in fp32. A block makes a tile of them, one for each of its warps; its
// threads walk along k side by side, and each adds up all of the tile's elements in fp64, where products are exact:
//
//     k        thread 0 | thread 1 | .. | last thread | thread 0 | ..
//
// Then the lanes of a warp add up theirs as a tree, and warp w adds up element w of all warps. So a sum is rounded once
// however long k is. With few elements one that is near zero is likely to be the largest, and a chain of fp32 sums is
// then wrong by many of its half-ulps.
#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/store_rows.cuh"

/// The sum of a lane's value and those of the lanes up to `lanes` apart, a power of two.
template <int lanes>
__device__ inline double sum_of_lanes(double own) {
#pragma unroll
  for (int apart = lanes / 2; apart > 0; apart /= 2) own += __shfl_xor_sync(~0u, own, apart);
  return own;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  constexpr int rows = Cfg::tile_m, cols = Cfg::tile_n, warps = rows * cols;
  constexpr int ahead = 4;  // steps of k whose elements a thread asks for at once
  start_after_earlier_grids<false>();
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const float* a = static_cast<const float*>(args.a) + blockIdx.y * args.a_batch;
  const float* b = static_cast<const float*>(args.b) + blockIdx.y * args.b_batch;

  const unsigned first = args.k * (unsigned long long)blockIdx.z / Cfg::split_k;
  const unsigned end = args.k * (blockIdx.z + 1ull) / Cfg::split_k;

  double sum[rows][cols] = {};
  for (unsigned k = first + threadIdx.x; k < end; k += ahead * Cfg::threads) {
    float column[ahead][rows], line[ahead][cols];
#pragma unroll
    for (int s = 0; s < ahead; ++s) {
      const unsigned at = k + s * Cfg::threads;
      const bool inside = at < end;
#pragma unroll
      for (int i = 0; i < rows; ++i)
        column[s][i] = inside && (!Cfg::edge || origin.row + i < args.m)
                           ? a[offset_of<Cfg::a_unit>(origin.row + i, at, args.a_row, args.a_col)]
                           : 0;
#pragma unroll
      for (int j = 0; j < cols; ++j)
        line[s][j] = inside && (!Cfg::edge || origin.col + j < args.n)
                         ? b[offset_of<Cfg::b_unit>(at, origin.col + j, args.b_row, args.b_col)]
                         : 0;
    }
#pragma unroll
    for (int s = 0; s < ahead; ++s)
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < cols; ++j) sum[i][j] = fma(double(column[s][i]), double(line[s][j]), sum[i][j]);
  }

  __shared__ double parts[warps][warps];  // by the warp that made it, and by element
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < warps; ++i) {
    const double of_warp = sum_of_lanes<32>(sum[i / cols][i % cols]);
    if (lane == i) parts[warp][i] = of_warp;
  }
  __syncthreads();
  const double all = sum_of_lanes<warps>(parts[lane % warps][warp]);
  if (lane == 0) store_element<Cfg>(args, origin.row + warp / cols, origin.col + warp % cols, float(all));
}
