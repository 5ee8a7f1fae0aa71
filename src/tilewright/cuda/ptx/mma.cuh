#pragma once
// mma.sync m16n8k16: one warp, D (16 x 8, fp32) = A (16 x 16) * B (16 x 8) + D. sm_80+. SASS: HMMA.16816.F32.
//
// With g = lane / 4 and t = lane % 4 * 2 a lane holds, two elements a register:
//
//     a[0] (g, t..t+1)        a[2] (g, t+8..t+9)          b[0] (t..t+1, g)       d[0..1] (g, t..t+1)
//     a[1] (g + 8, t..t+1)    a[3] (g + 8, t+8..t+9)      b[1] (t+8..t+9, g)     d[2..3] (g + 8, t..t+1)

#include "ptx/number16.cuh"

template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
__device__ inline void mma_m16n8k16<bf16>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_m16n8k16<f16>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with C = 0 and a D of its own: the first product of a sum.
__device__ inline void mma_m16n8k16_bf16_start(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

/// tf32: m16n8k8, one element a register. With g = lane / 4 and t = lane % 4, D as above. SASS: HMMA.1688.F32.TF32.
///
///     a[0] (g, t)        a[2] (g, t + 4)          b0 (t, g)
///     a[1] (g + 8, t)    a[3] (g + 8, t + 4)      b1 (t + 4, g)
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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
