#pragma once
// Shared memory -> registers: one ldmatrix.x4 brings a 16 x 16 piece of a tile as four 8 x 8 matrices. Lane i gives the
// address of row i % 8 of matrix i / 8; two orders of the four are used:
//
//     down     0 2     across   0 1      as left operand of mma.sync (and, transposed, V as the right one): down.
//              1 3              2 3      K, whose rows are columns of the product, as the right one: across, or a pair of
//                                        registers that mma.sync takes together would not be neighbours.

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
