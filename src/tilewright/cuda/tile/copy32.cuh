#pragma once
// Global -> shared copies of one fp32 operand tile by all threads of a block, 4 elements per thread and pass. They go
// through registers, because what arrives in shared memory is what tensor cores read: `Format` (tile/format32.cuh)
// makes it of fp32 on the way, once per element of a block.
//
//     aligned          16-byte loads, nothing tested
//     edge, wide       16-byte loads of what exists as a whole, else element by element; the rest becomes zero
//     edge, not wide   element by element
//
// Neighbouring threads take neighbours of a line, in global and in shared memory.

#include "gemm/args.cuh"

/// `wide`: 16-byte accesses suit the operand's lines. The copy starts at (line0, inner0) and advances along k.
template <class Tile, class Format, int threads, bool wide, bool edge>
struct Copy32 {
  static constexpr int vectors = Tile::inner / Format::units / 4;  // of a line
  static_assert(threads % vectors == 0, "the threads must divide a line evenly");
  static constexpr int lines_a_pass = threads / vectors;
  static constexpr int passes = (Tile::lines + lines_a_pass - 1) / lines_a_pass;
  static constexpr bool ragged = Tile::lines % lines_a_pass != 0;  // fewer lines than one pass covers

  Source<float> source;
  int line0, inner0;  // origin of the next tile
  const float* from;  // this thread's first element in it, where accesses are 16 bytes
  unsigned to;        // its place in buffer 0, as a shared address
  Format format;
  float held[passes][4];

  __device__ Copy32(unsigned tile, const Source<float>& source, int line0, int inner0)
      : source(source), line0(line0), inner0(inner0) {
    from = source.base + (line0 + line(0)) * source.line_stride + inner0 + column();
    const unsigned offset = line(0) * Tile::inner + column() * Format::units;
    to = tile + 2 * Tile::Swz::apply(offset);
  }

  static __device__ int line(int pass) { return threadIdx.x / vectors + pass * lines_a_pass; }
  static __device__ int column() { return threadIdx.x % vectors * 4; }
  static __device__ bool in_tile(int pass) { return !ragged || line(pass) < Tile::lines; }

  /// One of `parts` equal parts of the tile into registers.
  __device__ void fetch_part(int part, int parts) {
#pragma unroll
    for (int p = 0; p < passes; ++p) {
      if (p * parts / passes != part || !in_tile(p)) continue;
      const int left = line0 + line(p) < source.line_limit ? source.inner_limit - inner0 - column() : 0;
      if (!edge || (wide && left >= 4)) {
        const float4 v = *reinterpret_cast<const float4*>(from + p * lines_a_pass * source.line_stride);
        held[p][0] = v.x, held[p][1] = v.y, held[p][2] = v.z, held[p][3] = v.w;
      } else {
        const int o = line0 + line(p), in = inner0 + column();
        const float* at = source.base + o * source.line_stride + in * source.inner_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i) held[p][i] = i < left ? at[i * source.inner_stride] : 0.f;
      }
    }
  }

  /// On along k.
  __device__ void advance() {
    if constexpr (Tile::k_inner) {
      constexpr int tile_k = Tile::inner / Format::units;
      inner0 += tile_k;
      from += tile_k;
    } else {
      line0 += Tile::lines;
      from += Tile::lines * source.line_stride;
    }
  }

  /// One of `parts` equal parts of what was fetched, into the buffer `buffer_bytes` after buffer 0.
  __device__ void put_part(unsigned buffer_bytes, int part, int parts) {
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (p * parts / passes == part && in_tile(p))
        format.template put<Tile>(Tile::step(to + buffer_bytes, p * lines_a_pass * Tile::inner), held[p]);
  }
};
