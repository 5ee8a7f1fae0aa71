#pragma once
// The scales of blocks of 128 along k (of B: 128 x 128), where an operand has them: operand Cfg::a_blocks or
// Cfg::b_blocks of the epilogue (tile/fused.cuh), -1 without. Element (row, k block) scales A, (k block, column block)
// B.

#include "gemm/args.cuh"
#include "ptx/cp_async.cuh"

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

/// The scales of a block's tile for one step along k, in shared memory: a warp copies them into the stage that the
/// step's operands go to, so that those who multiply neither wait for memory nor compute an address there.
///
///     A: the tile's rows    B: the column blocks that its columns touch
template <class Cfg>
struct StageScales {
  static constexpr int rows = Cfg::a_blocks >= 0 ? Cfg::tile_m : 0;
  static constexpr int numbers = rows + (Cfg::b_blocks >= 0 ? BlockScales<Cfg, 1, Cfg::tile_n>::blocks : 0);
  static constexpr int bytes = (4 * numbers + 15) / 16 * 16;

  /// The warp's side: the scales of one tile, step after step. A lane's addresses are found once per tile, since a warp
  /// that computes them at each step is slower than the products.
  struct Copies {
    static constexpr int each =
        Cfg::a_scale_run == 4 ? 4 : 1;  // scales of neighbouring rows that a lane copies at once
    static constexpr int steps = scale_block / (2 * Cfg::tile_k);  // along k with the same scales

    const GemmArgs& args;
    const float *a = nullptr, *b = nullptr;  // of this lane: A's from its first rows on
    int row, step;

    /// From step `first` along k on.
    __device__ Copies(const GemmArgs& args, TileOrigin origin, int first)
        : args(args), row(origin.row + threadIdx.x % 32 * each), step(first) {
      const int lane = threadIdx.x % 32;
      const long long block = first / steps;
      if constexpr (Cfg::a_blocks >= 0) {
        const auto& scales = args.fused.operand[Cfg::a_blocks];
        a = static_cast<const float*>(scales.base) + blockIdx.y * scales.batch + block * scales.col;
        if constexpr (Cfg::a_scale_run > 0) a += row;
      }
      if constexpr (Cfg::b_blocks >= 0) {
        const auto& scales = args.fused.operand[Cfg::b_blocks];
        const int column = min(origin.col / scale_block + lane, (args.n - 1) / scale_block);
        b = static_cast<const float*>(scales.base) + blockIdx.y * scales.batch + block * scales.row +
            column * scales.col;
      }
    }

    /// Starts the copies of a step to `to`; then the next one's are meant.
    __device__ void start(unsigned to) {
      const int lane = threadIdx.x % 32;
      if constexpr (Cfg::a_scale_run == 1) {
#pragma unroll
        for (int i = 0; i < rows; i += 32) cp_async_4_or_zero(to + 4 * (i + lane), a + i, row + i < args.m);
      } else if constexpr (Cfg::a_scale_run == 4) {
#pragma unroll
        for (int i = 0; i < rows; i += 128) {
          const int left = 4 * (args.m - row - i);  // bytes to the last row's end
          if (rows % 128 == 0 || i + 4 * lane < rows)
            cp_async_16_part(to + 4 * i + 16 * lane, a + (left > 0 ? i : 0), min(max(left, 0), 16));
        }
      } else {
#pragma unroll 1  // these threads have few registers
        for (int i = 0; i < rows; i += 32) {
          const auto& scales = args.fused.operand[Cfg::a_blocks];
          cp_async_4(to + 4 * (i + lane), a + min(row + i, args.m - 1) * scales.row);
        }
      }
      if (lane < numbers - rows) cp_async_4(to + 4 * (rows + lane), b);
      if (++step % steps) return;
      if constexpr (Cfg::a_blocks >= 0) a += args.fused.operand[Cfg::a_blocks].col;
      if constexpr (Cfg::b_blocks >= 0) b += args.fused.operand[Cfg::b_blocks].row;
    }
  };

  /// Of a warpgroup's sums, from row `row` and column block `block` of the tile on, those of this thread.
  template <class Scales>
  static __device__ void read(Scales& to, unsigned from, int row, int block) {
    const auto number = [&](int i) {
      float value;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from + 4 * i) : "memory");
      return value;
    };
    const int mine = row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < sizeof(to.a) / 4; ++i) to.a[i] = Cfg::a_blocks >= 0 ? number(mine + i / 2 * 64 + i % 2 * 8) : 1;
#pragma unroll
    for (int j = 0; j < sizeof(to.b) / 4; ++j) to.b[j] = Cfg::b_blocks >= 0 ? number(rows + block + j) : 1;
  }
};
