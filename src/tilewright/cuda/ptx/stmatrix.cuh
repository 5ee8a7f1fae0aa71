#pragma once
// stmatrix: four 8x8 matrices of 16-bit elements from the registers of a warp to shared memory. sm_90+. SASS: STSM.

/// Lane i holds two elements of row i / 4 of each matrix, columns i % 4 * 2 and the next, and gives the shared address
/// of row i % 8 of matrix i / 8.
__device__ inline void stmatrix_x4(unsigned row_address, const unsigned (&word)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(word[0]),
               "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
}
