#pragma once
// Groups of a block's warps that copy tiles for themselves: rows of K or V by cp.async, 16 bytes per thread and step.
// Rows that do not exist become zeros.

#include "ptx/named_barrier.cuh"
#include "tile/head_copy.cuh"

/// All of the `warps` warps of group `number` have come here. A block has `groups` groups.
template <int warps, int groups>
__device__ inline void group_sync(int number) {
  if constexpr (warps == 1)
    __syncwarp();
  else if constexpr (groups == 1)
    __syncthreads();
  else
    named_barrier_sync<32 * warps>(number + 1);
}

/// This thread's chunks of a group's tiles. A step of the group is `step_rows` rows: a multiple of 8, which leaves the
/// key of the swizzle alone, or 4 for a single warp on rows of 128 bytes. Steps of 4 take turns between two keys.
template <class Tile, int threads, bool edge>
struct GroupCopy {
  static constexpr int lanes = Tile::span, step_rows = threads / lanes, parts = Tile::cols / 8 / lanes;
  static constexpr int steps = Tile::rows / step_rows, turns = step_rows % 8 == 0 ? 1 : 2;
  static_assert(Tile::rows % step_rows == 0 && (turns == 1 || step_rows == 4), "whole steps");

  HeadSource source;
  int row;                     // this thread's first in a tile
  const unsigned short* from;  // its first chunk of the next tile
  unsigned at[turns];          // where the first chunks of even and odd steps go

  /// For tiles at `tile` and further; the first is that of the rows from row0 on.
  __device__ GroupCopy(unsigned tile, const HeadSource& source, int row0)
      : source(source), row(threadIdx.x % threads / lanes) {
    const int col = threadIdx.x % lanes * 8;
    from = source.base + (row0 + row) * source.row_stride + col;
#pragma unroll
    for (int turn = 0; turn < turns; ++turn) at[turn] = tile + Tile::place(row + turn * step_rows, col);
  }

  /// Starts the copy of the next tile, the rows from row0 on, to the place `offset` bytes from the first.
  __device__ void start(unsigned offset, int row0) const {
#pragma unroll
    for (int step = 0; step < steps; ++step)
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        const unsigned to = at[step % turns] + offset + Tile::place(step / turns * turns * step_rows, part * lanes * 8);
        const unsigned short* chunk = from + step * step_rows * source.row_stride + part * lanes * 8;
        if constexpr (edge)
          cp_async_16_or_zero<false>(to, chunk, row0 + row + step * step_rows < source.rows);
        else
          cp_async_16<false>(to, chunk);
      }
  }
  /// The next tile lies `rows` rows further; or at `elements` elements from the source's base.
  __device__ void advance(int rows) { from += rows * source.row_stride; }
  __device__ void move_to(long long elements) {
    from = source.base + elements + row * source.row_stride + threadIdx.x % lanes * 8;
  }
};
