#pragma once
// Accumulators of wgmma (ptx/wgmma.cuh) to global memory, where possible in 16-byte accesses: a quad's four lanes
// write 64 bytes of a row or more, by half as many accesses as 8 bytes a lane take, and lines are looked up half as often.
//
//     B's lines in shared memory by_lane (tile/tile16.cuh)   a lane has eight columns side by side
//     else, results of 16 bits                               lanes pass packed words among one another (transpose_quad);
//                                                            what the epilogue reads takes the same way back
//     else, fp32                                             8 bytes a lane: a quad fills a sector
//
// Results whose rows no 16-byte access suits, or end within eight columns (fp32: n = 100), go as those of mma.sync do
// (tile/accumulator_store.cuh).

#include "tile/accumulator_store.cuh"

/// A warp's 16 rows from `row0` on, 32 columns from `col0` on.
template <class Cfg, class Order>
struct ResultGroup {
  using Out = typename Cfg::out_type;
  using Old = FusedRun<Out, true, fused_unit, true, false, Order>;
  static constexpr int registers = 2 * FusedReads<true, Order>::registers + (Cfg::use_c ? 2 * Old::registers : 0);

  FusedReads<true, Order> reads[2];  // of rows lane / 4 and lane / 4 + 8
  Old old[2];                        // of C

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
      unsigned word[2 * sizeof(Out)];
      pack_run<Out>(word, value);
      move(word, out_base<Cfg>(args) + row * args.out_row + col0, left(args, row, col0));
    }
  }

  /// What a lane has of a row, to the row from `to` on.
  template <int words>
  static __device__ void move(unsigned (&word)[words], Out* to, int left) {
    if constexpr (Order::shuffled && words == 8) {
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        if (Order::inside(i, left)) store_global_8(to + Order::first() + Order::along(i), word[i], word[i + 1]);
    } else {
      if constexpr (Order::shuffled) transpose_quad(word);
      if (InLanes::inside(0, left)) {
#pragma unroll
        for (int i = 0; i < words; i += 4)
          store_global_16(reinterpret_cast<unsigned*>(to + InLanes::first()) + i,
                          reinterpret_cast<const unsigned(&)[4]>(word[i]));
      }
    }
  }
};

/// A warp's 16 rows from `row0` on, `columns` products from `col0` on. `free`: registers that what is read ahead may take.
template <class Cfg, int columns, int free, bool by_lane>
struct ResultRows {
  static constexpr bool grouped = Cfg::whole_eights;
  using Group = ResultGroup<Cfg, typename Select<by_lane, InLanes, InQuad>::type>;
  static constexpr int groups = columns / 4, each = Group::registers;
  static constexpr int ahead = each * groups <= free ? groups : each < free ? free / each : 1;

  Group group[grouped ? groups : 1];

  /// Asks for what the epilogue needs first.
  __device__ void read(const GemmArgs& args, int row0, int col0) {
    if constexpr (grouped) {
#pragma unroll
      for (int g = 0; g < ahead; ++g) group[g].read(args, row0, col0 + 32 * g);
    }
  }

  __device__ void store(const GemmArgs& args, int row0, int col0, const float (&value)[columns][4]) {
    if constexpr (grouped) {
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
