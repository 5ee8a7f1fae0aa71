#pragma once
// a01: tiles in shared memory, mma.sync, online softmax. Everything is waited for where it is needed: K, then S; V, then
// out. Q, K and V go whole into registers. Rows of the tiles lie in order, so ldmatrix meets eight rows in one bank.
//
// A rung is a struct of choices; the next one inherits them and replaces what is new.
#include "attention/block.cuh"

struct A01 {
  static constexpr bool swizzled = false;
  static constexpr int k_order = down;
  static constexpr bool fused = false;             // scale and subtraction of the softmax in one instruction
  static constexpr bool lazy = false;              // out follows the maximum only when it has grown much
  static constexpr bool backwards = false;         // the last keys first
  static constexpr bool heavy_first = false;       // the blocks with most visible keys first
  static constexpr bool multiply_inverse = false;  // one division a row
  static constexpr bool static_strides = false;    // compiled for the problem's row strides and head group
  static constexpr int slice(int d_head) { return d_head; }

  template <class Tile, int order>
  using Reader = RecomputedReader<Tile, order>;
  template <class Tile, int threads, bool edge>
  using CopyQ = RecomputedCopy<Tile, threads, 32, edge>;
  template <class Tile, int threads, bool edge>
  using CopyKV = RecomputedCopy<Tile, threads, 32, edge>;
  template <class Cfg>
  using Product = StepByStep;
  template <class Tile>
  using Writer = RecomputedWriter<Tile>;
  using Store = PlainStore;

  template <class Block>
  static __device__ void walk(Block& block) {
    block.start_q();
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    block.hold_q();
    block.clear();
    for (int n = 0; n < block.tiles(); ++n) {
      block.start_k(n);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();  // K is there for all; all have read V
      block.multiply_qk();
      block.template weigh<false>(n);
      block.start_v(n);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();  // V is there for all; all have read K
      block.template multiply_pv<false>();
    }
  }
};
