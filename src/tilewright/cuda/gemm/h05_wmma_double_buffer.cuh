// h05: new over h04: two buffers. The copy of the next tile runs while this one is multiplied.
#include "tile/copy16.cuh"
#include "tile/wmma_tile.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + 2 * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, 0, origin.col);
  const auto start_next = [&](int buffer) {
    copy_a.start(buffer * A::bytes);
    copy_b.start(buffer * B::bytes);
    cp_async_commit();
  };

  WmmaTile<Cfg, A, B> tile;
  if (args.k > 0) start_next(0);
  cp_async_wait<0>();
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    if (k0 + Cfg::tile_k < args.k) start_next(buffer ^ 1);
    tile.multiply_tiles(a_tiles + buffer * A::bytes, b_tiles + buffer * B::bytes);
    cp_async_wait<0>();
    __syncthreads();  // the other buffer has landed for all, and this one has been read
  }
  tile.store(args, origin.row, origin.col, a_tiles);
}
