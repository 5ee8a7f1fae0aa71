#pragma once
// Four 8-column products of a row, held in pairs by the four lanes of a quad, as 16 bytes per lane.

/// Lane t of the quad holds pair t of products 0 .. 3 of its row; afterwards all pairs of product t, in order.
__device__ inline uint4 quad_transposed(const unsigned (&pair)[4]) {
  const int lane = threadIdx.x % 4;
  const bool odd = lane & 1, high = lane & 2;
  // across neighbours: products 2 i and 2 i + 1
  unsigned a = __shfl_xor_sync(~0u, odd ? pair[0] : pair[1], 1), b = __shfl_xor_sync(~0u, odd ? pair[2] : pair[3], 1);
  const unsigned low0 = odd ? a : pair[0], low1 = odd ? pair[1] : a;  // pairs 2 (lane / 2) and the next, of product odd
  const unsigned high0 = odd ? b : pair[2], high1 = odd ? pair[3] : b;  // of product 2 + odd
  a = __shfl_xor_sync(~0u, high ? low0 : high0, 2), b = __shfl_xor_sync(~0u, high ? low1 : high1, 2);
  return high ? make_uint4(a, b, high0, high1) : make_uint4(low0, low1, a, b);
}
