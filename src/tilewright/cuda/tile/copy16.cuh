#pragma once
// Global -> shared copies of one 16-bit operand tile by all threads of a block, 16 bytes per thread and pass.
//
//     aligned          16-byte accesses, nothing tested
//     edge, wide       16-byte cp.async; what of a chunk does not exist becomes zero. Only the last tile along k can
//                      end in the middle of a chunk: for all others what exists is the same from tile to tile
//     edge, not wide   lines that no 16-byte access can read: element by element through registers
//
// Zeros beyond the matrix add nothing to a product.
// Lines that do not start at sectors (32 bytes) go through L1. Two chunks of 16 bytes then share a sector, one of them
// in the next tile, and L1 fetches it once. 1024 cubed with lines 2064 bytes apart takes 7.3 us instead of 10.1; with
// whole sectors the way through L1 takes 6.4 us instead of 5.0.

#include "gemm/args.cuh"
#include "ptx/cp_async.cuh"
#include "tile/tile16.cuh"

/// `wide`: 16-byte accesses suit the operand's lines; `sectors`: 32-byte ones would. The copy starts at (line0, inner0)
/// and advances along k.
/// In a pass a thread copies one chunk of a row. A row is a line, or, where the threads do not divide a line (192
/// columns), a line's part in one panel, panel after panel.
template <class Tile, int threads, bool wide, bool edge, bool sectors>
struct Copy16 {
  static constexpr int run = threads % Tile::chunks == 0 ? Tile::chunks : Tile::panel / 8;  // chunks of a row
  static constexpr bool by_panel = run != Tile::chunks;
  static constexpr int rows = by_panel ? Tile::lines * (Tile::chunks / run) : Tile::lines, rows_a_pass = threads / run;
  static_assert(threads % run == 0 && (!by_panel || Tile::lines % rows_a_pass == 0), "passes must be whole rows");
  static constexpr int passes = (rows + rows_a_pass - 1) / rows_a_pass;
  static constexpr bool ragged = rows % rows_a_pass != 0;  // fewer rows than one pass covers

  Source<unsigned short> source;
  int line0, inner0;           // origin of the next tile
  const unsigned short* from;  // this thread's first element in it, where accesses are 16 bytes
  unsigned to;                 // its place in buffer 0, as a shared address
  uint4 held[passes];

  __device__ Copy16(unsigned tile, const Source<unsigned short>& source, int line0, int inner0)
      : source(source), line0(line0), inner0(inner0) {
    from = source.base + (line0 + line(0)) * source.line_stride + inner0 + column(0);
    to = Tile::address(tile, Tile::place(line(0), column(0)));
  }

  /// The lines and columns from the first pass to another.
  static constexpr __device__ int lines_to(int pass) {
    return by_panel ? pass * rows_a_pass % Tile::lines : pass * rows_a_pass;
  }
  static constexpr __device__ int columns_to(int pass) {
    return by_panel ? pass * rows_a_pass / Tile::lines * Tile::panel : 0;
  }
  static __device__ int line(int pass) { return threadIdx.x / run + lines_to(pass); }
  static __device__ int column(int pass) { return threadIdx.x % run * 8 + columns_to(pass); }
  static __device__ bool in_tile(int pass) { return !ragged || line(pass) < Tile::lines; }
  /// Its first element of a pass, where accesses are 16 bytes.
  __device__ const unsigned short* element(int pass) const {
    return from + lines_to(pass) * source.line_stride + columns_to(pass);
  }
  /// Shared address of this thread's chunk of a pass.
  __device__ unsigned target(unsigned buffer_bytes, int pass) const {
    return Tile::step(to + buffer_bytes, Tile::place(lines_to(pass), columns_to(pass)));
  }
  /// True where the next tile ends before the matrix does, along k.
  __device__ bool inside() const {
    return Tile::k_inner ? inner0 + Tile::tile_k <= source.inner_limit : line0 + Tile::tile_k <= source.line_limit;
  }
  __device__ bool line_exists(int pass) const { return line0 + line(pass) < source.line_limit; }
  /// The number of the chunk's elements, 0 to 8, that its line has, where the line exists.
  __device__ int left(int pass) const { return min(max(source.inner_limit - inner0 - column(pass), 0), 8); }
  __device__ int count(int pass) const { return line_exists(pass) ? left(pass) : 0; }

