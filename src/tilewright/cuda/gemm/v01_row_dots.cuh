// v01: few rows of A and a B whose lines run along k. Each of a result's elements is a dot product of two lines: a warp
// makes warp_n columns of tile_m rows, its lanes walk along k, and nothing passes through shared memory. So the whole
// time is B's way from device memory, and as many bytes of it are asked for at once as registers hold.
//
//     a line of B      lane 0 | lane 1 | .. | lane 31 | lane 0 | ..      16 bytes each
//
// Each lane adds up the products of what it has asked for at once, then those sums, then lanes add up among each other
// as a tree: chains are short, however long k is. The lines of A are the same for all warps and stay in L1. Operands
// that lie otherwise are read one element at a time.
#include "gemm/args.cuh"
#include "ptx/global.cuh"
#include "ptx/global_once.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/store_rows.cuh"

template <class Cfg>
struct RowDots {
  using In = typename Cfg::in_type;
  static constexpr int rows = Cfg::tile_m, cols = Cfg::warp_n, each = 16 / sizeof(In), step = 32 * each;
  static constexpr int ahead = Cfg::tile_k / step;  // accesses of a lane that are under way, of each column

  const GemmArgs& args;
  const In *a, *b;
  int row0, col0;
  float sum[rows][cols] = {};

  __device__ RowDots(const GemmArgs& args, int row0, int col0)
      : args(args), a(static_cast<const In*>(args.a) + blockIdx.y * args.a_batch),
        b(static_cast<const In*>(args.b) + blockIdx.y * args.b_batch), row0(row0), col0(col0) {}

  // Lines outside are read as the last one, and not stored.
  __device__ int row(int i) const { return Cfg::edge ? min(row0 + i, args.m - 1) : row0 + i; }
  __device__ int col(int j) const { return Cfg::edge ? min(col0 + j, args.n - 1) : col0 + j; }

  /// `count` steps of 16 bytes per lane from k on, all of B's asked for first.
  template <int count>
  __device__ void whole_steps(int k) {
    unsigned lines[count][cols][4];
#pragma unroll
    for (int s = 0; s < count; ++s)
#pragma unroll
      for (int j = 0; j < cols; ++j) load_once_16(lines[s][j], b + col(j) * args.b_col + k + s * step);
    float part[rows][cols] = {};
#pragma unroll
    for (int s = 0; s < count; ++s)
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        unsigned line[4];
        load_words(line, a + row(i) * args.a_row + k + s * step);
#pragma unroll
        for (int j = 0; j < cols; ++j)
#pragma unroll
          for (int e = 0; e < each; ++e)
            part[i][j] = fmaf(unpack_one<In>(line, e), unpack_one<In>(lines[s][j], e), part[i][j]);
      }
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < cols; ++j) sum[i][j] += part[i][j];
  }

  __device__ void single_elements(int k) {
    for (k += threadIdx.x % 32; k < args.k; k += 32)
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < cols; ++j)
          sum[i][j] = fmaf(to_float(a[offset_of<Cfg::a_unit>(row(i), k, args.a_row, args.a_col)]),
                           to_float(b[offset_of<Cfg::b_unit>(k, col(j), args.b_row, args.b_col)]), sum[i][j]);
  }

  __device__ void multiply() {
    int k = 0;
    if constexpr (Cfg::along_k) {
      const int lane = threadIdx.x % 32 * each;
      for (; k + Cfg::tile_k <= args.k; k += Cfg::tile_k) whole_steps<ahead>(k + lane);
      for (; k + step <= args.k; k += step) whole_steps<1>(k + lane);
    }
    single_elements(k);
  }

  /// Adds up the lanes' sums; each lane stores an element, or none.
  __device__ void store() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < rows * cols; first += 32) {
      float own = 0;
#pragma unroll
      for (int i = first; i < min(first + 32, rows * cols); ++i) {
        float all = sum[i / cols][i % cols];
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) all += __shfl_xor_sync(~0u, all, apart);
        if (lane == i - first) own = all;
      }
      const int i = first + lane;
      if (i < rows * cols) store_element<Cfg>(args, row0 + i / cols, col0 + i % cols, own);
    }
  }
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  start_after_earlier_grids<false>();
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  RowDots<Cfg> dots(args, origin.row, origin.col + threadIdx.x / 32 * Cfg::warp_n);
  if (dots.col0 >= args.n) return;
  dots.multiply();
  dots.store();
}
