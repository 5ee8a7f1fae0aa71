#pragma once
// Global -> shared copies of one 16-bit operand tile by all threads of a block, 16 bytes a thread and pass.
//
//     aligned          16-byte accesses, nothing tested
//     edge, wide       16-byte cp.async whose source size says how much of the chunk exists; the rest becomes zero
//     edge, not wide   lines that no 16-byte access can read: element by element through registers
//
// Zeros beyond the matrix add nothing to a product.

#include "gemm/args.cuh"
#include "ptx/cp_async_part.cuh"
#include "tile/tile16.cuh"

/// One operand in global memory: element (line, i) at base[line * line_stride + i * inner_stride].
struct Source16 {
  const unsigned short* base;
  long long line_stride, inner_stride;  // in elements; inner_stride is 1 wherever 16-byte accesses are made
  int line_limit, inner_limit;
};

/// `wide`: 16-byte accesses suit the operand's lines. The copy starts at (line0, inner0) and advances along k.
template <class Tile, int threads, bool wide, bool edge>
struct Copy16 {
  static_assert(threads % Tile::chunks == 0, "the threads must divide a line evenly");
  static constexpr int lines_a_pass = threads / Tile::chunks;
  static constexpr int passes = (Tile::lines + lines_a_pass - 1) / lines_a_pass;
  static constexpr bool ragged = Tile::lines % lines_a_pass != 0;  // fewer lines than one pass covers

  Source16 source;
  int line0, inner0;           // origin of the next tile
  const unsigned short* from;  // this thread's first element in it, where accesses are 16 bytes
  unsigned to;                 // its place in buffer 0, as a shared address
  uint4 held[passes];

  __device__ Copy16(unsigned tile, const Source16& source, int line0, int inner0)
      : source(source), line0(line0), inner0(inner0) {
    from = source.base + (line0 + line(0)) * source.line_stride + inner0 + column();
    to = Tile::address(tile, Tile::place(line(0), column()));
  }

  static __device__ int line(int pass) { return threadIdx.x / Tile::chunks + pass * lines_a_pass; }
  static __device__ int column() { return threadIdx.x % Tile::chunks * 8; }
  static __device__ bool in_tile(int pass) { return !ragged || line(pass) < Tile::lines; }
  /// Shared address of this thread's chunk of a pass.
  __device__ unsigned target(unsigned buffer_bytes, int pass) const {
    return Tile::step(to + buffer_bytes, Tile::place(pass * lines_a_pass, 0));
  }
  /// How many of the chunk's eight elements exist.
  __device__ int count(int pass) const {
    const int left = min(max(source.inner_limit - inner0 - column(), 0), 8);
    return line0 + line(pass) < source.line_limit ? left : 0;
  }

  /// The chunk of a pass, in registers.
  __device__ uint4 chunk(int pass) const {
    if constexpr (!edge) return *reinterpret_cast<const uint4*>(from + pass * lines_a_pass * source.line_stride);
    const int exist = count(pass);
    const unsigned short* at =
        source.base + (line0 + line(pass)) * source.line_stride + (inner0 + column()) * source.inner_stride;
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned low = 2 * i < exist ? at[2 * i * source.inner_stride] : 0;
      const unsigned high = 2 * i + 1 < exist ? at[(2 * i + 1) * source.inner_stride] : 0;
      word[i] = low | high << 16;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
  }

  static __device__ void put(unsigned address, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }

  /// The next tile through registers into the buffer `buffer_bytes` behind buffer 0.
  __device__ void copy(unsigned buffer_bytes) {
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (in_tile(p)) held[p] = chunk(p);
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (in_tile(p)) put(target(buffer_bytes, p), held[p]);
    advance();
  }

  /// One of `parts` equal parts of the next tile by cp.async.
  __device__ void start_part(unsigned buffer_bytes, int part, int parts) {
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      if (p * parts / passes != part || !in_tile(p)) continue;
      const unsigned short* element = from + p * lines_a_pass * source.line_stride;
      if constexpr (!edge) {
        cp_async_16<false>(target(buffer_bytes, p), element);
      } else if constexpr (wide) {
        const int exist = count(p);
        cp_async_16_part(target(buffer_bytes, p), exist ? element : source.base, 2 * exist);
      } else {
        put(target(buffer_bytes, p), chunk(p));
      }
    }
  }

  __device__ void start(unsigned buffer_bytes) {
    start_part(buffer_bytes, 0, 1);
    advance();
  }

  /// On to the next tile along k.
  __device__ void advance() {
    if constexpr (Tile::k_inner) {
      inner0 += Tile::tile_k;
      from += Tile::tile_k;
    } else {
      line0 += Tile::tile_k;
      from += Tile::tile_k * source.line_stride;
    }
  }
};