  /// The chunk of a pass, in registers.
  __device__ uint4 chunk(int pass) const {
    if constexpr (!edge) return *reinterpret_cast<const uint4*>(element(pass));
    const int exist = count(pass);
    const unsigned short* at =
        source.base + (line0 + line(pass)) * source.line_stride + (inner0 + column(pass)) * source.inner_stride;
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

  /// The next tile through registers into the buffer `buffer_bytes` after buffer 0.
  __device__ void copy(unsigned buffer_bytes) {
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (in_tile(p)) held[p] = chunk(p);
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (in_tile(p)) put(target(buffer_bytes, p), held[p]);
    advance();
  }

  /// The chunk of a pass by cp.async. `inside`: of a tile that ends before the matrix does, along k.
  template <bool inside>
  __device__ void start_chunk(unsigned target, int pass) const {
    if constexpr (!edge) {
      cp_async_16<!sectors>(target, element(pass));
    } else if constexpr (!wide) {
      put(target, chunk(pass));
    } else if constexpr (!inside) {
      const int exist = count(pass);
      cp_async_16_part<!sectors>(target, exist ? element(pass) : source.base, 2 * exist);
    } else if constexpr (Tile::k_inner) {
      cp_async_16_or_zero<!sectors>(target, element(pass), line_exists(pass));
    } else {
      cp_async_16_part<!sectors>(target, element(pass), 2 * left(pass));
    }
  }

  /// One of `parts` equal parts of the next tile by cp.async.
  template <bool inside = false>
  __device__ void start_part(unsigned buffer_bytes, int part, int parts) {
#pragma unroll
    for (int p = 0; p < passes; ++p)
      if (p * parts / passes == part && in_tile(p)) start_chunk<inside>(target(buffer_bytes, p), p);
  }

  /// Starts the whole tile. The last tile along k takes a loop, which is little code. start_part has no such branch: it
  /// would stand between the products that the parts are spread over.
  __device__ void start(unsigned buffer_bytes) {
    if (edge && wide && !inside()) {
#pragma unroll 1
      for (int p = 0; p < passes; ++p)
        if (in_tile(p)) start_chunk<false>(target(buffer_bytes, p), p);
    } else {
      start_part<true>(buffer_bytes, 0, 1);
    }
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

// The operands of a block, for h01 and h03 to h13.

template <class Cfg, class Swz = NoSwizzle>
using TileA = SharedTile<Cfg::tile_m, Cfg::tile_k, Cfg::a_unit != unit_row, Swz>;
template <class Cfg, class Swz = NoSwizzle>
using TileB = SharedTile<Cfg::tile_n, Cfg::tile_k, Cfg::b_unit == unit_row, Swz>;

template <class Cfg, class Tile>
using CopyA16 = Copy16<Tile, Cfg::threads, Cfg::a_wide, Cfg::a_edge, Cfg::a_sectors>;
template <class Cfg, class Tile>
using CopyB16 = Copy16<Tile, Cfg::threads, Cfg::b_wide, Cfg::b_edge, Cfg::b_sectors>;

/// The copy of A's tiles from row `m0` on and from column `k0` on.
template <class Cfg, class Tile>
__device__ inline CopyA16<Cfg, Tile> copy_of_a(const GemmArgs& args, unsigned tile, int m0, int k0) {
  const auto source = lines_of_a<unsigned short, Tile::k_inner>(args);
  return {tile, source, Tile::k_inner ? m0 : k0, Tile::k_inner ? k0 : m0};
}
/// The copy of B's tiles from row `k0` and column `n0` on.
template <class Cfg, class Tile>
__device__ inline CopyB16<Cfg, Tile> copy_of_b(const GemmArgs& args, unsigned tile, int k0, int n0) {
  const auto source = lines_of_b<unsigned short, !Tile::k_inner>(args);
  return {tile, source, Tile::k_inner ? n0 : k0, Tile::k_inner ? k0 : n0};
}
