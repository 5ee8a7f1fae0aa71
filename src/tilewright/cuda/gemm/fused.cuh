#pragma once
// What becomes of a sum before it is rounded and stored: here nothing. A problem with an epilogue has this file's place
// taken by a text made from its expression (gemm/fused.py), with the operands' addresses and strides in
// FusedArgs.

struct FusedArgs {};

/// Brings what the block's tile, from (row, col) on, will read of the operands near, while the products go on;
/// where `now` is false it does not. `branches`: whether it may branch.
template <class Cfg, bool branches = true>
__device__ inline void fetch_fused(const FusedArgs&, int row, int col, int m, int n, bool now = true) {}

/// Reads what the epilogue needs for `count` elements of a row from (row, col) on and applies it. `vectors`: whole runs
/// of an aligned result, all of them inside it.
template <bool vectors, int count>
__device__ inline void fuse(const FusedArgs&, int row, int col, float (&value)[count]) {}

/// The same in two steps, for a kernel that reads long before it has the sums. `Order`: which elements of a row a lane
/// has, relative to `col` (tile/fused.cuh). `vectors`: whole vectors of an aligned result are inside it or outside;
/// `left` columns from col on are inside.
template <bool vectors, class Order>
struct FusedReads {
  static constexpr int registers = 0;
  __device__ void read(const FusedArgs&, int row, int col, int left) {}
  __device__ void apply(const FusedArgs&, float (&value)[Order::count]) {}
};
