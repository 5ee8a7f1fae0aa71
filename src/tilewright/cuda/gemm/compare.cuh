// compare: a result element by element against the pairs that `expected` made. Each block reports how many of its
// elements are outside, and the first of them.
#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

struct Report {
  unsigned wrong, first;  // how many; the first one's place among the block's elements
  float found, low, high;
};

/// gemm/params.py packs it. Strides in elements; a product's pairs are m rows of n, without gaps.
struct CompareArgs {
  const void* out;
  const float2* pairs;
  Report* reports;  // a block's, product after product
  long long out_batch, pairs_batch, out_row, out_col;
  int m, n;
};

/// A NaN is inside only where the pair says so.
__device__ inline bool inside(float x, float2 pair) {
  if (pair.x > pair.y) return true;
  return pair.x != pair.x ? x != x : pair.x <= x && x <= pair.y;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) compare(const __grid_constant__ CompareArgs args) {
  using Out = typename Cfg::out_type;
  __shared__ unsigned wrong, first;
  if (threadIdx.x == 0) wrong = 0, first = ~0u;
  __syncthreads();
  wait_for_earlier_grids();
  let_later_grids_start();
  const Out* out = static_cast<const Out*>(args.out) + blockIdx.y * args.out_batch;
  const float2* pairs = args.pairs + blockIdx.y * args.pairs_batch;
  const unsigned long long start = blockIdx.x * (unsigned long long)(Cfg::threads * Cfg::each);
  unsigned mine = ~0u, count = 0;
  float found = 0;
  float2 pair = {0, 0};
  for (unsigned e = threadIdx.x; e < Cfg::threads * Cfg::each; e += Cfg::threads) {
    const int row = int((start + e) / unsigned(args.n)), col = int((start + e) % unsigned(args.n));
    if (row >= args.m) break;
    const float x = to_float(out[offset_of<Cfg::out_unit>(row, col, args.out_row, args.out_col)]);
    const float2 may_be = pairs[row * (long long)args.n + col];
    if (inside(x, may_be)) continue;
    if (count++ == 0) mine = e, found = x, pair = may_be;
  }
  if (count) atomicAdd(&wrong, count), atomicMin(&first, mine);
  __syncthreads();
  Report* to = args.reports + blockIdx.y * (long long)gridDim.x + blockIdx.x;
  if (wrong ? mine == first : threadIdx.x == 0) *to = {wrong, first, found, pair.x, pair.y};
}
