#pragma once
// A warp's rows of out: registers -> its own rows of a tile in shared memory -> global memory in 16-byte chunks.

#include "ptx/number16.cuh"
#include "tile/head_copy.cuh"

__device__ inline void store_shared_32(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline uint4 load_shared_chunk(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// Every address is computed anew.
template <class Tile>
struct RecomputedWriter {
  unsigned tile;
  int row;
  __device__ RecomputedWriter(unsigned tile, int first_row) : tile(tile), row(first_row + threadIdx.x % 32 / 4) {}

  /// Two elements: row first_row + lane / 4 + 8 i, columns 8 n + lane % 4 * 2 and the next.
  __device__ void put(int i, int n, unsigned pair) const {
    store_shared_32(tile + Tile::place(row + 8 * i, 8 * n + threadIdx.x % 4 * 2), pair);
  }
};

/// The swizzle as signed strides (StridedReader in tile/pieces.cuh): three, since every chunk of a row is written.
template <class Tile>
struct StridedWriter {
  unsigned at;
  int stride1, stride2, stride4;
  __device__ StridedWriter(unsigned tile, int first_row) {
    const int row = first_row + threadIdx.x % 32 / 4;
    at = tile + Tile::place(row, threadIdx.x % 4 * 2);
    stride1 = Tile::key(row) & 1 ? -16 : 16;
    stride2 = Tile::key(row) & 2 ? -32 : 32;
    stride4 = Tile::key(row) & 4 ? -64 : 64;
  }

  __device__ void put(int i, int n, unsigned pair) const {
    unsigned address = at + Tile::place(8 * i, n / Tile::span * Tile::span * 8);
    if (n % 2) address += stride1;
    if (n % 4 / 2) address += stride2;
    if (Tile::span == 8 && n % 8 / 4) address += stride4;
    store_shared_32(address, pair);
  }
};

/// 16 bytes to global memory as the compiler does it, or past the caches' reuse (.cs: evicted first).
struct PlainStore {
  static __device__ void put(void* to, uint4 v) { *static_cast<uint4*>(to) = v; }
};
struct StreamingStore {
  static __device__ void put(void* to, uint4 v) { __stcs(static_cast<uint4*>(to), v); }
};

/// Rows first_row .. first_row + rows - 1 of the tile to out, whose row 0 is the tile's; those below `limit` exist.
template <class Tile, int rows, class Store, bool edge>
__device__ inline void store_rows(unsigned tile, int first_row, unsigned short* out, long long row_stride, int limit) {
  constexpr int lanes = Tile::span, step_rows = 32 / lanes;
  const int lane = threadIdx.x % 32, col = lane % lanes * 8;
#pragma unroll
  for (int step = 0; step < rows / step_rows; ++step) {
    const int row = first_row + lane / lanes + step * step_rows;
#pragma unroll
    for (int part = 0; part < Tile::cols / 8 / lanes; ++part) {
      const uint4 chunk = load_shared_chunk(tile + Tile::place(row, col + part * lanes * 8));
      if (!edge || row < limit) Store::put(out + row * row_stride + col + part * lanes * 8, chunk);
    }
  }
}
