// What the files here share. They are compiled as one (native.c).
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef float f32;
typedef double f64;

#define EXPORT __attribute__((visibility("default")))
// What one pass of the loop writes no other one reads, whatever the pointers look like.
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

static inline f32 as_f32(u32 bits) {
  f32 x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline u32 bits_of(f32 x) {
  u32 bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// How many of a mask's bytes, 0 or 1 each, are 1.
static inline int count_of(const u8* mask, int n) {
  int held = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    u64 eight;
    memcpy(&eight, mask + i, 8);
    held += __builtin_popcountll(eight);
  }
  for (; i < n; ++i) held += mask[i];
  return held;
}
