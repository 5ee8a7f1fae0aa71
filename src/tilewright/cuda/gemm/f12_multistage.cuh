// f12: new over f11: `stages` buffers in a ring, so that several tiles are under way at once, and the fragments of the
// next k are loaded while those of this k are multiplied, across the border between two tiles too.
//
//     tile t, k < tile_k - 1      start the copy of tile t + stages - 1, in parts, into the buffer that tile t - 1 left
//     tile t, k = tile_k - 1      wait until tile t + 1 has landed; barrier; read on from its buffer
//
// The barrier serves both sides: after it tile t + 1 is there for all, and all have read the last of tile t.
// Thin grids gain blocks by split_k, each with its part of k and its own partial sums.
// Nothing of the operands is touched before the grids ahead in the stream are done (ptx/grid_dependency.cuh).
#include "ptx/grid_dependency.cuh"
#include "tile/multistage32.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(16) float shared[];
  multistage32<Cfg>(args, shared, tile_origin<Cfg>(blockIdx.x, args.m, args.n), [] {
    wait_for_earlier_grids();
    let_later_grids_start();
  });
}
