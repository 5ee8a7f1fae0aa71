#pragma once
// movmatrix: an 8x8 matrix of 16-bit elements transposed among the registers of a warp. sm_75+. SASS: MOVM.

/// Lane i gives two elements of row i / 4, columns i % 4 * 2 and the next, and gets those of column i / 4.
__device__ inline unsigned movmatrix_transposed(unsigned word) {
  unsigned turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
  return turned;
}
