// h04: new over h03: cp.async fills shared memory, and is waited for at once.
// No register holds a tile on its way and no instruction stores it; the latency is still all there.
#include "tile/copy16.cuh"
#include "tile/wmma_tile.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned a_tile = shared_address(shared), b_tile = a_tile + A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tile, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tile, 0, origin.col);

  WmmaTile<Cfg, A, B> tile;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.start(0);
    copy_b.start(0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    tile.multiply_tiles(a_tile, b_tile);
    __syncthreads();  // all have read before the next tile overwrites, or the results
  }
  tile.store(args, origin.row, origin.col, a_tile);
}
