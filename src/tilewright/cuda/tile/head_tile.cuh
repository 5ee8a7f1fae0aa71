#pragma once
// Tiles of Q, K, V and out in shared memory: rows of d_head 16-bit elements, cut into slices of `slice` columns that
// lie one after the other. Within a slice, rows follow each other with no gap, in chunks of 16 bytes:
//
//     slice 0   row 0   chunk 0, chunk 1, ... chunk slice / 8 - 1
//               row 1   ...
//     slice 1   row 0   ...
//
// Eight rows read at one column (ldmatrix) fall on the same banks when rows are multiples of 128 bytes apart. Swizzled,
// chunk c of row r lies where chunk c ^ key(r) would:
//
//     rows of n x 128 bytes        key(r) = r % 8         eight rows, eight columns of 16 bytes
//     rows of (n + 1/2) x 128      key(r) = r / 2 % 4     neighbours already lie 64 bytes apart; four columns for pairs

template <int rows_, int cols_, int slice_, bool swizzled_>
struct HeadTile {
  static constexpr int rows = rows_, cols = cols_, slice = slice_, bytes = 2 * rows * cols;
  static constexpr bool swizzled = swizzled_;
  static_assert(slice % 32 == 0 && cols % slice == 0, "a slice is whole halves of a row of banks");
  /// Chunks that a key permutes among themselves: 8, or 4 where rows are an odd number of halves of a row of banks.
  static constexpr int span = slice % 64 == 0 ? 8 : 4;

  static constexpr __device__ int key(int row) { return !swizzled ? 0 : span == 8 ? row % 8 : row / 2 % 4; }

  /// Byte offset of (row, col). Steps of 8 rows and of `span` chunks leave the key alone: place is linear in them.
  static constexpr __device__ int place(int row, int col) {
    return col / slice * (2 * rows * slice) + row * (2 * slice) + ((col % slice / 8) ^ key(row)) * 16 + col % 8 * 2;
  }
};
