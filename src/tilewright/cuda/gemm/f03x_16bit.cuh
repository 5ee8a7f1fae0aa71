// An experiment: f03 on 16-bit operands. Tiles lie in shared memory as they came, and are widened when they are read.
#include "tile/copy.cuh"
#include "tile/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using T = typename Cfg::in_type;
  using Bits = unsigned short;              // copies move bits; to_float needs their type
  constexpr int a_pitch = Cfg::tile_k + 1;  // single loads, as in f03
  __shared__ Bits a_tile[Cfg::tile_m * a_pitch], b_tile[Cfg::tile_k * Cfg::tile_n];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  const Source<Bits> a = lines_of_a<Bits, true>(args), b = lines_of_b<Bits, true>(args);
  TileCopy<Bits, Cfg::tile_m, Cfg::tile_k, a_pitch, Cfg::threads, Cfg::a_unit != unit_row, 1, Cfg::edge> copy_a;
  TileCopy<Bits, Cfg::tile_k, Cfg::tile_n, Cfg::tile_n, Cfg::threads, Cfg::b_unit != unit_row, 1, Cfg::edge> copy_b;
  const int row = threadIdx.x / Cfg::tile_n, col = threadIdx.x % Cfg::tile_n;

  float sum = 0;
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(a_tile, a, origin.row, k0);
    copy_b.copy(b_tile, b, k0, origin.col);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Cfg::tile_k; ++k)
      sum = fmaf(to_float(T{a_tile[row * a_pitch + k]}), to_float(T{b_tile[k * Cfg::tile_n + col]}), sum);
    __syncthreads();  // all have read before the next tile overwrites
  }
  store_element<Cfg>(args, origin.row + row, origin.col + col, sum);
}
