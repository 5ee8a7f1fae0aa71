#pragma once
// wmma: one warp, D (m x n, fp32) = A (m x 16) * B (16 x n) + D, for m x n of 16 x 16, 32 x 8 and 8 x 32. sm_70+ for
// fp16, sm_80+ for bf16. Which lane holds which element is the machine's own business: fragments are loaded,
// multiplied and stored whole. Base addresses are multiples of 32 bytes; lines lie a multiple of 16 bytes apart.

#include "ptx/number16.cuh"

/// Wmma<T, m, n>: load_a, load_b <row_major>(fragment, address, pitch in elements) from shared memory (a 32-bit
/// address) or global memory (a pointer), multiply <a_row_major, b_row_major>, and store, which is row-major fp32 to
/// shared memory. `a_registers` and `b_registers` are the fragments' sizes.
template <class T, int m, int n>
struct Wmma;

#define TW_LOAD_2(text, to, kind, address, pitch) \
  asm volatile(text " {%0, %1}, [%2], %3;" : "=r"(to[0]), "=r"(to[1]) : kind(address), "r"(pitch) : "memory")
#define TW_LOAD_4(text, to, kind, address, pitch)                   \
  asm volatile(text " {%0, %1, %2, %3}, [%4], %5;"                  \
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) \
               : kind(address), "r"(pitch)                          \
               : "memory")
#define TW_LOAD_8(text, to, kind, address, pitch)                                                           \
  asm volatile(text " {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                          \
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]), "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), \
                 "=r"(to[7])                                                                                \
               : kind(address), "r"(pitch)                                                                  \
               : "memory")
#define TW_LOADS(name, side, shape, type, count)                                                              \
  template <bool row_major>                                                                                   \
  static __device__ void name(unsigned (&to)[count], unsigned address, int pitch) {                           \
    if constexpr (row_major)                                                                                  \
      TW_LOAD_##count("wmma.load." side ".sync.aligned.row." shape ".shared." type, to, "r", address, pitch); \
    else                                                                                                      \
      TW_LOAD_##count("wmma.load." side ".sync.aligned.col." shape ".shared." type, to, "r", address, pitch); \
  }                                                                                                           \
  template <bool row_major>                                                                                   \
  static __device__ void name(unsigned (&to)[count], const void* address, int pitch) {                        \
    if constexpr (row_major)                                                                                  \
      TW_LOAD_##count("wmma.load." side ".sync.aligned.row." shape ".global." type, to, "l", address, pitch); \
    else                                                                                                      \
      TW_LOAD_##count("wmma.load." side ".sync.aligned.col." shape ".global." type, to, "l", address, pitch); \
  }

#define TW_IN_2(r) "r"(r[0]), "r"(r[1])
#define TW_IN_4(r) TW_IN_2(r), "r"(r[2]), "r"(r[3])
#define TW_IN_8(r) TW_IN_4(r), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7])
#define TW_D "{%0, %1, %2, %3, %4, %5, %6, %7}"
// `operands`: the numbers of A's and B's registers, which follow D's eight.
#define TW_MULTIPLY(layouts, shape, types, operands, a_count, b_count)                                          \
  asm volatile("wmma.mma.sync.aligned." layouts "." shape "." types " " TW_D ", " operands ", " TW_D ";"        \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
               : TW_IN_##a_count(a), TW_IN_##b_count(b))

#define TW_WMMA(T, type, types, m, n, shape, a_count, b_count, operands)                                            \
  template <>                                                                                                       \
  struct Wmma<T, m, n> {                                                                                            \
    static constexpr int a_registers = a_count, b_registers = b_count;                                              \
    TW_LOADS(load_a, "a", shape, type, a_count)                                                                     \
    TW_LOADS(load_b, "b", shape, type, b_count)                                                                     \
    template <bool a_row, bool b_row>                                                                               \
    static __device__ void multiply(float (&d)[8], const unsigned (&a)[a_count], const unsigned (&b)[b_count]) {    \
      if constexpr (a_row && b_row) TW_MULTIPLY("row.row", shape, types, operands, a_count, b_count);               \
      if constexpr (a_row && !b_row) TW_MULTIPLY("row.col", shape, types, operands, a_count, b_count);              \
      if constexpr (!a_row && b_row) TW_MULTIPLY("col.row", shape, types, operands, a_count, b_count);              \
      if constexpr (!a_row && !b_row) TW_MULTIPLY("col.col", shape, types, operands, a_count, b_count);             \
    }                                                                                                               \
    static __device__ void store(unsigned address, const float (&d)[8], int pitch) {                                \
      asm volatile("wmma.store.d.sync.aligned.row." shape ".shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" \
                   :                                                                                                \
                   : "r"(address), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]),     \
                     "f"(d[7]), "r"(pitch)                                                                          \
                   : "memory");                                                                                     \
    }                                                                                                               \
  };

#define TW_BF16_TYPES "f32.bf16.bf16.f32"
#define TW_A8_B8 "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}"
TW_WMMA(bf16, "bf16", TW_BF16_TYPES, 16, 16, "m16n16k16", 4, 4, "{%8, %9, %10, %11}, {%12, %13, %14, %15}")
TW_WMMA(bf16, "bf16", TW_BF16_TYPES, 32, 8, "m32n8k16", 8, 2, "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17}")
TW_WMMA(bf16, "bf16", TW_BF16_TYPES, 8, 32, "m8n32k16", 2, 8, "{%8, %9}, {%10, %11, %12, %13, %14, %15, %16, %17}")
TW_WMMA(f16, "f16", "f32.f32", 16, 16, "m16n16k16", 8, 8, TW_A8_B8)
TW_WMMA(f16, "f16", "f32.f32", 32, 8, "m32n8k16", 8, 8, TW_A8_B8)
TW_WMMA(f16, "f16", "f32.f32", 8, 32, "m8n32k16", 8, 8, TW_A8_B8)
#undef TW_WMMA
