// h06: new over h05: the same overlap through the interface of cuda::pipeline (tile/pipeline.cuh).
// The stages look after themselves; the price is a barrier to acquire one, besides the barrier that waits for one.
#include "tile/copy16.cuh"
#include "tile/pipeline.cuh"
#include "tile/wmma_tile.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + Cfg::stages * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, 0, origin.col);
  Pipeline<Cfg::stages> pipeline;
  const auto after = [](int stage) { return stage + 1 == Cfg::stages ? 0 : stage + 1; };

  WmmaTile<Cfg, A, B> tile;
  const int tiles = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;
  int started = 0, write = 0, read = 0;
  const auto produce = [&] {
    pipeline.producer_acquire();
    copy_a.start(write * A::bytes);
    copy_b.start(write * B::bytes);
    pipeline.producer_commit();
    write = after(write);
    ++started;
  };
  while (started < min(tiles, Cfg::stages - 1)) produce();
  for (int t = 0; t < tiles; ++t, read = after(read)) {
    if (started < tiles) produce();
    pipeline.consumer_wait();
    tile.multiply_tiles(a_tiles + read * A::bytes, b_tiles + read * B::bytes);
    pipeline.consumer_release();
  }
  __syncthreads();  // the results go where the tiles were
  tile.store(args, origin.row, origin.col, a_tiles);
}
