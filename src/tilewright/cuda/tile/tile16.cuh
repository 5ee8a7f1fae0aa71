#pragma once
// Operand tiles of 16-bit elements in shared memory. They lie as in global memory: the index that is contiguous there
// is contiguous here, so that a copy moves 16-byte chunks whatever the layout, and the readers transpose (wmma's .row
// and .col, ldmatrix's .trans).
//
//     k_inner    [m or n][k]     A row-major, B column-major ("t")
//     else       [k][m or n]     A column-major ("t"), B row-major
//
// A line may be cut into panels, which lie one after the other, each with its part of all lines:
//
//     panel = inner      0 0 0 0 0 0 0 0        panel = inner / 2      0 0 0 0   then   0 0 0 0
//                        1 1 1 1 1 1 1 1                               1 1 1 1          1 1 1 1
// by_lane: 32 lines lie in the order in which tensor-core products hand them out. Product j = 0 to 3 of lines 8 j to
// 8 j + 7 gives lane t of a quad lines 8 j + 2 t and the next. Lines 8 t + 2 j and the next lie there, so that the lane
// gets eight lines side by side. In a line's number the bits of t and j change places; steps that are sums of distinct
// bits stay so.

// Swizzle<bits, base, shift>: a permutation of element offsets that spreads the lines of a tile over the banks.
// swizzle.py is the same function; a test holds them equal over all offsets.
//
//     offset bits   ... [base+shift .. base+shift+bits) ... [base .. base+bits) [0 .. base)
//                       \______________ xor onto _____________^                 one 16-byte chunk stays whole
//
// It is linear over xor: apply(o ^ d) = apply(o) ^ apply(d). Where o and d share no bit, o + d = o ^ d: a constant step
// d from a swizzled address is then an xor and an addition of constants (SharedTile::step in tile/tile16.cuh).

template <int bits, int base, int shift>
struct Swizzle {
  static_assert(bits >= 0 && base >= 0 && shift >= bits, "source and target bits must not overlap");
  static constexpr unsigned target = ((1u << bits) - 1) << base;  // the bits that change
  __host__ __device__ static constexpr unsigned apply(unsigned offset) { return offset ^ ((offset >> shift) & target); }
};

using NoSwizzle = Swizzle<0, 3, 3>;

constexpr int log2_of(int x) { return x <= 1 ? 0 : 1 + log2_of(x / 2); }

/// The swizzle under which eight consecutive lines of `inner` 16-bit elements, read at one column of 16-byte chunks,
/// touch eight different 16-byte columns of the 128-byte row of banks: no conflict for ldmatrix.
template <int inner>
using ConflictFree = Swizzle<(inner >= 64 ? 3 : log2_of(inner) - 3), 3, (inner >= 64 ? log2_of(inner) - 3 : 3)>;

template <int extent_, int tile_k_, bool k_inner_, class Swizzle_ = NoSwizzle, int panel_ = 0, bool by_lane_ = false>
struct SharedTile {
  using Swz = Swizzle_;
  static constexpr int extent = extent_, tile_k = tile_k_;
  static constexpr bool k_inner = k_inner_, by_lane = by_lane_;
  static constexpr int lines = k_inner ? extent : tile_k, inner = k_inner ? tile_k : extent;
  static constexpr int panel = panel_ ? panel_ : inner;
  static constexpr int size = lines * inner, bytes = 2 * size, panel_bytes = 2 * lines * panel;
  static constexpr int chunks = inner / 8;  // of 16 bytes, in a line
  static_assert(inner % 8 == 0, "a line is whole 16-byte chunks");
  static_assert(!by_lane || lines % 32 == 0, "whole groups of lines");

  /// Offset in elements before swizzling.
  static constexpr __device__ unsigned place(int line, int i) {
    const int at = by_lane ? (line & ~30) | (line & 6) << 2 | (line >> 2 & 6) : line;
    return i / panel * lines * panel + at * panel + i % panel;
  }
  static constexpr __device__ unsigned offset(int mn, int k) { return k_inner ? place(mn, k) : place(k, mn); }

  /// Shared address of the chunk that holds offset `o`, in a tile at `tile`.
  static __device__ unsigned address(unsigned tile, unsigned o) { return tile + 2 * Swz::apply(o); }

  /// From the address of the chunk at offset o to that at o + d, where o and d share no bit. Tiles start at multiples
  /// of 128 bytes at least, so xor on an address is xor on the offset.
  static __device__ unsigned step(unsigned address, unsigned d) {
    const unsigned moved = Swz::apply(d);
    return (address ^ (2 * (moved & Swz::target))) + 2 * (moved & ~Swz::target);
  }
};
