#pragma once
// Global memory, 8 or 16 bytes per access, at multiples of that. The compiler takes a uint4 apart and does not always
// put it together again: around shuffles it left four accesses of 4 bytes, which took h13's results four times as long.

/// In the order of the program among other such accesses.
__device__ inline void load_global_16(unsigned (&word)[4], const void* from) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(from)
               : "memory");
}
__device__ inline void store_global_16(void* to, const unsigned (&word)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
               "r"(word[3])
               : "memory");
}
__device__ inline void store_global_8(void* to, unsigned first, unsigned second) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}

/// One, two or four words in one access that the compiler may move and merge.
template <int words>
__device__ inline void load_words(unsigned (&word)[words], const void* from) {
  static_assert(words == 2 || words == 4, "8 or 16 bytes");
  if constexpr (words == 4) {
    const uint4 v = *static_cast<const uint4*>(from);
    word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
  } else {
    const uint2 v = *static_cast<const uint2*>(from);
    word[0] = v.x, word[1] = v.y;
  }
}
template <int words>
__device__ inline void store_words(void* to, const unsigned (&word)[words]) {
  static_assert(words == 1 || words == 2 || words == 4, "4, 8 or 16 bytes");
  if constexpr (words == 1)
    *static_cast<unsigned*>(to) = word[0];
  else if constexpr (words == 4)
    *static_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
  else
    *static_cast<uint2*>(to) = make_uint2(word[0], word[1]);
}
