#pragma once
// dQ from its sums: each times the scale, rounded, in rows. Where Cfg::stored, a tile of which no block of keys had a
// turn was not begun, and is 0.

#include "attention/backward_args.cuh"
#include "attention/backward_sums.cuh"
#include "ptx/number16.cuh"
#include "ptx/shared.cuh"
#include "tile/head_store.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) backward_finish(const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using T = typename Cfg::in_type;
  using Sums = SumsTile<Cfg>;
  constexpr int d = Cfg::d_head;
  using Tile = HeadTile<Sums::m, d, d % 64 == 0 ? 64 : 32, true>;
  const RowPlace<Cfg, true, Sums::m> place(args, blockIdx.x, blockIdx.y);
  const int there = place.seq_q - place.row0, lane = threadIdx.x % 32;
  if (there <= 0) return;
  const unsigned tile = shared_address(shared);
  bool begun = !place.is_rest(args);
  if (Cfg::stored && begun) begun = args.turns[(place.padded(args, place.head) + place.row0) / 32] != 0;
  const float* from = args.sums + (place.padded(args, place.head) + place.row0) * d;
#pragma unroll
  for (int i = 0; i < Sums::pieces; ++i)
#pragma unroll
    for (int j = 0; j < 2 * Sums::depth; ++j) {
      float4 sum = {0, 0, 0, 0};
      if (begun) sum = *reinterpret_cast<const float4*>(from + Sums::place(i, j));
      const int row = Sums::row() + 16 * i + lane / 4, col = Sums::col() + 8 * j + lane % 4 * 2;
      store_shared_32(tile + Tile::place(row, col), pack<T>(sum.x * args.scale, sum.y * args.scale));
      store_shared_32(tile + Tile::place(row + 8, col), pack<T>(sum.z * args.scale, sum.w * args.scale));
    }
  __syncthreads();
  unsigned short* to = static_cast<unsigned short*>(args.dq) + place.at_q(args.dq_at, place.head);
  constexpr int chunks = Cfg::d_there / 8;
  for (int i = threadIdx.x; i < Sums::m * chunks; i += Cfg::threads) {
    const int row = i / chunks, col = i % chunks * 8;
    if (row < there)
      *reinterpret_cast<uint4*>(to + (place.row0 + row) * args.dq_at[2] + col) =
          load_shared_chunk(tile + Tile::place(row, col));
  }
}
