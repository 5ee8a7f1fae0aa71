// h07: new over h05: three things overlap: global -> shared (tile t + 2), shared -> registers (tile t + 1), products
// (tile t). The fragments of a whole tile are held; they are refilled after the products that read them, so one set
// serves (fragment_sets = 1). With two sets the refill comes first: the same overlap for twice the registers.
//
//     copy of tile t + 2 starts into the buffer of tile t - 1
//     products of tile t, from registers
//     wait until tile t + 1 has landed; barrier: after it all have also read tile t from shared memory
//     fragments of tile t + 1
#include "tile/copy16.cuh"
#include "tile/wmma_tile.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  static_assert(Cfg::stages == 3, "a tile to copy to, one to read, and one that the slowest warp may still read");
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  using Tile = WmmaTile<Cfg, A, B>;
  extern __shared__ __align__(128) unsigned char shared[];
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
  Tile tile;
  typename Tile::Fragments held[Cfg::fragment_sets][steps];
  const auto load_tile = [&](typename Tile::Fragments(&to)[steps], int buffer) {
#pragma unroll
    for (int step = 0; step < steps; ++step)
      tile.load(to[step], a_tiles + buffer * A::bytes, b_tiles + buffer * B::bytes, step);
  };
  const auto multiply_tile = [&](const typename Tile::Fragments(&from)[steps]) {
#pragma unroll
    for (int step = 0; step < steps; ++step) tile.multiply(from[step]);
  };

  start(0, 0);
  start(1, 1);
  cp_async_wait<1>();
  __syncthreads();
  if (tiles > 0) load_tile(held[0], 0);
  int read = 1, write = 2;  // the buffers of tiles t + 1 and t + 2
  const auto one_tile = [&](int t, int set) {
    start(t + 2, write);
    if constexpr (Cfg::fragment_sets == 1) multiply_tile(held[0]);
    if (t + 1 < tiles) {
      cp_async_wait<1>();
      __syncthreads();
      load_tile(held[(set + 1) % Cfg::fragment_sets], read);
    }
    if constexpr (Cfg::fragment_sets == 2) multiply_tile(held[set]);
    write = write == 2 ? 0 : write + 1;
    read = read == 2 ? 0 : read + 1;
  };
  if constexpr (Cfg::fragment_sets == 1) {
    for (int t = 0; t < tiles; ++t) one_tile(t, 0);
  } else {
    for (int t = 0; t < tiles; t += 2) {  // two tiles a round: which set is in use is known when compiling
      one_tile(t, 0);
      if (t + 1 < tiles) one_tile(t + 1, 1);
    }
  }
  cp_async_wait<0>();
  __syncthreads();  // the results go where the tiles were
  tile.store(args, origin.row, origin.col, a_tiles);
}
