// An experiment: h05 without cp.async. The next tile waits in registers while this one is multiplied, as f10's does.
#include "tile/copy16.cuh"
#include "tile/wmma_tile.cuh"

/// The next tile into registers.
template <class Copy>
__device__ inline void fetch(Copy& copy) {
#pragma unroll
  for (int p = 0; p < Copy::passes; ++p)
    if (Copy::in_tile(p)) copy.held[p] = copy.chunk(p);
}
/// The same into the buffer `buffer_bytes` after buffer 0.
template <class Copy>
__device__ inline void put(Copy& copy, unsigned buffer_bytes) {
#pragma unroll
  for (int p = 0; p < Copy::passes; ++p)
    if (Copy::in_tile(p)) Copy::put(copy.target(buffer_bytes, p), copy.held[p]);
  copy.advance();
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned a_tiles = shared_address(shared), b_tiles = a_tiles + 2 * A::bytes;
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, 0, origin.col);

  WmmaTile<Cfg, A, B> tile;
  if (args.k > 0) {
    copy_a.copy(0);
    copy_b.copy(0);
  }
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    const bool more = k0 + Cfg::tile_k < args.k;
    if (more) {
      fetch(copy_a);
      fetch(copy_b);
    }
    tile.multiply_tiles(a_tiles + buffer * A::bytes, b_tiles + buffer * B::bytes);
    if (more) {
      put(copy_a, (buffer ^ 1) * A::bytes);
      put(copy_b, (buffer ^ 1) * B::bytes);
    }
    __syncthreads();  // the other buffer is there for all, and this one has been read
  }
  tile.store(args, origin.row, origin.col, a_tiles);
}
