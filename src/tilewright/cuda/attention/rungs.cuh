#pragma once
// The attention rungs, from the first to the last, and the kernel that runs the one that Cfg names.
//
// A rung is a struct of choices. It inherits those of the rung before it and replaces what is new; attention/block.cuh
// does what they choose.

#include "attention/block.cuh"

// ---- a01_base ------------------------------------------------------------------------------------------------------
// Tiles in shared memory, mma.sync, online softmax. Everything is waited for where it is needed: K, then S; V, then
// out. Q, K and V go into registers as a whole. Rows of the tiles lie in order, so ldmatrix meets eight rows in one
// bank.

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
  using Product = Steps<false>;
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

// ---- a02_swizzle ---------------------------------------------------------------------------------------------------
// Chunks of 16 bytes change places within their row (tile/head_tile.cuh). The eight rows that ldmatrix reads at once
// then lie in eight different parts of the banks: one pass instead of eight.

struct A02 : A01 {
  static constexpr bool swizzled = true;
};

// ---- a03_eager_kv --------------------------------------------------------------------------------------------------
// A copy starts as soon as its place is free, one product before it is needed. V comes during Q K^T, the next K during
// P V. There are still two barriers per tile, and each serves both sides:
//
//     barrier 1     K has landed for all      all have read the V before: the next V may come
//     barrier 2     V has landed for all      all have read K: the next K may come

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

// ---- a04_interleave ------------------------------------------------------------------------------------------------
// An operand need not be in registers as a whole. A config's load_q, load_k and load_v of 2 bring slices of two
// fragments (16 columns of Q and K, 16 rows of V): load, multiply, load ... A fragment is still loaded once per
// product, so that m x n products take m + n loads; row by row they would take m (1 + n). tile/pieces.cuh does it. Up
// to a03 a config may only ask for 0, the whole.

struct A04 : A03 {};

// ---- a05_smem_rf_double_buffer -------------------------------------------------------------------------------------
// Two sets of fragments, where a config asks for them: while one slice is multiplied the next is loaded.

struct A05 : A04 {
  template <class Cfg>
  using Product = Steps<Cfg::buffer>;
};

// ---- a06_fp_fusion -------------------------------------------------------------------------------------------------
// Scores stay unscaled. 2^(score * factor - max * factor) takes one FFMA and one MUFU an element, where scaling,
// subtracting and changing the base took three. Cfg::scale_first is false from here on, except for scales that are not
// positive: the largest score must stay the largest.

struct A06 : A05 {
  static constexpr bool fused = true;
};

// ---- a07_autotuned -------------------------------------------------------------------------------------------------
// The code of a06; new is the config, which a sweep of the space chose (attn/rungs.py).

struct A07 : A06 {};

// ---- a08_strided_swizzle -------------------------------------------------------------------------------------------
// The swizzle as strides of +-64 and +-32 bytes per thread, computed once: addresses are a few registers and constants.
// The block copies K and V together. A step is then a multiple of 8 rows, and every chunk of a thread lies at a
// constant distance from its first.

struct A08 : A07 {
  template <class Tile, int order>
  using Reader = StridedReader<Tile, order>;
  template <class Tile, int threads, bool edge>
  using CopyQ = StridedCopy<Tile, threads, edge>;
  template <class Tile, int threads, bool edge>
  using CopyKV = StridedCopy<Tile, threads, edge>;
};

// ---- a09_fragment_order --------------------------------------------------------------------------------------------
// K's pieces are read across, not down (tile/pieces.cuh). mma.sync takes two neighbouring registers as its right
// operand; read down, they are two apart, and each pair must be moved together.

struct A09 : A08 {
  static constexpr int k_order = across;
};

// ---- a10_peel_first ------------------------------------------------------------------------------------------------
// The first tile apart. It starts out and the sums instead of following them, so that nothing is zeroed (the first
// product adds to the zero register) and nothing is rescaled.

struct A10 : A09 {
  template <class Block>
  static __device__ void walk(Block& block) {
    block.start_q();
    block.start_k(0);
    cp_async_commit();
    A03::pass<true>(block, 0);
    for (int n = 1; n < block.tiles(); ++n) A03::pass<false>(block, n);
  }
};

// ---- a11_strided_store ---------------------------------------------------------------------------------------------
// The results' way through shared memory takes the swizzle as strides too.

struct A11 : A10 {
  template <class Tile>
  using Writer = StridedWriter<Tile>;
};

// ---- a12_block_index -----------------------------------------------------------------------------------------------
// A block computes once where its rows of Q, K, V and out begin; copies walk on from there with a running pointer. Rows
// are multiplied with 1 / sum instead of divided. Under a causal mask the blocks that see most keys come first.

struct A12 : A11 {
  static constexpr bool heavy_first = true;
  static constexpr bool multiply_inverse = true;
  template <class Tile, int threads, bool edge>
  using CopyKV = RunningCopy<Tile, threads, edge, Tile::rows>;
};

// ---- a13_reverse_kv ------------------------------------------------------------------------------------------------
// Keys and values are walked backwards. Tiles with hidden pairs come first, and the count of tiles left is the index of
// the next: there is no end to compare with.

struct A13 : A12 {
  static constexpr bool backwards = true;
  template <class Tile, int threads, bool edge>
  using CopyKV = RunningCopy<Tile, threads, edge, -Tile::rows>;
};

// ---- a14_store_policy ----------------------------------------------------------------------------------------------
// Results are stored to be evicted first. L2 keeps keys and values, which other blocks read again.

struct A14 : A13 {
  using Store = StreamingStore;
};

// ---- a15_head_slices -----------------------------------------------------------------------------------------------
// Tiles are cut into slices of 64 columns, or 32 where d_head is an odd multiple of 32. A row of a slice is then a row
// of banks, whatever d_head is.

struct A15 : A14 {
  static constexpr int slice(int d_head) { return d_head % 64 == 0 ? 64 : 32; }
};

// ---- a16_static_strides --------------------------------------------------------------------------------------------
// Row strides and the head group are constants, compiled in with the call's config.

struct A16 : A15 {
  static constexpr bool static_strides = true;
};

// ---- a17_lazy_rescale ----------------------------------------------------------------------------------------------
// out and the sums follow a row's maximum only when it has outgrown the old one by 2^8 (tile/softmax.cuh). After a few
// tiles it hardly ever does: 2 d_head multiplications a row and tile become one comparison.

struct A17 : A16 {
  static constexpr bool lazy = true;
};

// ---- the kernel ----------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    attention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Rung = typename Cfg::rung;
  Block<Cfg, Rung> block(args, shared_address(shared));
  if constexpr (Score<Cfg>::may_hide_rows) {
    if (block.tiles() <= 0) return block.store_nothing();
  }
  Rung::walk(block);
  block.store();
}
