// f03: new over f02: operands come through shared memory in tiles.
// Each element of a tile is read from global memory once per block instead of once per thread: tile_n times less
// traffic for A, tile_m times less for B.
#include "tile/copy.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  // A line of A is one element longer than its tile is wide: lines start at any alignment then, so the compiler keeps
  // loads of one element, as written. Wider ones are f06's idea.
  constexpr int a_pitch = Cfg::tile_k + 1;
  __shared__ float a_tile[Cfg::tile_m * a_pitch], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<float> a = lines_of_a<float, true>(args), b = lines_of_b<float, true>(args);
  CopyA<Cfg, a_pitch, false> copy_a;
  CopyB<Cfg, Cfg::tile_n, false> copy_b;
  const int row = threadIdx.x / Cfg::tile_n, col = threadIdx.x % Cfg::tile_n;

  float sum = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k) sum = fmaf(a_tile[row * a_pitch + k], b_tile[k * Cfg::tile_n + col], sum);
    __syncthreads();  // all have read before the next tile overwrites
  }
  store_element<Cfg>(args, origin.row + row, origin.col + col, sum);
}
