#pragma once
// ldmatrix: 8 x 8 matrices of 16-bit elements, shared memory -> registers of a warp. sm_75+. SASS: LDSM.
//
// A row is 16 bytes; lane i gives the address of row i % 8 of matrix i / 8. Of each matrix lane i then holds elements
// (i / 4, i % 4 * 2) and the one right of it; with `transposed` elements (i % 4 * 2, i / 4) and the one below it.

/// Four matrices, one a register.
template <bool transposed>
__device__ inline void ldmatrix_x4(unsigned (&to)[4], unsigned row_address) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row_address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row_address)
                 : "memory");
}
