#pragma once
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
