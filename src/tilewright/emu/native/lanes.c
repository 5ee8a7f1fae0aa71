// Straight-line instructions over the lanes of a batch. One operation is a loop over lanes; a run of them is taken in
// pieces of PIECE lanes, so that registers stay in the first-level cache between operations.
// What each computes is defined by the NumPy form in emu/isa/, whose bits these equal.
#include "native.h"

#include <math.h>

#define PIECE 512

#define QUIET32(x) ((x) != (x) ? as_f32(0x7fffffffu) : (x))

static inline f32 least(f32 x, f32 y) {
  const f32 picked = x != x ? y : y != y ? x : (x < y || (x == y && bits_of(x) >> 31)) ? x : y;
  return QUIET32(picked);
}
static inline f32 greatest(f32 x, f32 y) {
  const f32 picked = x != x ? y : y != y ? x : (x > y || (x == y && !(bits_of(x) >> 31))) ? x : y;
  return QUIET32(picked);
}
static inline u32 choose_bits(u32 s, u32 p, u32 q) { return (s & p) | (~s & q); }
static inline u32 lookup(u32 x, u32 y, u32 z, u32 table) {
#define ROW(k) (0u - (table >> (k) & 1u))
  const u32 high = choose_bits(y, choose_bits(z, ROW(7), ROW(6)), choose_bits(z, ROW(5), ROW(4)));
  const u32 low = choose_bits(y, choose_bits(z, ROW(3), ROW(2)), choose_bits(z, ROW(1), ROW(0)));
#undef ROW
  return choose_bits(x, high, low);
}
static inline u32 permute(u32 x, u32 y, u32 z) {
  const u64 both = (u64)y << 32 | x;
  u32 out = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 chosen = z >> 4 * k & 15, byte = (u32)(both >> 8 * (chosen & 7)) & 255;
    out |= (chosen & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * k;
  }
  return out;
}
static inline s32 quotient(s32 x, s32 y) { return y == 0 ? -1 : y == -1 ? (s32)(0u - (u32)x) : x / y; }
static inline s32 cut_s32(f32 x) {
  return x != x ? 0 : x >= 0x1p31f ? 2147483647 : x <= -0x1p31f ? -2147483647 - 1 : (s32)x;
}
static inline u32 cut_u32(f32 x) { return !(x > 0) ? 0 : x >= 0x1p32f ? 4294967295u : (u32)x; }
static inline u32 bf16_bits(f32 x) {
  const u32 bits = bits_of(x);
  return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// clang-format off
// name, type of the result, types of the sources x, y, z, value
#define OPERATIONS(X) \
    X(mov8, u8, u8, u8, u8, x) X(mov16, u16, u16, u16, u16, x) \
    X(mov32, u32, u32, u32, u32, x) X(mov64, u64, u64, u64, u64, x) \
    X(add16, u16, u16, u16, u16, x + y) X(add32, u32, u32, u32, u32, x + y) X(add64, u64, u64, u64, u64, x + y) \
    X(sub16, u16, u16, u16, u16, x - y) X(sub32, u32, u32, u32, u32, x - y) X(sub64, u64, u64, u64, u64, x - y) \
    X(mul16, u16, u16, u16, u16, (u32)x * y) X(mul32, u32, u32, u32, u32, x * y) X(mul64, u64, u64, u64, u64, x * y) \
    X(mad16, u16, u16, u16, u16, (u32)x * y + z) \
    X(mad32, u32, u32, u32, u32, x * y + z) X(mad64, u64, u64, u64, u64, x * y + z) \
    X(wide_u32, u64, u32, u32, u32, (u64)x * y) X(wide_s32, s64, s32, s32, s32, (s64)x * y) \
    X(wide_u16, u32, u16, u16, u16, (u32)x * y) X(wide_s16, s32, s16, s16, s16, (s32)x * y) \
    X(mad_wide_u32, u64, u32, u32, u64, (u64)x * y + z) X(mad_wide_s32, u64, s32, s32, u64, (u64)((s64)x * y) + z) \
    X(high_u32, u32, u32, u32, u32, (u64)x * y >> 32) X(high_s32, u32, s32, s32, s32, (u64)((s64)x * y) >> 32) \
    X(div_u32, u32, u32, u32, u32, y ? x / y : ~0u) X(div_s32, s32, s32, s32, s32, quotient(x, y)) \
    X(rem_u32, u32, u32, u32, u32, y ? x % y : x) \
    X(rem_s32, s32, s32, s32, s32, y ? (s32)((u32)x - (u32)quotient(x, y) * (u32)y) : x) \
    X(min_u32, u32, u32, u32, u32, x < y ? x : y) X(max_u32, u32, u32, u32, u32, x > y ? x : y) \
    X(min_s32, s32, s32, s32, s32, x < y ? x : y) X(max_s32, s32, s32, s32, s32, x > y ? x : y) \
    X(min_u64, u64, u64, u64, u64, x < y ? x : y) X(max_u64, u64, u64, u64, u64, x > y ? x : y) \
    X(min_s64, s64, s64, s64, s64, x < y ? x : y) X(max_s64, s64, s64, s64, s64, x > y ? x : y) \
    X(and8, u8, u8, u8, u8, x & y) X(or8, u8, u8, u8, u8, x | y) X(xor8, u8, u8, u8, u8, x ^ y) \
    X(and16, u16, u16, u16, u16, x & y) X(or16, u16, u16, u16, u16, x | y) X(xor16, u16, u16, u16, u16, x ^ y) \
    X(and32, u32, u32, u32, u32, x & y) X(or32, u32, u32, u32, u32, x | y) X(xor32, u32, u32, u32, u32, x ^ y) \
    X(and64, u64, u64, u64, u64, x & y) X(or64, u64, u64, u64, u64, x | y) X(xor64, u64, u64, u64, u64, x ^ y) \
    X(not8, u8, u8, u8, u8, !x) X(not16, u16, u16, u16, u16, ~x) \
    X(not32, u32, u32, u32, u32, ~x) X(not64, u64, u64, u64, u64, ~x) \
    X(neg32, u32, u32, u32, u32, 0u - x) X(neg64, u64, u64, u64, u64, 0ull - x) \
    X(abs32, u32, s32, s32, s32, x < 0 ? 0u - (u32)x : (u32)x) \
    X(shl16, u16, u16, u32, u32, y > 15 ? 0 : (u32)x << y) X(shr_u16, u16, u16, u32, u32, y > 15 ? 0 : x >> y) \
    X(shl32, u32, u32, u32, u32, y > 31 ? 0 : x << (y & 31)) X(shr_u32, u32, u32, u32, u32, y > 31 ? 0 : x >> (y & 31)) \
    X(shl64, u64, u64, u32, u32, y > 63 ? 0 : x << (y & 63)) X(shr_u64, u64, u64, u32, u32, y > 63 ? 0 : x >> (y & 63)) \
    X(shr_s16, s16, s16, u32, u32, x >> (y > 15 ? 15 : y)) X(shr_s32, s32, s32, u32, u32, x >> (y > 31 ? 31 : y)) \
    X(shr_s64, s64, s64, u32, u32, x >> (y > 63 ? 63 : y)) \
    X(shf_l_wrap, u32, u32, u32, u32, (((u64)y << 32 | x) << (z & 31)) >> 32) \
    X(shf_r_wrap, u32, u32, u32, u32, ((u64)y << 32 | x) >> (z & 31)) \
    X(shf_l_clamp, u32, u32, u32, u32, (((u64)y << 32 | x) << (z > 32 ? 32 : z)) >> 32) \
    X(shf_r_clamp, u32, u32, u32, u32, ((u64)y << 32 | x) >> (z > 32 ? 32 : z)) \
    X(lop3, u32, u32, u32, u32, lookup(x, y, z, table)) X(prmt, u32, u32, u32, u32, permute(x, y, z)) \
    X(popc32, u32, u32, u32, u32, __builtin_popcount(x)) X(clz32, u32, u32, u32, u32, x ? __builtin_clz(x) : 32) \
    X(sel16, u16, u16, u16, u8, z ? x : y) X(sel32, u32, u32, u32, u8, z ? x : y) X(sel64, u64, u64, u64, u8, z ? x : y) \
    X(pack64, u64, u32, u32, u32, (u64)y << 32 | x) X(pack32, u32, u16, u16, u16, (u32)y << 16 | x) \
    X(low32, u32, u64, u64, u64, x) X(upper32, u32, u64, u64, u64, x >> 32) \
    X(low16, u16, u32, u32, u32, x) X(upper16, u16, u32, u32, u32, x >> 16) \
    X(u64_of_u32, u64, u32, u32, u32, x) X(u64_of_s32, s64, s32, s32, s32, x) X(low16_of_64, u16, u64, u64, u64, x) \
    X(u32_of_u16, u32, u16, u16, u16, x) X(u32_of_s16, s32, s16, s16, s16, x) \
    X(u64_of_u16, u64, u16, u16, u16, x) X(u64_of_s16, s64, s16, s16, s16, x) \
    X(bf16_of_f32, u16, f32, f32, f32, bf16_bits(x)) X(pack_bf16, u32, f32, f32, f32, bf16_bits(x) << 16 | bf16_bits(y)) \
    X(f32_of_u32, f32, u32, u32, u32, x) X(f32_of_s32, f32, s32, s32, s32, x) \
    X(s32_of_f32, s32, f32, f32, f32, cut_s32(x)) X(u32_of_f32, u32, f32, f32, f32, cut_u32(x)) \
    X(add_f32, f32, f32, f32, f32, QUIET32(x + y)) X(sub_f32, f32, f32, f32, f32, QUIET32(x - y)) \
    X(mul_f32, f32, f32, f32, f32, QUIET32(x * y)) X(fma_f32, f32, f32, f32, f32, QUIET32(__builtin_fmaf(x, y, z))) \
    X(div_f32, f32, f32, f32, f32, QUIET32(x / y)) X(sqrt_f32, f32, f32, f32, f32, QUIET32(__builtin_sqrtf(x))) \
    X(rcp_f32, f32, f32, f32, f32, QUIET32(1.0f / x)) \
    X(neg_f32, u32, u32, u32, u32, x ^ 0x80000000u) X(abs_f32, u32, u32, u32, u32, x & 0x7fffffffu) \
    X(min_f32, f32, f32, f32, f32, least(x, y)) X(max_f32, f32, f32, f32, f32, greatest(x, y)) \
    COMPARE(X, u16) COMPARE(X, s16) COMPARE(X, u32) COMPARE(X, s32) COMPARE(X, u64) COMPARE(X, s64) COMPARE(X, f32) \
    X(neu_f32, u8, f32, f32, f32, x != y) X(ltu_f32, u8, f32, f32, f32, !(x >= y)) \
    X(leu_f32, u8, f32, f32, f32, !(x > y)) X(gtu_f32, u8, f32, f32, f32, !(x <= y)) \
    X(geu_f32, u8, f32, f32, f32, !(x < y)) X(nan_f32, u8, f32, f32, f32, x != x || y != y) \
    X(num_f32, u8, f32, f32, f32, x == x && y == y)
#define COMPARE(X, T) \
    X(eq_##T, u8, T, T, T, x == y) X(ne_##T, u8, T, T, T, (x != y) & (x == x) & (y == y)) X(lt_##T, u8, T, T, T, x < y) \
    X(le_##T, u8, T, T, T, x <= y) X(gt_##T, u8, T, T, T, x > y) X(ge_##T, u8, T, T, T, x >= y)

// clang-format on

typedef void Loop(void* to, const void* a, const void* b, const void* c, int n, u32 table, const u8* mask);

#define EACH(A, B, C, STORE)                \
  INDEPENDENT for (int i = 0; i < n; ++i) { \
    const A x = xs[i];                      \
    const B y = ys[i];                      \
    const C z = zs[i];                      \
    (void)x, (void)y, (void)z;              \
    STORE;                                  \
  }
#define DEFINE(NAME, R, A, B, C, VALUE)                                                                       \
  static void NAME(void* to, const void* a, const void* b, const void* c, int n, u32 table, const u8* mask) { \
    R* r = to;                                                                                                \
    const A* xs = a;                                                                                          \
    const B* ys = b;                                                                                          \
    const C* zs = c;                                                                                          \
    (void)table;                                                                                              \
    if (mask)                                                                                                 \
      EACH(A, B, C, const R v = (R)(VALUE); r[i] = mask[i] ? v : r[i])                                        \
    else                                                                                                      \
      EACH(A, B, C, r[i] = (R)(VALUE))                                                                        \
  }
OPERATIONS(DEFINE)

#define ENTRY(NAME, R, A, B, C, VALUE) {#NAME, NAME, {sizeof(R), sizeof(A), sizeof(B), sizeof(C)}},
static const struct {
  const char* name;
  Loop* loop;
  u8 bytes[4];
} TABLE[] = {OPERATIONS(ENTRY)};

// The name of operation `code`; null after the last.
EXPORT const char* tw_operation(int code) { return code < (int)(sizeof TABLE / sizeof *TABLE) ? TABLE[code].name : 0; }

typedef struct {
  s64 code;
  void* to;
  const void* from[3];  // one element a lane; where `constant`, PIECE equal ones
  s64 constant[3];
  const u8* guard;  // null: always
  s64 negated;
  s64* count;  // lanes whose guard held are added here
  s64 table;
} Operation;

EXPORT int tw_piece(void) { return PIECE; }

static inline int piece_at(s64 start, s64 lanes) { return (int)(lanes - start < PIECE ? lanes - start : PIECE); }

// Run operations for the lanes of `mask` (null: all) of `lanes`.
EXPORT void tw_lanes(const Operation* operations, s64 count, const u8* mask, s64 lanes) {
  u8 guarded[PIECE];
  for (s64 start = 0; start < lanes; start += PIECE) {
    const int n = piece_at(start, lanes);
    const u8* here = mask ? mask + start : 0;
    if (here) {
      const int held = count_of(here, n);
      if (!held) continue;
      if (held == n) here = 0;
    }
    for (const Operation* o = operations; o < operations + count; ++o) {
      const u8* active = here;
      if (o->guard) {
        const u8 *guard = o->guard + start, flip = (u8)o->negated;
        if (here)
          for (int i = 0; i < n; ++i) guarded[i] = (guard[i] ^ flip) & here[i];
        else
          for (int i = 0; i < n; ++i) guarded[i] = guard[i] ^ flip;
        const int held = count_of(guarded, n);
        if (!held) continue;
        *o->count += held;
        active = held == n ? 0 : guarded;
      }
      const u8* bytes = TABLE[o->code].bytes;
      const void* from[3];
      for (int k = 0; k < 3; ++k)
        from[k] = o->constant[k] ? o->from[k] : (const char*)o->from[k] + start * bytes[k + 1];
      void* to = (char*)o->to + start * bytes[0];
      TABLE[o->code].loop(to, from[0], from[1], from[2], n, (u32)o->table, active);
    }
  }
}
