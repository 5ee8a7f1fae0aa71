// merge: the results of the parts of split attention, added in a fixed order: lane i of `lanes` takes the parts i, i +
// lanes, ..., and then the lanes are added from the first to the last. Parts in which a row saw no key are not read.
//
// A block makes rows blockIdx.z, blockIdx.z + gridDim.z, ... of one tile of rows; a thread has four columns of one
// lane.

#include "attention/split_args.cuh"
#include "ptx/grid_dependency.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) merge(const __grid_constant__ SplitArgs args) {
  constexpr int d_head = Cfg::d_head, columns = d_head / 4, lanes = Cfg::threads / columns;
  __shared__ float4 results[lanes][columns];
  __shared__ float2 sums[lanes];
  const int lane = threadIdx.x / columns, col = threadIdx.x % columns * 4;
  const SplitTile<Cfg> place(args, blockIdx.x, true);
  const int rows = min(place.rows() - place.row0, Cfg::b_r);
  wait_for_earlier_grids();  // by every block: the grid after this one waits for this one only
  if (Cfg::varlen && place.parts == 0) return;
  for (int row = blockIdx.z; row < rows; row += gridDim.z) {
    float largest = minus_infinity(), sum = 0;
    for (int part = lane; part < place.parts; part += lanes)
      largest = fmaxf(largest, args.sums[place.slot(args, part) + row].x);
    float4 total = {};
#pragma unroll 4
    for (int part = lane; part < place.parts; part += lanes) {
      const long long at = place.slot(args, part) + row;
      const float2 own = args.sums[at];
      if (own.y == 0) continue;
      const float share = exp2_approx((own.x - largest) * args.factor);
      const float4 value = *reinterpret_cast<const float4*>(args.results + at * d_head + col);
      sum += share * own.y;
      total.x += share * value.x, total.y += share * value.y, total.z += share * value.z, total.w += share * value.w;
    }
    __syncthreads();  // the row before is read no more
    results[lane][col / 4] = total;
    if (col == 0) sums[lane] = make_float2(largest, sum);
    __syncthreads();
    if (threadIdx.x >= d_head / 8) continue;
    largest = minus_infinity(), sum = 0;
    float value[8] = {};
#pragma unroll
    for (int i = 0; i < lanes; ++i) largest = fmaxf(largest, sums[i].x);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if (sums[i].y == 0) continue;
      const float share = exp2_approx((sums[i].x - largest) * args.factor);
      const float4 low = results[i][2 * threadIdx.x], high = results[i][2 * threadIdx.x + 1];
      const float own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      sum += share * sums[i].y;
#pragma unroll
      for (int e = 0; e < 8; ++e) value[e] += share * own[e];
    }
    place.put(args, place.row0 + row, 8 * threadIdx.x, largest, sum, value);
  }
}
