#pragma once
// How results leave through shared memory: a warp puts 16 rows x `width` columns into a buffer of its own, and TMA
// stores them while the warp goes on. Cfg::staged buffers take turns; one is filled again once TMA has read it.
//
//     begin()    the next buffer is free
//     put()      32 columns of it, as products hand them out: two columns of each of four neighbouring products
//     end()      what is there goes to memory
//
// A buffer's rows have 128 bytes, or 64 where a warp's columns are not whole such rows, and are swizzled, so that eight
// of them take no bank twice. TMA leaves out what lies outside the result. A row of it is whole 16-byte chunks
// (Cfg::staged is 0 elsewhere): TMA would write whole chunks past its end.

#include "gemm/args.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile/tile16.cuh"

template <class Cfg>
struct StagedRows {
  static constexpr int item = sizeof(typename Cfg::out_type), row_bytes = Cfg::warp_n * item % 128 ? 64 : 128;
  static constexpr int width = row_bytes / item, groups = width / 32;  // of 32 columns
  static constexpr int bytes = 16 * row_bytes, all_bytes = Cfg::threads / 32 * Cfg::staged * bytes;
  static_assert(Cfg::staged == 0 || groups >= 1, "a row of a buffer holds 32 columns");

  const TensorMap& map;
  unsigned buffers;  // shared address of this warp's
  int next = 0;

  __device__ StagedRows(const TensorMap& map, unsigned shared)
      : map(map), buffers(shared + threadIdx.x / 32 * Cfg::staged * bytes) {}

  __device__ static bool first_lane() { return threadIdx.x % 32 == 0; }

  __device__ void begin() const {
    if (first_lane()) tma_wait_read<Cfg::staged - 1>();
    __syncwarp();
  }

  /// Row lane / 4 + 8 * half, group `group` of the buffer's columns. `word`: eight values, two to a word or one.
  template <int words>
  __device__ void put(int half, int group, const unsigned (&word)[words]) const {
    const int lane = threadIdx.x % 32;
    if constexpr (item == 2) {
      stmatrix_x4(place(lane % 8 + 8 * half, 32 * group + lane / 8 * 8), word);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        store_shared_64(place(lane / 4 + 8 * half, 32 * group + 8 * j + lane % 4 * 2), word[2 * j], word[2 * j + 1]);
    }
  }

  /// `row`, `col`: of the buffer's first element in the result, entry `batch` of it.
  __device__ void end(int row, int col, int batch) {
    fence_proxy_async();
    __syncwarp();
    if (first_lane()) {
      if constexpr (Cfg::out_batched)
        tma_store(map, col, row, batch, buffers + next * bytes);
      else
        tma_store(map, col, row, buffers + next * bytes);
      tma_commit();
    }
    next = next + 1 == Cfg::staged ? 0 : next + 1;
  }

  /// Waits until everything is in memory.
  __device__ void finish() const {
    if (first_lane()) tma_wait<0>();
  }

 private:
  __device__ unsigned place(int row, int col) const {
    const int at = row * row_bytes + col * item;  // bytes; the swizzle is of 16-bit elements
    return buffers + next * bytes + 2 * ConflictFree<row_bytes / 2>::apply(at / 2);
  }
};
