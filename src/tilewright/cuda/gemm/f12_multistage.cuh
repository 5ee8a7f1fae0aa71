// f12: new over f11: `stages` buffers in a ring, so that several tiles are under way at once, and the fragments of the
// next k are loaded while those of this k are multiplied, across the border between two tiles too.
//
//     tile t, k < tile_k - 1      start the copy of tile t + stages - 1, in parts, into the buffer that tile t - 1 left
//     tile t, k = tile_k - 1      wait until tile t + 1 has landed; barrier; read on from its buffer
//
// The barrier serves both ways: behind it tile t + 1 is there for all, and all have read the last of tile t.
// Thin grids gain blocks by split_k, each with its part of k and its own partial sums.
// Nothing of the operands is touched before the grids ahead in the stream are done (ptx/grid_dependency.cuh).
#include "gemm/transposed.cuh"
#include "ptx/grid_dependency.cuh"

template <bool v>
struct Constant {
  static constexpr bool value = v;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks) gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  extern __shared__ __align__(16) float shared[];
  float* const a_tiles = shared;
  float* const b_tiles = shared + Cfg::stages * Tiles::a_size;
  const TileOrigin origin = tile_origin<Cfg::tile_m, Cfg::tile_n, Cfg::group_m>(blockIdx.x, args.m, args.n);
  // This block's tiles along k: [first, first + tiles).
  const int all = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;
  const int first = Cfg::split_k > 1 ? (long long)all * blockIdx.z / Cfg::split_k : 0;
  const int tiles = (Cfg::split_k > 1 ? (long long)all * (blockIdx.z + 1) / Cfg::split_k : all) - first;
  AsyncA<Cfg, Tiles::a_pitch> copy_a(a_tiles, source_a_transposed(args), first * Cfg::tile_k, origin.row);
  AsyncB<Cfg, Tiles::b_pitch> copy_b(b_tiles, source_b(args), first * Cfg::tile_k, origin.col);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  constexpr unsigned a_bytes = Tiles::a_size * sizeof(float), b_bytes = Tiles::b_size * sizeof(float);
  // One of `parts` equal parts of the copy of the next tile.
  const auto start_part = [&](int stage, int part, int parts) {
    copy_a.template start_part<Cfg::cache_all>(stage * a_bytes, part, parts);
    copy_b.template start_part<Cfg::cache_all>(stage * b_bytes, part, parts);
    if (part + 1 == parts) copy_a.advance(), copy_b.advance();
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  float a_column[2][Tiling::rows], b_row[2][Tiling::cols];
  wait_for_earlier_grids();
  let_later_grids_start();
#pragma unroll
  for (int stage = 0; stage < Cfg::stages - 1; ++stage) {
    if (stage < tiles) start_part(stage, 0, 1);
    cp_async_commit();  // also when empty: the wait counts groups
  }
  fetch_fused<Cfg>(args.fused, origin.row, origin.col, args.m, args.n);
  cp_async_wait<Cfg::stages - 2>();
  __syncthreads();
  const float* const a_first = a_tiles + at.row0;
  const float* const b_first = b_tiles + at.col0;
  if (tiles > 0) {
    at.load_a(a_column[0], a_first);
    at.load_b(b_row[0], b_first);
  }

  int read = 0, write = Cfg::stages - 1;
  // One tile's products; `copying` while there are tiles whose copy has not been started.
  const auto multiply_tile = [&](auto copying, bool last) {
    const float* a_tile = a_first + read * Tiles::a_size;
    const float* b_tile = b_first + read * Tiles::b_size;
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) {
      // The copies are spread over the steps: sent at once they would queue, and hold the warp that sends them.
      constexpr int parts = Cfg::tile_k < 8 ? Cfg::tile_k : 8, every = Cfg::tile_k / parts;
      if (copying.value && k % every == 0) start_part(write, k / every, parts);
      if (k == Cfg::tile_k - 1) {
        cp_async_commit();
        cp_async_wait<Cfg::stages - 2>();
        __syncthreads();
        write = read;  // the tile multiplied now is the next to be overwritten
        read = read + 1 == Cfg::stages ? 0 : read + 1;
        a_tile = a_first + read * Tiles::a_size;
        b_tile = b_first + read * Tiles::b_size;
      }
      const int next = (k + 1) % Cfg::tile_k;
      if (next != 0 || !last) {
        at.load_a(a_column[(k + 1) % 2], a_tile + next * Tiles::a_pitch);
        at.load_b(b_row[(k + 1) % 2], b_tile + next * Tiles::b_pitch);
      }
      outer_product(acc, a_column[k % 2], b_row[k % 2]);
    }
  };
  int tile = 0;
  if constexpr (Cfg::a_edge && Cfg::b_edge && Cfg::split_k == 1) {  // copies behind the end of k fill zeros, read nothing
    for (; tile < tiles; ++tile) multiply_tile(Constant<true>(), tile + 1 == tiles);
  } else {
    for (; tile < tiles - (Cfg::stages - 1); ++tile) multiply_tile(Constant<true>(), false);
    for (; tile < tiles; ++tile) multiply_tile(Constant<false>(), tile + 1 == tiles);
  }
  cp_async_wait<0>();
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
