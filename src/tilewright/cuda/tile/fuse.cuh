#pragma once
// The problem's own epilogue (gemm/fused.cuh), read and applied at once.

#include "gemm/args.cuh"

/// To `count` elements of a row from (row, col) on; `vectors`: whole runs of an aligned result, all of them inside it.
template <bool vectors, int count>
__device__ inline void fuse(const FusedArgs& args, int row, int col, float (&value)[count]) {
  FusedReads<vectors, InLine<count>> reads;
  reads.read(args, row, col, count);
  reads.apply(args, value);
}
