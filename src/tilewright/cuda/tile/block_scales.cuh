#pragma once
// The scales of blocks of 128 along k (of B: 128 x 128), where an operand has them: operand Cfg::a_blocks or
// Cfg::b_blocks of the epilogue (tile/fused.cuh), -1 without. Element (row, k block) scales A, (k block, column block)
// B.

#include "gemm/args.cuh"

constexpr int scale_block = 128;

template <class Cfg>
constexpr bool has_block_scales = Cfg::a_blocks >= 0 || Cfg::b_blocks >= 0;

/// Scales that a thread's sums of one block along k are multiplied by: of `rows` of its rows, and of the column blocks
/// that `columns` columns may touch.
template <class Cfg, int rows, int columns>
struct BlockScales {
  static constexpr bool aligned = scale_block % columns == 0
                                      ? Cfg::tile_n % columns == 0
                                      : columns % scale_block == 0 && Cfg::tile_n % scale_block == 0;
  static constexpr int most_before = Cfg::tile_n % 64 == 0 ? 64 : 112;  // columns from a block's start to theirs
  static constexpr int blocks =
      aligned ? (columns + scale_block - 1) / scale_block : (columns + most_before + scale_block - 1) / scale_block;
  float a[rows], b[blocks];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < rows; ++i) a[i] = 0;
#pragma unroll
    for (int j = 0; j < blocks; ++j) b[j] = 0;
  }

  /// Reads those of element `k` along k. Row i is row_of(i), the columns are col0 and following.
  template <class RowOf>
  __device__ void read(const GemmArgs& args, int k, int col0, RowOf row_of) {
    const long long block = min(k, 2 * args.k - 1) / scale_block;  // of the last tile also where `k` is beyond it
#pragma unroll
    for (int i = 0; i < rows; ++i) a[i] = 1;
#pragma unroll
    for (int j = 0; j < blocks; ++j) b[j] = 1;
    if constexpr (Cfg::a_blocks >= 0) {
      const auto& scales = args.fused.operand[Cfg::a_blocks];
      const float* from = static_cast<const float*>(scales.base) + blockIdx.y * scales.batch + block * scales.col;
#pragma unroll
      for (int i = 0; i < rows; ++i) a[i] = __ldg(from + min(row_of(i), args.m - 1) * scales.row);
    }
    if constexpr (Cfg::b_blocks >= 0) {
      const auto& scales = args.fused.operand[Cfg::b_blocks];
      const float* from = static_cast<const float*>(scales.base) + blockIdx.y * scales.batch + block * scales.row;
      const int last = (args.n - 1) / scale_block;
#pragma unroll
      for (int j = 0; j < blocks; ++j) b[j] = __ldg(from + min(col0 / scale_block + j, last) * scales.col);
    }
  }

  /// That of row i and of columns from col0 + `offset` on, which all lie in one block.
  __device__ float operator()(int i, int col0, int offset) const {
    if constexpr (blocks == 1) return a[i] * b[0];
    float chosen = b[0];
    const int within = (col0 % scale_block + offset) / scale_block;
#pragma unroll
    for (int j = 1; j < blocks; ++j) chosen = within == j ? b[j] : chosen;
    return a[i] * chosen;
  }
};
