#pragma once
// Global memory that is read once, 16 bytes per access, at multiples of that.

/// What nobody writes while the kernel runs, and is read once: L1 keeps none of it.
__device__ inline void load_once_16(unsigned (&word)[4], const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(from));
}
