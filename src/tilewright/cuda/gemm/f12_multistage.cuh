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
  AsyncA<Cfg, Tiles::a_pitch> copy_a(a_tiles, source_a_transposed(args), 0, origin.row);
  AsyncB<Cfg, Tiles::b_pitch> copy_b(b_tiles, source_b(args), 0, origin.col);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  int to_start = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;  // tiles whose copy has not been started
  const auto start_next = [&](int stage) {
    if (to_start-- > 0) {
      copy_a.template start<Cfg::cache_all>(stage * (Tiles::a_size * unsigned(sizeof(float))));
      copy_b.template start<Cfg::cache_all>(stage * (Tiles::b_size * unsigned(sizeof(float))));
    }
    cp_async_commit();  // also when empty: the wait counts groups
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  float a_column[2][Tiling::rows], b_row[2][Tiling::cols];
#pragma unroll
  for (int stage = 0; stage < Cfg::stages - 1; ++stage) start_next(stage);
  cp_async_wait<Cfg::stages - 2>();
  __syncthreads();
  const float* const a_first = a_tiles + at.row0;
  const float* const b_first = b_tiles + at.col0;
  if (args.k > 0) {
    at.load_a(a_column[0], a_first);
    at.load_b(b_row[0], b_first);
  }

  int read = 0, write = Cfg::stages - 1;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    const float* a_tile = a_first + read * Tiles::a_size;
    const float* b_tile = b_first + read * Tiles::b_size;
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      if (k == Cfg::tile_k - 1) {
        cp_async_wait<Cfg::stages - 2>();
        __syncthreads();
        read = read + 1 == Cfg::stages ? 0 : read + 1;
        a_tile = a_first + read * Tiles::a_size;
        b_tile = b_first + read * Tiles::b_size;
      }
      const int next = (k + 1) % Cfg::tile_k;
      if (next != 0 || k0 + Cfg::tile_k < args.k) {
        at.load_a(a_column[(k + 1) % 2], a_tile + next * Tiles::a_pitch);
        at.load_b(b_row[(k + 1) % 2], b_tile + next * Tiles::b_pitch);
      }
      if (k == 0) {
        start_next(write);
        write = write + 1 == Cfg::stages ? 0 : write + 1;
      }
      outer_product(acc, a_column[k % 2], b_row[k % 2]);
    }
  }
  cp_async_wait<0>();
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
