#pragma once
// Accumulators of wgmma (ptx/wgmma.cuh) to global memory. A result of 16 bits is moved in 16-byte accesses, four lanes to
// 64 bytes of a row: they pass packed words among one another (transpose_quad), so that lane t, which has two columns of
// each of four neighbouring products, has the eight columns of product t. What the epilogue reads takes the same way
// back. Half as many accesses as 8 bytes a lane take, and lines are looked up half as often.

#include "tile/accumulator_store.cuh"

/// A warp's 16 rows from `row0` on, 32 columns from `col0` on.
template <class Cfg>
struct ResultQuads {
  using Out = typename Cfg::out_type;
  using Old = FusedRun<Out, true, fused_unit, true, false, InQuad>;
  static constexpr int registers = 2 * FusedReads<true, InQuad>::registers + (Cfg::use_c ? 2 * Old::registers : 0);

  FusedReads<true, InQuad> reads[2];  // of rows lane / 4 and lane / 4 + 8
  Old old[2];                         // of C

  static __device__ int row_of(int row0, int half) { return row0 + 8 * half + threadIdx.x % 32 / 4; }
  static __device__ int left(const GemmArgs& args, int row, int col0) {
    return !Cfg::edge ? 32 : row < args.m ? args.n - col0 : 0;
  }

  __device__ void read(const GemmArgs& args, int row0, int col0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(row0, half);
      if constexpr (Cfg::use_c) old[half].read({args.c, args.c_batch, args.c_row, 1}, row, col0, left(args, row, col0));
      reads[half].read(args.fused, row, col0, left(args, row, col0));
    }
  }

  /// Of products product[0] to product[3].
  __device__ void store(const GemmArgs& args, int row0, int col0, const float (*product)[4]) {
    const int mine = threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(row0, half);
      float value[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = args.alpha * product[i / 2][2 * half + i % 2];
      if constexpr (Cfg::use_c) {
        old[half].settle();
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = fmaf(args.beta, old[half][i], value[i]);
      }
      reads[half].apply(args.fused, value);
      unsigned word[4];
      pack_run<Out>(word, value);
      transpose_quad(word);
      if (mine < left(args, row, col0))
        store_global_16(out_base<Cfg>(args) + row * args.out_row + col0 + mine, word);
    }
  }
};

/// A warp's 16 rows from `row0` on, `columns` products from `col0` on. `free`: registers that what is read ahead may take.
template <class Cfg, int columns, int free>
struct ResultRows {
  static constexpr bool in_quads = sizeof(typename Cfg::out_type) == 2 && Cfg::vector_out;
  static constexpr int groups = columns / 4, each = ResultQuads<Cfg>::registers;
  static constexpr int ahead = each * groups <= free ? groups : each < free ? free / each : 1;

  ResultQuads<Cfg> group[groups];

  /// Asks for what the epilogue needs first.
  __device__ void read(const GemmArgs& args, int row0, int col0) {
    if constexpr (in_quads) {
#pragma unroll
      for (int g = 0; g < ahead; ++g) group[g].read(args, row0, col0 + 32 * g);
    }
  }

  __device__ void store(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
    if constexpr (in_quads) {
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        // Never false where nothing is edge, but the compiler does not know: it would put all stores behind all arithmetic,
        // and memory would wait for one and then the threads for the other.
        if (col0 + 32 * g < args.n) group[g].store(args, row0, col0 + 32 * g, &value[4 * g]);
        if (g + ahead < groups) group[g + ahead].read(args, row0, col0 + 32 * (g + ahead));
      }
    } else {
      store_sixteen_rows<Cfg>(args, row0, col0, value);
    }
  }
};
