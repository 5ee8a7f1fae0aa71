#pragma once
// The main loop of t01 and t02: fp32 operands on tensor cores. A tile goes global -> registers -> shared memory as the
// format wants it, while the tile before it is multiplied:
//
//     tile t, first half of its steps     B of tile t + 1 is fetched; A of tile t + 1, fetched before, is put
//     tile t, second half                 A of tile t + 2 is fetched; B of tile t + 1 is put
//     end of tile t                       barrier: tile t + 1 is there for all, and all have read tile t
//
// part by part: one is fetched where another is put. A load has the products of half a tile to arrive in, and registers
// hold half a tile. After the last tile that tile is fetched and put again, into the buffer that nobody reads: cheaper
// than a branch in each step.

#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "tile/copy32.cuh"
#include "tile/format32.cuh"
#include "tile/mend.cuh"

/// A block's rows of A or columns of B along all k, as a copy reads them.
struct Panel {
  Source<float> source;
  int outer0, outers, inner0, inners;
};

/// The least magnitude in a panel that is not 0; infinity where there is none.
template <int warps>
__device__ inline float least_magnitude(const Panel& p, float* scratch) {
  float least = __uint_as_float(0x7f800000);
  for (int o = threadIdx.x / 32; o < p.outers; o += warps) {
    const float* line = p.source.base + (p.outer0 + o) * p.source.line_stride;
    for (int i = threadIdx.x % 32; i < p.inners; i += 32) {
      const float size = fabsf(line[(p.inner0 + i) * p.source.inner_stride]);
      if (size > 0) least = fminf(least, size);
    }
  }
  return join_block<warps>(least, scratch, [](float a, float b) { return fminf(a, b); });
}

/// One operand of a block: its tiles, what copies them, what reads them.
template <class Cfg, class Format, bool is_a>
struct Operand {
  static constexpr bool k_inner = is_a ? Cfg::a_unit != unit_row : Cfg::b_unit == unit_row;
  static constexpr int extent = is_a ? Cfg::tile_m : Cfg::tile_n;
  static constexpr bool wide = is_a ? Cfg::a_wide : Cfg::b_wide;
  using Tile = typename Format::template Tile<extent, Cfg::tile_k, k_inner>;
  using Copy = Copy32<Tile, Format, Cfg::threads, wide, Cfg::edge>;
  using Reader = typename Format::template Reader<Tile, is_a>;
  static constexpr unsigned bytes = Format::planes * Tile::bytes;  // of one buffer

  static __device__ Source<float> source(const GemmArgs& args) {
    if constexpr (is_a) return lines_of_a<float, k_inner>(args);
    return lines_of_b<float, !k_inner>(args);
  }
  /// The copy of the tiles that start at row or column `start` of the result.
  static __device__ Copy copy(const GemmArgs& args, unsigned tiles, int start) {
    return Copy(tiles, source(args), k_inner ? start : 0, k_inner ? 0 : start);
  }
  static __device__ Lines lines(const GemmArgs& args) {
    return {source(args).base, is_a ? args.a_row : args.b_col, is_a ? args.a_col : args.b_row};
  }
  /// All that the copy will have read.
  static __device__ Panel panel(const GemmArgs& args, int start) {
    const int lines = min(extent, (is_a ? args.m : args.n) - start);
    return {source(args), k_inner ? start : 0, k_inner ? lines : args.k, k_inner ? 0 : start, k_inner ? args.k : lines};
  }
};

/// All products of a block's tiles. `multiply(a_buffer, b_buffer, step, between)` multiplies one step of Format::step_k
/// from the buffers that many bytes after the first. On its way it calls between(0) to between(places - 1). Each puts a
/// part of the next tile, so that the format is made while tensor cores multiply. Every `chain` tiles, except after the
/// last tile, ends_chain(first) is called; `first` is true the first time. chain = 0: never.
template <class Cfg, class Format, int places, int chain, class Multiply, class EndsChain>
__device__ inline void multiply_all(const GemmArgs& args, typename Operand<Cfg, Format, true>::Copy& copy_a,
                                    typename Operand<Cfg, Format, false>::Copy& copy_b, Multiply multiply,
                                    EndsChain ends_chain) {
  using A = Operand<Cfg, Format, true>;
  using B = Operand<Cfg, Format, false>;
  constexpr int steps = Cfg::tile_k / Format::step_k, half = steps / 2;
  static_assert(steps % 2 == 0, "two halves");
  const int tiles = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;
  wait_for_earlier_grids();
  let_later_grids_start();
  if (tiles == 0) return;
  copy_a.fetch_part(0, 1);
  copy_b.fetch_part(0, 1);
  if (tiles > 1) copy_a.advance(), copy_b.advance();
  copy_a.put_part(0, 0, 1);
  copy_b.put_part(0, 0, 1);
  copy_a.fetch_part(0, 1);
  if (tiles > 2) copy_a.advance();
  __syncthreads();
  for (int tile = 0; tile < tiles;) {
    const int stop = chain ? min(tile + chain, tiles) : tiles;
    const bool first = tile == 0;
    for (; tile < stop; ++tile) {
      const unsigned read = tile % 2, write = 1 - read;
#pragma unroll
      for (int s = 0; s < steps; ++s) {
        multiply(read * A::bytes, read * B::bytes, s, [&](int place) {
          constexpr int parts = half * places;
          const int part = s % half * places + place;
          if (s < half) {
            copy_a.put_part(write * A::bytes, part, parts);
            copy_b.fetch_part(part, parts);
          } else {
            copy_b.put_part(write * B::bytes, part, parts);
            copy_a.fetch_part(part, parts);
          }
        });
        if (s == half - 1 && tile + 2 < tiles) copy_b.advance();
      }
      if (tile + 3 < tiles) copy_a.advance();
      __syncthreads();
    }
    if (chain && tile < tiles) ends_chain(first);
  }
}
