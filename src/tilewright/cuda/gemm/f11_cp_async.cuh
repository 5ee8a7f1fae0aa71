// f11: new over f10: cp.async fills the other buffer with no register in between (LDGSTS in the SASS).
// The next tile is copied while this one is multiplied; the wait at the end finds the copy done.
#include "tile/copy.cuh"
#include "tile/simt.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  __shared__ __align__(16) float a_tile[2][Tiles::a_size], b_tile[2][Tiles::b_size];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  AsyncA<Cfg, Tiles::a_pitch> copy_a(a_tile[0], lines_of_a<float, false>(args), 0, origin.row);
  AsyncB<Cfg, Tiles::b_pitch> copy_b(b_tile[0], lines_of_b<float, true>(args), 0, origin.col);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  const auto start_next = [&](int buffer) {
    copy_a.template start<Cfg::cache_all>(buffer * sizeof(a_tile[0]));
    copy_b.template start<Cfg::cache_all>(buffer * sizeof(b_tile[0]));
    cp_async_commit();
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  SumsOfSums<Cfg, Tiling::rows, Tiling::cols> sums;
  if (args.k > 0) start_next(0);
  cp_async_wait<0>();
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    if (k0 + Cfg::tile_k < args.k) start_next(buffer ^ 1);
    multiply_tiles<Cfg>(acc, at, a_tile[buffer], b_tile[buffer]);
    sums.after_tile(acc);
    cp_async_wait<0>();
    __syncthreads();  // the other buffer has landed for all, and this one has been read
  }
  sums.finish(acc);
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
