// f11: new over f10: cp.async fills the other buffer with no register in between (LDGSTS in the SASS).
// The copy of the next tile runs behind the products of this one; the wait at the end finds it done.
#include "gemm/transposed.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) gemm(const __grid_constant__ GemmArgs args) {
  using Tiles = TransposedTiles<Cfg>;
  __shared__ __align__(16) float a_tile[2][Tiles::a_size], b_tile[2][Tiles::b_size];
  const TileOrigin origin = tile_origin<Cfg::tile_m, Cfg::tile_n, Cfg::group_m>(blockIdx.x, args.m, args.n);
  const TileSource<float> a = source_a_transposed(args), b = source_b(args);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;
  const auto start_copy = [&](int buffer, int k0) {
    AsyncA<Cfg, Tiles::a_pitch>::template copy_async<Cfg::cache_all>(a_tile[buffer], a, k0, origin.row);
    AsyncB<Cfg, Tiles::b_pitch>::template copy_async<Cfg::cache_all>(b_tile[buffer], b, k0, origin.col);
    cp_async_commit();
  };

  float acc[Tiling::rows][Tiling::cols] = {};
  if (args.k > 0) start_copy(0, 0);
  cp_async_wait<0>();
  __syncthreads();
  int buffer = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k, buffer ^= 1) {
    if (k0 + Cfg::tile_k < args.k) start_copy(buffer ^ 1, k0 + Cfg::tile_k);
    multiply_tiles<Cfg>(acc, at, a_tile[buffer], b_tile[buffer]);
    cp_async_wait<0>();
    __syncthreads();  // the other buffer has landed for all, and this one has been read
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
