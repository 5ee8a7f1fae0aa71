#pragma once
// How results of wgmma leave where B's lines lie in order: of every 32 columns of a row a lane has two of each of four
// neighbouring products (ptx/wgmma.cuh), eight columns apart.
//
//     column      0 1   2 3   4 5   6 7 | 8 9   10 11   12 13   14 15 | 16 ..
//     lane         0     1     2     3  |  0      1       2       3   |  0 ..
//     product               0           |               1             |  2 ..
//
// 16 bits: the lanes of a quad pass packed words, two elements each, among one another. Lane 0 then has columns 0 to 7,
// lane 1 columns 8 to 15, and each moves 16 bytes at once. What is read takes the same way back.
//
//     word       0   1   2   3                 0   1   2   3
//     lane 0    c0  c8 c16 c24      lane 0    c0  c2  c4  c6
//     lane 1    c2 c10 c18 c26  to  lane 1    c8 c10 c12 c14
//     lane 2    c4 c12 ..           lane 2   c16 ..
//
// fp32: 8 bytes per access; a quad fills a sector of 32. Every group of eight columns is inside the result or outside
// as one (Cfg::whole_eights).

#include "gemm/args.cuh"
#include "ptx/global.cuh"
#include "tile/store_rows.cuh"

/// Two columns of each of four products (tile/fused.cuh says what an Order is).
struct InQuad {
  static constexpr int count = 8;
  static constexpr bool shuffled = true;
  static __device__ int first() { return threadIdx.x % 4 * 2; }
  static constexpr __device__ int along(int i) { return i / 2 * 8 + i % 2; }
  static __device__ bool inside(int i, int left) { return i / 2 * 8 < left; }

  /// Among the four lanes of a quad: lane t's word j and lane j's word t change places.
  static __device__ void transpose(unsigned (&word)[4]) {
    const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const unsigned got = __shfl_xor_sync(~0u, odd ? word[j] : word[j + 1], 1);
      word[j] = odd ? got : word[j], word[j + 1] = odd ? word[j + 1] : got;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const unsigned got = __shfl_xor_sync(~0u, high ? word[j] : word[j + 2], 2);
      word[j] = high ? got : word[j], word[j + 2] = high ? word[j + 2] : got;
    }
  }
};

/// A warp's 16 rows from `row0` on, 32 columns from `col` on, or the first `most` of them.
template <class Cfg>
struct StoreByQuad {
  using Out = typename Cfg::out_type;
  using Reads = FusedReads<true, InQuad>;
  static constexpr bool packed = sizeof(Out) == 2;
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

  /// What becomes of products product[0] to product[3] in row lane / 4 + 8 * half: two columns of each.
  __device__ void finish(const GemmArgs& args, int half, const float (*product)[4], unsigned (&word)[words]) {
    float value[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = args.alpha * product[i / 2][2 * half + i % 2];
    if constexpr (Cfg::use_c) {
      if constexpr (packed) InQuad::transpose(old[half]);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = fmaf(args.beta, unpack_one<Out>(old[half], i), value[i]);
    }
    reads[half].apply(args.fused, value);
    pack_run<Out>(word, value);
  }

  /// Products product[0] to product[3].
  __device__ void store(const GemmArgs& args, int row0, int col, const float (*product)[4], int most = 32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of_half(row0, half);
      unsigned word[words];
      finish(args, half, product, word);
      write(word, out_base<Cfg>(args) + row * args.out_row + col, columns_left<Cfg>(args, row, col, most));
    }
  }

  /// The same by way of shared memory: group `group` of the columns of a buffer (tile/store_staged.cuh).
  template <class Staged>
  __device__ void stage(const GemmArgs& args, const float (*product)[4], const Staged& staged, int group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned word[words];
      finish(args, half, product, word);
      staged.put(half, group, word);
    }
  }

 private:
  /// Zeros where nothing is inside, or what an earlier group left would have to be kept.
  static __device__ void read_c(unsigned (&word)[words], const Out* from, int left) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = 0;
    if constexpr (packed) {
      const int first = threadIdx.x % 4 * 8;
      if (first < left) load_global_16(word, from + first);
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        if (InQuad::inside(i, left))
          load_words(reinterpret_cast<unsigned (&)[2]>(word[i]), from + InQuad::first() + InQuad::along(i));
    }
  }

  static __device__ void write(unsigned (&word)[words], Out* to, int left) {
    if constexpr (packed) {
      InQuad::transpose(word);
      const int first = threadIdx.x % 4 * 8;
      if (first < left) store_global_16(to + first, word);
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 2)
        if (InQuad::inside(i, left)) store_global_8(to + InQuad::first() + InQuad::along(i), word[i], word[i + 1]);
    }
  }
};
