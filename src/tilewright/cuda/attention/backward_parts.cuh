#pragma once
// dK and dV where blocks share the queries that pass by a tile of keys: their parts added in order, dK times the scale.

#include "attention/backward_args.cuh"
#include "ptx/number16.cuh"

template <class Cfg, int columns>
__device__ inline void add_parts(const BackwardArgs& args, const float* parts, float factor, unsigned short* to,
                                 const long long (&strides)[3]) {
  using T = typename Cfg::in_type;
  constexpr int chunks = columns / 8;
  const int row = int((blockIdx.x * (long long)Cfg::threads + threadIdx.x) / chunks);
  const int col = (blockIdx.x * (long long)Cfg::threads + threadIdx.x) % chunks * 8;
  if (row >= args.seq_k) return;
  const int head = blockIdx.y % args.heads_kv, batch = blockIdx.y / args.heads_kv;
  float sum[8] = {};
  for (int part = 0; part < Cfg::parts; ++part) {
    const long long at = part_row<Cfg>(args, part, batch, head) + row;
    const float4* from = reinterpret_cast<const float4*>(parts + at * columns + col);
    const float4 a = from[0], b = from[1];
    sum[0] += a.x, sum[1] += a.y, sum[2] += a.z, sum[3] += a.w;
    sum[4] += b.x, sum[5] += b.y, sum[6] += b.z, sum[7] += b.w;
  }
  uint4 packed;
  packed.x = pack<T>(sum[0] * factor, sum[1] * factor), packed.y = pack<T>(sum[2] * factor, sum[3] * factor);
  packed.z = pack<T>(sum[4] * factor, sum[5] * factor), packed.w = pack<T>(sum[6] * factor, sum[7] * factor);
  *reinterpret_cast<uint4*>(to + batch * strides[0] + head * strides[1] + row * strides[2] + col) = packed;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) backward_parts(const __grid_constant__ BackwardArgs args) {
  if (blockIdx.z == 0)
    add_parts<Cfg, Cfg::d_there>(args, args.dk_parts, args.scale, static_cast<unsigned short*>(args.dk), args.dk_at);
  else
    add_parts<Cfg, Cfg::d_v>(args, args.dv_parts, 1.f, static_cast<unsigned short*>(args.dv), args.dv_at);
}
