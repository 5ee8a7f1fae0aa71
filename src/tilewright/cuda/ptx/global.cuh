#pragma once
// Global memory, 8 or 16 bytes an access, at multiples of that. The compiler takes a uint4 apart and does not always put it
// together again: around shuffles it left four accesses of 4 bytes, which took h13's results four times as long.

/// In the order of the program among other such accesses.
__device__ inline void load_global_16(unsigned (&word)[4], const void* from) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(from)
               : "memory");
}
__device__ inline void store_global_16(void* to, const unsigned (&word)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
}
__device__ inline void store_global_8(void* to, unsigned first, unsigned second) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}
