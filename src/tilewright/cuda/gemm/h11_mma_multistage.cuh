// h11: new over h10: `stages` buffers in a ring, fragments loaded one step of 16 ahead, across the border of two tiles
// too, and tiles swizzled so that no ldmatrix and no copy meets a bank conflict.
//
//     tile t, each step           start a part of the copy of tile t + stages - 1 into the buffer that tile t - 1 left;
//                                 load the next step's fragments; multiply this step's
//     tile t, its last step       wait until tile t + 1 has landed; barrier; read on from its buffer
//
// The barrier serves both sides: after it tile t + 1 is there for all, and all have read the last of tile t.
//
// Blocks are walked in groups that share L2. Thin grids gain blocks by split_k, each with its part of k and its own
// partial sums, or warps by slices_k: groups of warps that each take their part of every tile's k, and add up in shared
// memory. Nothing of the operands is touched before the grids ahead in the stream are done, so that this one's blocks
// can be on their SMs by then (ptx/grid_dependency.cuh).
#include "ptx/grid_dependency.cuh"
#include "tile/multistage.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  multistage<Cfg>(args, shared_address(shared), origin, [] { start_after_earlier_grids<Cfg::alone>(); });
}
