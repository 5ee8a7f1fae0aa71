#pragma once
// What becomes of a sum before it is rounded and stored: here nothing. A problem with an epilogue has this file's place
// taken by a text made from its expression (ladder/fused.py), with the operands' addresses and strides in FusedArgs.

struct FusedArgs {};

/// Brings what the block's tile, from (row, col) on, will read of the operands near, while the products go on.
template <class Cfg>
__device__ inline void fetch_fused(const FusedArgs&, int row, int col, int m, int n) {}

/// `count` elements of a row from (row, col) on; `vectors`: whole runs of an aligned result, all of them inside it.
template <bool vectors, int count>
__device__ inline void fuse(const FusedArgs&, int row, int col, float (&value)[count]) {}
