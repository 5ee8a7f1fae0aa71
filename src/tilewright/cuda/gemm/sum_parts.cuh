// sum_parts: the end of a product whose k was split: out = alpha * (part 0 + part 1 + ...) + beta * C, always in one
// order: eight parts as a tree, the sums of eights one after another.
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"
#include "tile/store_rows.cuh"

/// gemm/params.py packs it.
struct SumPartsArgs {
  const float* parts;    // `count` parts, each of gridDim.y matrices of m x n
  long long batch, row;  // strides in elements; row is a multiple of 4
  int count;
  GemmArgs result;  // out, C and the epilogue; its a, b and k are not used
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) sum_parts(const __grid_constant__ SumPartsArgs args) {
  const unsigned runs = (args.result.n + 3) / 4;  // of four elements of a row: one per thread
  const unsigned long long index = blockIdx.x * (unsigned long long)Cfg::threads + threadIdx.x;
  const int row = index / runs, col = index % runs * 4;
  if (row >= args.result.m) return;
  const float* part = args.parts + blockIdx.y * args.batch + row * args.row + col;
  const long long step = gridDim.y * args.batch;
  float sum[4] = {};
  wait_for_earlier_grids();
  let_later_grids_start();
  for (int z = 0; z < args.count; z += 8) {
    float4 held[8];  // loads of eight parts are under way at once
#pragma unroll
    for (int i = 0; i < 8; ++i)
      held[i] = z + i < args.count ? *reinterpret_cast<const float4*>(part + (z + i) * step) : float4{};
#pragma unroll
    for (int half = 4; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) {
        held[i].x += held[i + half].x, held[i].y += held[i + half].y;
        held[i].z += held[i + half].z, held[i].w += held[i + half].w;
      }
    sum[0] += held[0].x, sum[1] += held[0].y, sum[2] += held[0].z, sum[3] += held[0].w;
  }
  store_run<Cfg, 4>(args.result, row, col, sum);
}
