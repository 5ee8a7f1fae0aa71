#pragma once
// What the gradients need of each query (attention/query_rows.cuh), made once. Where Cfg::clears, the parts of dQ begin
// as 0 (attention/backward_sums.cuh); Cfg::turns, the turns of those who add.

#include "attention/query_rows.cuh"

extern "C" __global__ void __launch_bounds__(256) backward_rows(const __grid_constant__ BackwardArgs args) {
  using Place = RowPlace<Cfg, true, row_run>;
  const Place place(args, blockIdx.x, blockIdx.y);
  if (place.is_rest(args) || place.row0 >= place.seq_q) return;
  using Rows = QueryRows<Cfg, Place, 256>;
  const long long first = place.padded(args, place.head) + place.row0;
  Rows{args, place, place.head}.fill(args.stats + first * Rows::stat_floats, place.row0, row_run);
  if constexpr (Cfg::clears) {
    float4* sums = reinterpret_cast<float4*>(args.sums + first * Cfg::d_head);
    for (int i = threadIdx.x; i < row_run * Cfg::d_head / 4; i += 256) sums[i] = float4{0, 0, 0, 0};
  }
  if (Cfg::turns && threadIdx.x < row_run / 32) args.turns[first / 32 + threadIdx.x] = 0;
}
