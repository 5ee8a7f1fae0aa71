#pragma once
// Global -> shared copies of one operand tile by all threads of a block.
//
// In shared memory a tile is `outer` lines of `inner` elements, `pitch` elements apart. In global memory either
// index may be the contiguous one. Threads walk the contiguous index first, so that a warp's accesses coalesce:
//
//   along_inner   shared line = global line            16-byte vectors stay vectors
//   along_outer   shared line = global column          a 16-byte vector is scattered over 4 lines: a transpose
//
// fetch() reads global memory into registers, put() writes them to shared memory: a kernel may work in between.
// Out of bounds (edge) elements become zero, which adds nothing to a product.

#include "gemm/args.cuh"
#include "ptx/cp_async.cuh"

constexpr int transposed_run = 8;

/// `along_inner`: the inner index is contiguous in global memory. `vector`: elements per access (1 or 4).
template <class T, int outer, int inner, int pitch, int threads, bool along_inner, int vector, bool edge>
struct TileCopy {
  static_assert(!edge || vector == 1, "the edge path tests each element");
  static constexpr int accesses = (along_inner ? inner : outer) / vector;  // that cover one contiguous line
  static constexpr int lines = along_inner ? outer : inner;
  // Accesses of a line made side by side. A transposing copy of single elements takes few of more lines: a warp's
  // 8 lines of shared memory 4 banks apart, 4 elements in each, are 32 different banks.
  static constexpr int widest = along_inner || vector > 1 ? threads : transposed_run;
  static constexpr int run = accesses < widest ? accesses : widest;
  static constexpr int runs_a_line = accesses / run, lines_a_pass = threads / run;
  static constexpr int passes = (lines + lines_a_pass - 1) / lines_a_pass * runs_a_line;
  static_assert(accesses % run == 0 && threads % run == 0, "the threads must divide a line evenly");
  static constexpr bool ragged = lines % lines_a_pass != 0;  // the last pass covers more lines than there are

  T held[passes * vector];

  struct Place {
    int o, i;
  };

  /// The first element of this thread's access in pass p.
  static __device__ Place place(int p) {
    const int step = threadIdx.x % run + p % runs_a_line * run;
    const int line = threadIdx.x / run + p / runs_a_line * lines_a_pass;
    if constexpr (along_inner) return {line, step * vector};
    return {step * vector, line};
  }

  static __device__ bool in_tile(Place at) { return !ragged || (along_inner ? at.o < outer : at.i < inner); }

  /// True where element `at` of the tile that starts at (o0, i0) exists in global memory.
  static __device__ bool in_bounds(const Source<T>& source, Place at, int o0, int i0) {
    return !edge || (o0 + at.o < source.line_limit && i0 + at.i < source.inner_limit);
  }

  static __device__ const T* address(const Source<T>& source, Place at, int o0, int i0) {
    constexpr int unit = vector > 1 ? (along_inner ? unit_col : unit_row) : unit_none;
    return source.base + offset_of<unit>(o0 + at.o, i0 + at.i, source.line_stride, source.inner_stride);
  }

  __device__ void fetch(const Source<T>& source, int o0, int i0) {
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const Place at = place(p);
      if constexpr (vector == 4) {
        if (in_tile(at)) {
          const float4 v = *reinterpret_cast<const float4*>(address(source, at, o0, i0));
          held[p * 4] = v.x, held[p * 4 + 1] = v.y, held[p * 4 + 2] = v.z, held[p * 4 + 3] = v.w;
        }
      } else {
        held[p] = in_tile(at) && in_bounds(source, at, o0, i0) ? *address(source, at, o0, i0) : T(0);
      }
    }
  }

  __device__ void put(T* shared) const {
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      const Place at = place(p);
      if (!in_tile(at)) continue;
      T* to = shared + at.o * pitch + at.i;
      if constexpr (vector == 4 && along_inner) {
        *reinterpret_cast<float4*>(to) = make_float4(held[p * 4], held[p * 4 + 1], held[p * 4 + 2], held[p * 4 + 3]);
      } else {
#pragma unroll
        for (int v = 0; v < vector; ++v) to[v * pitch] = held[p * vector + v];
      }
    }
  }

  __device__ void copy(T* shared, const Source<T>& source, int o0, int i0) {
    fetch(source, o0, i0);
    put(shared);
  }
};

