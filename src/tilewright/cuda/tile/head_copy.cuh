#pragma once
// Global -> shared copies of tiles of Q, K and V by cp.async, 16 bytes per thread and step. Rows that do not exist
// become zeros (Cfg::edge_*), so that whatever lies beyond an operand never meets a product.
//
// `together` threads copy neighbouring rows, eight (or four) chunks of a row side by side:
//
//     together = 32         a warp has its own rows of the tile; a step is 4 rows of 128 bytes
//     together = threads    the block walks the tile; a step is threads / 8 rows of 128 bytes

#include "ptx/cp_async.cuh"
#include "tile/head_tile.cuh"

/// One head of an operand: `rows` rows of 16-bit elements.
struct HeadSource {
  const unsigned short* base;
  long long row_stride;
  int rows;
};

/// The chunks of a tile that this thread copies.
template <class Tile, int threads, int together>
struct CopyMap {
  static constexpr int lanes = Tile::span;  // threads side by side in a row
  static constexpr int group_rows = Tile::rows * together / threads, step_rows = together / lanes;
  static constexpr int steps = (group_rows + step_rows - 1) / step_rows, parts = Tile::cols / 8 / lanes;
  static constexpr bool ragged = group_rows % step_rows != 0;  // more threads than rows
  static_assert(Tile::cols / 8 % lanes == 0 && group_rows > 0, "rows split evenly");

  static __device__ int row() { return threadIdx.x / together * group_rows + threadIdx.x % together / lanes; }
  static __device__ int col() { return threadIdx.x % lanes * 8; }
  static __device__ bool in_tile(int step) {
    return !ragged || int(threadIdx.x) % together / lanes + step * step_rows < group_rows;
  }
};

/// One chunk, or zeros where its row does not exist.
template <bool edge>
__device__ inline void copy_chunk(unsigned to, const unsigned short* from, const HeadSource& source, bool exists) {
  if constexpr (edge)
    cp_async_16_part(to, exists ? from : source.base, exists ? 16 : 0);
  else
    cp_async_16<false>(to, from);
}

// Each is made with the row of the source that its first tile begins at, and asked for a tile by start(row0).

/// Both addresses of every chunk are computed anew in every tile.
template <class Tile, int threads, int together, bool edge>
struct RecomputedCopy {
  using Map = CopyMap<Tile, threads, together>;
  unsigned tile;
  HeadSource source;

  __device__ RecomputedCopy(unsigned tile, const HeadSource& source, int) : tile(tile), source(source) {}

  /// Starts the copy of the rows from row0 on.
  __device__ void start(int row0) const {
#pragma unroll
    for (int step = 0; step < Map::steps; ++step)
#pragma unroll
      for (int part = 0; part < Map::parts; ++part) {
        const int row = Map::row() + step * Map::step_rows, col = Map::col() + part * Map::lanes * 8;
        if (Map::in_tile(step))
          copy_chunk<edge>(tile + Tile::place(row, col), source.base + (row0 + row) * source.row_stride + col, source,
                           row0 + row < source.rows);
      }
  }
};

/// This thread's chunks of the rows of `source` from row0 on; its first at `from`, to go to `at`. A step of the whole
/// block moves by a multiple of 8 rows, which leaves the key of the swizzle alone: every other chunk lies at a constant
/// distance from the first.
template <class Tile, int threads, bool edge>
__device__ inline void copy_rows(unsigned at, const unsigned short* from, const HeadSource& source, int row0) {
  using Map = CopyMap<Tile, threads, threads>;
  static_assert(Map::step_rows % 8 == 0, "a step leaves the key alone");
#pragma unroll
  for (int step = 0; step < Map::steps; ++step)
#pragma unroll
    for (int part = 0; part < Map::parts; ++part)
      if (Map::in_tile(step))
        copy_chunk<edge>(at + Tile::place(step * Map::step_rows, part * Map::lanes * 8),
                         from + step * Map::step_rows * source.row_stride + part * Map::lanes * 8, source,
                         row0 + Map::row() + step * Map::step_rows < source.rows);
}

/// One shared and one global address a thread, computed once.
template <class Tile, int threads, bool edge>
struct StridedCopy {
  using Map = CopyMap<Tile, threads, threads>;
  unsigned at;
  HeadSource source;
  const unsigned short* from;  // this thread's first chunk of a tile at row 0

  __device__ StridedCopy(unsigned tile, const HeadSource& source, int)
      : at(tile + Tile::place(Map::row(), Map::col())), source(source),
        from(source.base + Map::row() * source.row_stride + Map::col()) {}

  __device__ void start(int row0) const {
    copy_rows<Tile, threads, edge>(at, from + row0 * source.row_stride, source, row0);
  }
};

/// The global address is kept too: tiles are asked for in order, each `advance` rows after the one before.
template <class Tile, int threads, bool edge, int advance>
struct RunningCopy {
  using Map = CopyMap<Tile, threads, threads>;
  unsigned at;
  HeadSource source;
  const unsigned short* from;  // this thread's first chunk of the next tile

  __device__ RunningCopy(unsigned tile, const HeadSource& source, int first_row0)
      : at(tile + Tile::place(Map::row(), Map::col())), source(source),
        from(source.base + (first_row0 + Map::row()) * source.row_stride + Map::col()) {}

  __device__ void start(int row0) {
    copy_rows<Tile, threads, edge>(at, from, source, row0);
    from += advance * source.row_stride;
  }
};
