#pragma once
// The main loop of h08 and h09: h05's two buffers, fragments by ldmatrix, products by mma.sync.

#include "tile/copy16.cuh"
#include "tile/mma_tile.cuh"

template <class Cfg, class A, class B>
__device__ inline void mma_double_buffer_gemm(const GemmArgs& args, unsigned shared) {
  const unsigned a_tiles = shared, b_tiles = a_tiles + 2 * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, 0, origin.col);
  const auto start_next = [&](int buffer) {
    copy_a.start(buffer * A::bytes);
    copy_b.start(buffer * B::bytes);
    cp_async_commit();
  };

  const MmaTiling<Cfg> at;
  const FragmentReader<A, true> a(a_tiles, at.row0);
  const FragmentReader<B, false> b(b_tiles, at.col0);
  Accumulators<Cfg> acc;
  if (args.k > 0) start_next(0);
  cp_async_wait<0>();
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    if (k0 + Cfg::tile_k < args.k) start_next(buffer ^ 1);
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step) {
      Fragments<Cfg> f;
      a.load(f.a, buffer * A::bytes, step);
      b.load(f.b, buffer * B::bytes, step);
      acc.multiply(f);
    }
    cp_async_wait<0>();
    __syncthreads();  // the other buffer has landed for all, and this one has been read
  }
  acc.store(args, origin.row + at.row0, origin.col + at.col0);
}
