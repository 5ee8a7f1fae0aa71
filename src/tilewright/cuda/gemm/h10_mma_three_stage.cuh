// h10: new over h09: h07's overlap. The copies of tiles t + 2 and t + 3, the fragments of tile t + 1 and the products
// of tile t overlap, and each step's fragments are refilled right after the products that read them.
#include "tile/copy16.cuh"
#include "tile/mma_tile.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  static_assert(Cfg::stages == 3, "one tile to read and two on their way");
  using A = TileA<Cfg>;
  using B = TileB<Cfg, Swizzle<3, 3, 3>>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + 3 * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, 0, origin.col);
  const int tiles = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;
  const auto start = [&](int t, int buffer) {
    if (t < tiles) {
      copy_a.start(buffer * A::bytes);
      copy_b.start(buffer * B::bytes);
    }
    cp_async_commit();  // also when empty: the wait counts groups
  };

  constexpr int steps = Cfg::tile_k / 16;
  const MmaTiling<Cfg> at;
  const FragmentReader<A, true> a(a_tiles, at.row0);
  const FragmentReader<B, false> b(b_tiles, at.col0);
  Accumulators<Cfg> acc;
  Fragments<Cfg> held[steps];
  const auto load = [&](int buffer, int step) {
    a.load(held[step].a, buffer * A::bytes, step);
    b.load(held[step].b, buffer * B::bytes, step);
  };

  for (int t = 0; t < 3; ++t) start(t, t);
  cp_async_wait<2>();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < steps; ++step)
    if (tiles > 0) load(0, step);
  int free = 0, read = 1;  // the buffers of tiles t and t + 1
  for (int t = 0; t < tiles; ++t) {
    cp_async_wait<1>();
    __syncthreads();  // tile t + 1 has landed for all, and all have read tile t from shared memory
    start(t + 3, free);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      acc.multiply(held[step]);
      if (t + 1 < tiles) load(read, step);
    }
    free = read;
    read = read == 2 ? 0 : read + 1;
  }
  cp_async_wait<0>();
  acc.store(args, origin.row + at.row0, origin.col + at.col0);
}
