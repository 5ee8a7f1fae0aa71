#pragma once
// 16 x 16 pieces of tiles: read from shared memory, and multiplied by a warp.
//
// One ldmatrix.x4 brings a 16 x 16 piece of a tile as four 8 x 8 matrices. Lane i gives the address of row i % 8 of
// matrix i / 8. Two orders of the four are used:
//
//     down     0 2     across   0 1
//              1 3              2 3
//
// The left operand of mma.sync, and V as the right one (transposed), are read down. K's rows are columns of the
// product: as the right operand it is read across, so that the two registers that mma.sync takes together are
// neighbours.

#include "ptx/mma.cuh"
#include "tile/head_tile.cuh"

constexpr int down = 0, across = 1;

template <int order>
__device__ inline int piece_row() {
  const int lane = threadIdx.x % 32;
  return order == down ? lane % 16 : lane % 8 + lane / 16 * 8;
}
template <int order>
__device__ inline int piece_col() {
  const int lane = threadIdx.x % 32;
  return order == down ? lane / 16 * 8 : lane / 8 % 2 * 8;
}

/// Every address is computed anew: one register and its arithmetic for each.
template <class Tile, int order>
struct RecomputedReader {
  unsigned tile;
  int row;

  __device__ RecomputedReader(unsigned tile, int first_row) : tile(tile), row(first_row + piece_row<order>()) {}

  /// Piece (i, k): rows first_row + 16 i, columns 16 k.
  template <bool transposed>
  __device__ void load(unsigned (&to)[4], int i, int k) const {
    ldmatrix_x4<transposed>(to, tile + Tile::place(row + 16 * i, piece_col<order>() + 16 * k));
  }
};

/// The swizzle as signed strides. Along a row a lane's chunk index changes in bits 1 and 2 of a span; its key is fixed,
/// so that setting bit b moves by +16 * 2^b bytes where the key's bit b is 0 and by -16 * 2^b where it is 1. The lane
/// computes its address and the two strides once; every piece lies at one of four sums of them and a constant.
template <class Tile, int order>
struct StridedReader {
  unsigned at;
  int stride2, stride4;  // +-32 and +-64 bytes

  __device__ StridedReader(unsigned tile, int first_row) {
    const int row = first_row + piece_row<order>();
    at = tile + Tile::place(row, piece_col<order>());
    stride2 = Tile::key(row) & 2 ? -32 : 32;
    stride4 = Tile::key(row) & 4 ? -64 : 64;
  }

  template <bool transposed>
  __device__ void load(unsigned (&to)[4], int i, int k) const {
    constexpr int pieces = Tile::span / 2;  // of a span
    unsigned address = at + Tile::place(16 * i, k / pieces * pieces * 16);
    if (k % 2) address += stride2;
    if (pieces == 4 && k % 4 / 2) address += stride4;
    ldmatrix_x4<transposed>(to, address);
  }
};

// Products of a warp, step by step of 16 along the summed index. An operand gives its 16 x 16 pieces of one step:
//
//     RowPieces      step k is column k of a tile's pieces     Q, and K whose rows are the product's columns
//     ColumnPieces   step k is row k of them, transposed       V
//     Held           all steps in registers                    P; others where a config loads them whole

template <class Reader, int count_>
struct RowPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[4], int step, int i) const { reader.template load<false>(to, i, step); }
};

template <class Reader, int count_>
struct ColumnPieces {
  static constexpr int count = count_;
  Reader reader;
  __device__ void load(unsigned (&to)[4], int step, int i) const { reader.template load<true>(to, step, i); }
};

/// All pieces of a step.
template <class Operand, int count>
__device__ inline void load_step(const Operand& from, unsigned (&to)[count][4], int step) {
  static_assert(count == Operand::count, "one place for each piece");
#pragma unroll
  for (int i = 0; i < count; ++i) from.load(to[i], step, i);
}

template <int count_, int steps>
struct Held {
  static constexpr int count = count_;
  unsigned piece[steps][count][4];

  template <class Operand>
  __device__ void fill(const Operand& from) {
#pragma unroll
    for (int step = 0; step < steps; ++step) load_step(from, piece[step], step);
  }
  __device__ void load(unsigned (&to)[4], int step, int i) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = piece[step][i][j];
  }
};

/// Columns 16 n .. 16 n + 15 of acc += a * piece n of the right operand. `paired`: the piece was read across, the two
/// registers of a column are neighbours; else they are two apart.
template <class T, bool paired, int m, int columns>
__device__ inline void multiply_piece(float (&acc)[m][columns][4], const unsigned (&a)[m][4], const unsigned (&b)[4],
                                      int n) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      mma_m16n8k16<T>(acc[i][2 * n + half], a[i], b[paired ? 2 * half : half], b[paired ? 2 * half + 1 : half + 2]);
}

/// Products step by step. One set of registers: load the left pieces; then load a right piece, multiply it, load the
/// next.
template <bool ahead>
struct Steps {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      unsigned left[A::count][4];
      load_step(a, left, step);
#pragma unroll
      for (int n = 0; n < B::count; ++n) {
        unsigned right[4];
        b.load(right, step, n);
        multiply_piece<T, paired>(acc, left, right, n);
      }
    }
  }
};

/// Two sets of registers: the next step's pieces are on their way while this step's are multiplied.
template <>
struct Steps<true> {
  template <class T, bool paired, int steps, class A, class B>
  static __device__ void run(float (&acc)[A::count][2 * B::count][4], const A& a, const B& b) {
    unsigned left[2][A::count][4], right[2][B::count][4];
    load_step(a, left[0], 0);
    load_step(b, right[0], 0);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        load_step(a, left[(step + 1) % 2], step + 1);
        load_step(b, right[(step + 1) % 2], step + 1);
      }
#pragma unroll
      for (int n = 0; n < B::count; ++n) multiply_piece<T, paired>(acc, left[step % 2], right[step % 2][n], n);
    }
  }
};
