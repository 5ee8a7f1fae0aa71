#pragma once
// How results of wgmma leave where B's lines lie by_lane in shared memory (tile/tile16.cuh): of every 32 columns of a
// row a lane has eight side by side, two of each of four products.
//
//     column      0 1  2 3  4 5  6 7 |  8 9  10 11  12 13  14 15 | 16 ..
//     lane                 0         |             1             |  2 ..
//     product     0    1    2    3   |   0     1      2      3   |  0 ..
//
// C and the epilogue's operands are read, and results stored, 16 bytes per access: a quad's four lanes move 64 bytes of
// a row at once, or 128 of fp32 in two accesses. Every group of eight columns is inside the result or outside as one
// (Cfg::whole_eights).

#include "gemm/args.cuh"
#include "ptx/global.cuh"
#include "tile/store_rows.cuh"

/// Eight columns side by side, of the 32 that a quad shares (tile/fused.cuh says what an Order is).
struct InLanes {
  static constexpr int count = 8;
  static constexpr bool shuffled = false;
  static __device__ int first() { return threadIdx.x % 4 * 8; }
  static constexpr __device__ int along(int i) { return i; }
  static __device__ bool inside(int, int left) { return first() < left; }
};

/// A warp's 16 rows from `row0` on, 32 columns from `col` on, or the first `most` of them.
template <class Cfg>
struct StoreByLane {
  using Out = typename Cfg::out_type;
  using Reads = FusedReads<true, InLanes>;
  static constexpr int words = 2 * sizeof(Out);                                          // of eight elements
  static constexpr int registers = 2 * Reads::registers + (Cfg::use_c ? 2 * words : 0);  // of what is read ahead

  Reads reads[2];          // of rows lane / 4 and lane / 4 + 8
  unsigned old[2][words];  // of C

  /// Asks for what storing will need.
  __device__ void read(const GemmArgs& args, int row0, int col, int most = 32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_half(row0, half), left = columns_left<Cfg>(args, row, col, most);
      if constexpr (Cfg::use_c) read_c(old[half], c_base<Cfg>(args) + row * args.c_row + col, left);
      reads[half].read(args.fused, row, col, left);
    }
  }

  /// Products product[0] to product[3].
  __device__ void store(const GemmArgs& args, int row0, int col, const float (*product)[4], int most = 32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_half(row0, half);
      float value[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = args.alpha * product[i / 2][2 * half + i % 2];
      if constexpr (Cfg::use_c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = fmaf(args.beta, unpack_one<Out>(old[half], i), value[i]);
      }
      reads[half].apply(args.fused, value);
      unsigned word[words];
      pack_run<Out>(word, value);
      Out* const to = out_base<Cfg>(args) + row * args.out_row + col;
      if (InLanes::inside(0, columns_left<Cfg>(args, row, col, most))) {
#pragma unroll
        for (int i = 0; i < words; i += 4)
          store_global_16(reinterpret_cast<unsigned*>(to + InLanes::first()) + i,
                          reinterpret_cast<const unsigned (&)[4]>(word[i]));
      }
    }
  }

 private:
  /// Zeros where nothing is inside, or what an earlier group left would have to be kept.
  static __device__ void read_c(unsigned (&word)[words], const Out* from, int left) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = 0;
    if (InLanes::inside(0, left)) {
#pragma unroll
      for (int i = 0; i < words; i += 4)
        load_global_16(reinterpret_cast<unsigned (&)[4]>(word[i]),
                       reinterpret_cast<const unsigned*>(from + InLanes::first()) + i);
    }
  }
};
