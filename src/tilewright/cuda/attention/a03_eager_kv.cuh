#pragma once
// a03: new over a02: a copy starts as soon as its place is free, one product before it is needed. V comes during Q K^T,
// the next K during P V. Still two barriers a tile, each for both ends:
//
//     barrier 1     K has landed for all      all have read the V before: the next V may come
//     barrier 2     V has landed for all      all have read K: the next K may come
#include "attention/a02_swizzle.cuh"

struct A03 : A02 {
  /// One tile of keys and values.
  template <bool first, class Block>
  static __device__ void pass(Block& block, int n) {
    cp_async_wait<0>();
    __syncthreads();  // barrier 1
    block.start_v(n);
    cp_async_commit();
    if constexpr (first) block.hold_q();
    block.multiply_qk();
    block.template weigh<first>(n);
    cp_async_wait<0>();
    __syncthreads();  // barrier 2
    if (n + 1 < block.tiles()) block.start_k(n + 1);
    cp_async_commit();
    block.template multiply_pv<first>();
  }

  template <class Block>
  static __device__ void walk(Block& block) {
    block.start_q();
    block.start_k(0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    block.hold_q();
    block.clear();
    for (int n = 0; n < block.tiles(); ++n) pass<false>(block, n);
  }
};
