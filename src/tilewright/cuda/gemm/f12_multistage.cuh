// f12: new over f11: `stages` buffers in a ring, so that several tiles are under way at once, and the fragments of the
// next k are loaded while those of this k are multiplied, across the border between two tiles too.
//
//     tile t, k = 0               start the copy of tile t + stages - 1 into the buffer that tile t - 1 left
//     tile t, k = tile_k - 1      wait until tile t + 1 has landed; barrier; read on from its buffer
//
// The barrier serves both ways: behind it tile t + 1 is there for all, and all have read the last of tile t.
#include "gemm/transposed.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks) gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  extern __shared__ __align__(16) float shared[];
  float* const a_tiles = shared;
  float* const b_tiles = shared + Cfg::stages * Tiles::a_size;
  const TileOrigin origin = tile_origin<Cfg::tile_m, Cfg::tile_n, Cfg::group_m>(blockIdx.x, args.m, args.n);
  const TileSource<float> a = source_a_transposed(args), b = source_b(args);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  const auto start_copy = [&](int stage, int k0) {
    if (k0 < args.k) {
      AsyncA<Cfg, Tiles::a_pitch>::template copy_async<Cfg::cache_all>(a_tiles + stage * Tiles::a_size, a, k0,
                                                                       origin.row);
      AsyncB<Cfg, Tiles::b_pitch>::template copy_async<Cfg::cache_all>(b_tiles + stage * Tiles::b_size, b, k0,
                                                                       origin.col);
    }
    cp_async_commit();  // also when empty: the wait counts groups
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  float a_column[2][Tiling::rows], b_row[2][Tiling::cols];
#pragma unroll
  for (int stage = 0; stage < Cfg::stages - 1; ++stage) start_copy(stage, stage * Cfg::tile_k);
  cp_async_wait<Cfg::stages - 2>();
  __syncthreads();
  if (args.k > 0) {
    at.load_a(a_column[0], a_tiles);
    at.load_b(b_row[0], b_tiles);
  }

  int read = 0, write = Cfg::stages - 1;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      if (k == Cfg::tile_k - 1) {
        cp_async_wait<Cfg::stages - 2>();
        __syncthreads();
        read = read + 1 == Cfg::stages ? 0 : read + 1;
      }
      const int next = (k + 1) % Cfg::tile_k;
      if (next != 0 || k0 + Cfg::tile_k < args.k) {
        at.load_a(a_column[(k + 1) % 2], a_tiles + read * Tiles::a_size + next * Tiles::a_pitch);
        at.load_b(b_row[(k + 1) % 2], b_tiles + read * Tiles::b_size + next * Tiles::b_pitch);
      }
      if (k == 0) {
        start_copy(write, k0 + (Cfg::stages - 1) * Cfg::tile_k);
        write = write + 1 == Cfg::stages ? 0 : write + 1;
      }
      outer_product(acc, a_column[k % 2], b_row[k % 2]);
    }
  }
  cp_async_wait<0>();
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
