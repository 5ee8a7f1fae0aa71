#pragma once
// What the gradients need of each query, made once: a pair of floats a row.
//
//     stats[0]    the LSE, in powers of 2 where scores are scaled within the exponent (Cfg::plain); +inf for a row that
//                 sees no key or does not exist, whose weights are then all 0
//     stats[1]    sum(grad * out) - grad_lse: what the softmax takes from every gradient of a weight
//
// Where Cfg::clears, the parts of dQ begin as 0 (attention/backward_sums.cuh).

#include "attention/backward_args.cuh"
#include "ptx/ex2.cuh"
#include "ptx/number16.cuh"

extern "C" __global__ void __launch_bounds__(256) backward_rows(const __grid_constant__ BackwardArgs args) {
  using T = typename Cfg::in_type;
  constexpr int d = Cfg::d_head, chunks = d / 8, lanes = chunks <= 4 ? 4 : chunks <= 8 ? 8 : chunks <= 16 ? 16 : 32;
  const RowPlace<Cfg, true, row_run> place(args);
  if (place.is_rest(args) || place.row0 >= place.seq_q) return;
  const int head = place.head, lane = threadIdx.x % lanes;
  const auto* out = static_cast<const unsigned short*>(args.out) + place.at_q(args.out_at, head) + lane * 8;
  const auto* grad = static_cast<const unsigned short*>(args.grad) + place.at_q(args.grad_at, head) + lane * 8;
  const float* lse = args.lse + place.at_q(args.lse_at, head);
  const long long first = place.padded(args, head) + place.row0;
  for (int r = threadIdx.x / lanes; r < row_run; r += 256 / lanes) {
    const int row = place.row0 + r;
    const bool exists = row < place.seq_q;
    float sum = 0;
    if (exists && lane < chunks) {
      const uint4 a = *reinterpret_cast<const uint4*>(out + row * args.out_at[2]);
      const uint4 b = *reinterpret_cast<const uint4*>(grad + row * args.grad_at[2]);
      const unsigned x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(half_of<T>(x[i / 2], i % 2), half_of<T>(y[i / 2], i % 2), sum);
    }
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) {
      constexpr float log2_e = 1.4426950408889634f;
      const float own = exists ? lse[row * args.lse_at[2]] : minus_infinity();
      const bool none = own == minus_infinity();
      if constexpr (Cfg::has_grad_lse) {
        if (exists) sum -= args.grad_lse[place.at_q(args.grad_lse_at, head) + row * args.grad_lse_at[2]];
      }
      float2 pair = {none ? -minus_infinity() : Cfg::plain ? own * log2_e : own, none ? 0.f : sum};
      reinterpret_cast<float2*>(args.stats)[first + r] = pair;
    }
    if constexpr (Cfg::clears) {
      float4* sums = reinterpret_cast<float4*>(args.sums + (first + r) * d);
      for (int i = lane; i < d / 4; i += lanes) sums[i] = float4{0, 0, 0, 0};
    }
  }
}