/// The same copy by cp.async, one k step of the tile a call. What does not change is computed once: a step costs one
/// addition a pointer and pass. 16 bytes per access where shared and global lines agree, else one element.
template <class T, int outer, int inner, int pitch, int threads, bool along_inner, int vector, bool edge>
struct AsyncTileCopy {
  using Walk = TileCopy<T, outer, inner, pitch, threads, along_inner, vector, edge>;
  static_assert(edge || (vector == 4) == along_inner, "vectors where lines agree, else single elements: a transpose");

  Source<T> source;
  const T* from;  // this thread's first element in the next tile
  unsigned to;    // its place in buffer 0, as a shared address
  int o0, i0;     // origin of the next tile

  __device__ AsyncTileCopy(T* shared, const Source<T>& source, int o0, int i0) : source(source), o0(o0), i0(i0) {
    const auto at = Walk::place(0);
    from = Walk::address(source, at, o0, i0);
    to = shared_address(shared + at.o * pitch + at.i);
  }

  /// Starts the copy of the next tile along the outer index into the buffer `buffer_bytes` after buffer 0.
  template <bool cache_all>
  __device__ void start(unsigned buffer_bytes) {
    start_part<cache_all>(buffer_bytes, 0, 1);
    advance();
  }

  /// One of `parts` equal parts of the same, for a loop that spreads them between its products.
  template <bool cache_all>
  __device__ void start_part(unsigned buffer_bytes, int part, int parts) {
#pragma unroll
    for (int p = 0; p < Walk::passes; ++p) {
      if (p * parts / Walk::passes != part) continue;
      // Pass p lies a constant number of lines and accesses after pass 0.
      const int line = p / Walk::runs_a_line * Walk::lines_a_pass, along = p % Walk::runs_a_line * Walk::run * vector;
      const int o = along_inner ? line : along, i = along_inner ? along : line;
      if (!Walk::in_tile(Walk::place(p))) continue;
      const unsigned target = to + buffer_bytes + (o * pitch + i) * unsigned(sizeof(T));
      const T* element = from + (along_inner ? line * source.line_stride + along : along + line * source.inner_stride);
      if constexpr (vector == 4) {
        cp_async_16<cache_all>(target, element);
      } else if constexpr (edge) {
        const auto at = Walk::place(p);
        const bool valid = Walk::in_bounds(source, at, o0, i0);
        cp_async_4_or_zero(target, valid ? Walk::address(source, at, o0, i0) : source.base, valid);
      } else {
        cp_async_4(target, element);
      }
    }
  }

  /// On to the next tile.
  __device__ void advance() {
    o0 += outer;
    from += along_inner ? outer * source.line_stride : outer;
  }
};

// The copies of f03 to f10. `wide` asks for 128-bit accesses, which only the aligned path takes.
template <class Cfg, int pitch, bool wide>
using CopyA = TileCopy<float, Cfg::tile_m, Cfg::tile_k, pitch, Cfg::threads, Cfg::a_unit != unit_row,
                       wide && !Cfg::edge ? 4 : 1, Cfg::edge>;
template <class Cfg, int pitch, bool wide>
using CopyATransposed = TileCopy<float, Cfg::tile_k, Cfg::tile_m, pitch, Cfg::threads, Cfg::a_unit == unit_row,
                                 wide && !Cfg::edge ? 4 : 1, Cfg::edge>;
template <class Cfg, int pitch, bool wide>
using CopyB = TileCopy<float, Cfg::tile_k, Cfg::tile_n, pitch, Cfg::threads, Cfg::b_unit != unit_row,
                       wide && !Cfg::edge ? 4 : 1, Cfg::edge>;

// Those of f11 and f12, by cp.async, each operand with an edge of its own. Transposing cp.async moves one element a
// time, whatever the alignment: only the direct direction is wide.
template <class Cfg, int pitch>
using AsyncA = AsyncTileCopy<float, Cfg::tile_k, Cfg::tile_m, pitch, Cfg::threads, Cfg::a_unit == unit_row,
                             Cfg::a_unit == unit_row && !Cfg::a_edge ? 4 : 1, Cfg::a_edge>;
template <class Cfg, int pitch>
using AsyncB = AsyncTileCopy<float, Cfg::tile_k, Cfg::tile_n, pitch, Cfg::threads, Cfg::b_unit != unit_row,
                             Cfg::b_unit != unit_row && !Cfg::b_edge ? 4 : 1, Cfg::b_edge>;
