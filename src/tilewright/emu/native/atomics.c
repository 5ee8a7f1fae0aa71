// Atomics, lane after lane, as emu/isa/atomics.py applies them.
#include "native.h"

// The sum of x and y with the NaN that x86's addition gives, whichever way a compiler turns the operands.
static inline f32 sum_f32(f32 x, f32 y) {
  if (x != x) return as_f32(bits_of(x) | 0x00400000u);
  if (y != y) return as_f32(bits_of(y) | 0x00400000u);
  const f32 sum = x + y;
  return sum != sum ? as_f32(0xffc00000u) : sum;
}
static inline f32 flushed(f32 x) { return as_f32(bits_of(x) & 0x7f800000u ? bits_of(x) : bits_of(x) & 0x80000000u); }

// name, type, value of the place that holds `old` and meets b (and c)
#define ATOMICS(X)                                                                                                  \
  X(add_u32, u32, old + b)                                                                                          \
  X(add_u64, u64, old + b)                                                                                          \
  X(add_f32, f32, sum_f32(old, b))                                                                                  \
  X(add_flushing_f32, f32, flushed(sum_f32(flushed(old), flushed(b)))) X(min_u32, u32, b < old ? b : old)           \
      X(max_u32, u32, b > old ? b : old) X(min_s32, s32, b < old ? b : old) X(max_s32, s32, b > old ? b : old)      \
          X(min_u64, u64, b < old ? b : old) X(max_u64, u64, b > old ? b : old) X(min_s64, s64, b < old ? b : old)  \
              X(max_s64, s64, b > old ? b : old) X(and_b32, u32, old& b) X(or_b32, u32, old | b)                    \
                  X(xor_b32, u32, old ^ b) X(and_b64, u64, old& b) X(or_b64, u64, old | b) X(xor_b64, u64, old ^ b) \
                      X(exch_b32, u32, b) X(exch_b64, u64, b) X(cas_b16, u16, old == b ? c : old)                   \
                          X(cas_b32, u32, old == b ? c : old) X(cas_b64, u64, old == b ? c : old)                   \
                              X(inc_u32, u32, old >= b ? 0 : old + 1)                                               \
                                  X(dec_u32, u32, old == 0 || old > b ? b : old - 1)

typedef struct {
  char* data;
  const s64 *offsets, *lanes;
  s64 count;
  const char *b, *c;
  s64 b_step, c_step;
  char* old;  // null: nobody asks
} Atomic;

#define DEFINE_ATOMIC(NAME, T, VALUE)                               \
  static void atomic_##NAME(const Atomic* a) {                      \
    for (s64 k = 0; k < a->count; ++k) {                            \
      const s64 lane = a->lanes ? a->lanes[k] : k;                  \
      T* place = (T*)(a->data + a->offsets[k]);                     \
      const T old = *place, b = ((const T*)a->b)[lane * a->b_step]; \
      const T c = ((const T*)a->c)[lane * a->c_step];               \
      (void)c;                                                      \
      *place = (T)(VALUE);                                          \
      if (a->old) ((T*)a->old)[lane] = old;                         \
    }                                                               \
  }
ATOMICS(DEFINE_ATOMIC)

#define ATOMIC_ENTRY(NAME, T, VALUE) {#NAME, atomic_##NAME},
static const struct {
  const char* name;
  void (*run)(const Atomic*);
} ATOMIC_TABLE[] = {ATOMICS(ATOMIC_ENTRY)};

// The name of atomic `code`; null after the last.
EXPORT const char* tw_atomic_name(int code) {
  return code < (int)(sizeof ATOMIC_TABLE / sizeof *ATOMIC_TABLE) ? ATOMIC_TABLE[code].name : 0;
}

EXPORT void tw_atomic(s64 code, const Atomic* a) { ATOMIC_TABLE[code].run(a); }
