// h03: new over h02: the block and warp tiles of the fp32 rungs around wmma.
// Operands come through shared memory once per block, and a fragment of A serves subtiles_n products, one of B
// subtiles_m. wmma's three shapes are one choice of subtiles each: warp_m / subtiles_m x warp_n / subtiles_n.
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
    copy_a.copy(0);
    copy_b.copy(0);
    __syncthreads();
    tile.multiply_tiles(a_tile, b_tile);
    __syncthreads();  // all have read before the next tile overwrites, or the results
  }
  tile.store(args, origin.row, origin.col, a_tile);
}
