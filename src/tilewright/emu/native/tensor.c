// The sums of tensor cores by the rules of emu/isa/tensor_sum.py, which says what they are; the bits are the same.
#include "native.h"

#define WIDEST 256  // columns of one product
#define DEEPEST 32  // products of one sum

enum { F16, BF16, TF32, E4M3, E5M2 };
#define SMALLEST_EXPONENT -133
#define ZERO_FACTOR -300

static const int NOT_FINITE[] = {16, 128, 128, 9, 16};

static inline f32 number(u32 bits) { return as_f32(bits); }
static inline f64 wide_number(u64 bits) {
  f64 x;
  memcpy(&x, &bits, 8);
  return x;
}

// Values and exponents of elements of A or B. `low` and `high` bound the exponents of all numbers but zeros. Of A the
// element of a row and a k is row * by_row + k * by_k; of B that of a column is k * columns + column.
typedef struct {
  f32* values;
  s16* exponents;
  int low, high, finite, by_row, by_k;
  s64 warp;  // whose registers they are from; -1: nobody's
} Factors;

static inline u32 half_bits(u32 word) {  // of fp32
  const u32 sign = (word & 0x8000) << 16, rest = word & 0x7fff;
  const u32 bits = bits_of(number(rest << 13) * 0x1p112f);  // exact, subnormal numbers too
  return sign | (rest >= 0x7c00 ? 0x7f800000u | rest << 13 : bits);
}

// Take `count` words apart, which stand in values[] as their bits.
static void take_apart(Factors* f, int count, int kind, int negative, const f32* fp8_values, const s16* fp8_exponents) {
  const u32 flip = negative ? 0x80000000u : 0, *words = (const u32*)f->values;
  u32* values = (u32*)f->values;
  s16* exponents = f->exponents;
  if (kind == F16) {
    INDEPENDENT for (int i = 0; i < count; ++i) {
      const u32 word = words[i], field = word >> 10 & 31;
      exponents[i] = (s16)((word & 0x7fff) ? (s32)(field ? field : 1) - 15 : ZERO_FACTOR);
      values[i] = half_bits(word) ^ flip;
    }
  } else if (kind == BF16) {  // the first loop in vectors of 16 bits
    INDEPENDENT for (int i = 0; i < count; ++i) {
      const u16 word = (u16)words[i];
      const s16 field = (s16)(word >> 7 & 255), exponent = (s16)((field ? field : 1) - 127);
      exponents[i] = word & 0x7fff ? exponent : ZERO_FACTOR;
    }
    INDEPENDENT for (int i = 0; i < count; ++i) values[i] = words[i] << 16 ^ flip;
  } else if (kind == TF32) {
    INDEPENDENT for (int i = 0; i < count; ++i) {
      const u32 bits = words[i] & 0xffffe000u, field = words[i] >> 23 & 255;
      exponents[i] = (s16)((bits << 1) ? (s32)(field ? field : 1) - 127 : ZERO_FACTOR);
      values[i] = bits ^ flip;
    }
  } else {
    for (int i = 0; i < count; ++i) {
      const u32 word = words[i];
      exponents[i] = fp8_exponents[word];
      values[i] = bits_of(fp8_values[word]) ^ flip;
    }
  }
  s16 low = 1 << 14, high = ZERO_FACTOR;
  for (int i = 0; i < count; ++i) {
    const s16 e = exponents[i], least = e == ZERO_FACTOR ? 1 << 14 : e;
    high = e > high ? e : high;
    low = least < low ? least : low;
  }
  f->high = high;
  f->low = low == 1 << 14 ? high : low;
  f->finite = high < NOT_FINITE[kind];
}

static inline u32 to_half(f64 x) {  // rounded to nearest even; a NaN is 0x7fff, a zero has no sign
  u64 bits;
  memcpy(&bits, &x, 8);
  const u32 sign = (u32)(bits >> 48 & 0x8000);
  const f64 size = x < 0 ? -x : x;
  if (x != x) return 0x7fff;
  if (size < 0x1p-14) {  // subnormal: whole numbers of 2^-24
    const u32 units = (u32)__builtin_rint(size * 0x1p24);
    return units ? sign | units : 0;
  }
  if (size >= 65520.0) return sign | 0x7c00;
  bits &= ~(1ull << 63);
  bits += (1ull << 41) - 1 + (bits >> 42 & 1);
  return sign | (u32)((bits >> 42) - (1008ull << 10));
}

// Cut to fp32, of whose mantissa `kept` bits are used; a NaN is 0x7fffffff, a zero has no sign.
static inline u32 cut_to_f32(f64 sum, int kept) {
  const f64 up = wide_number((u64)(1023 + 126 + kept) << 52), down = wide_number((u64)(1023 - 126 - kept) << 52);
  u64 bits;
  memcpy(&bits, &sum, 8);
  f64 x = wide_number(bits & ~0ull << (52 - kept));
  const f64 size = x < 0 ? -x : x;
  x = size < 0x1p-126 ? __builtin_trunc(x * up) * down + 0.0 : x;
  const f32 y = (f32)x;
  return y != y ? 0x7fffffffu : bits_of(y);
}

typedef struct {
  s64 fraction, step, kept, half;  // half: C and D are fp16, else fp32
} Rule;

#ifdef __AVX2__
#include <immintrin.h>
#define LARGER_8(x, y) (s16x8) _mm_max_epi16((__m128i)(x), (__m128i)(y))
#define LARGER_16(x, y) (s16x16) _mm256_max_epi16((__m256i)(x), (__m256i)(y))
#else
#define LARGER_8(x, y) (((x) & ((x) > (y))) | ((y) & ~((x) > (y))))
#define LARGER_16 LARGER_8
#endif
#ifdef __AVX512BW__
#define LARGER_32(x, y) (s16x32) _mm512_max_epi16((__m512i)(x), (__m512i)(y))
#else
#define LARGER_32(x, y) (((x) & ((x) > (y))) | ((y) & ~((x) > (y))))
#endif

#define VECTORS(W)                                                     \
  typedef s16 s16x##W __attribute__((vector_size(2 * W), aligned(2))); \
  typedef s32 s32x##W __attribute__((vector_size(4 * W), aligned(4))); \
  typedef u32 u32x##W __attribute__((vector_size(4 * W), aligned(4))); \
  typedef f32 f32x##W __attribute__((vector_size(4 * W), aligned(4))); \
  typedef f64 f64x##W __attribute__((vector_size(8 * W), aligned(8))); \
  typedef u64 u64x##W __attribute__((vector_size(8 * W), aligned(8))); \
  typedef s8 s8x##W __attribute__((vector_size(W), aligned(1)));       \
  static inline int any_##W(s32x##W mask) {                            \
    const s8x##W bytes = __builtin_convertvector(mask, s8x##W);        \
    u64 parts[W / 8];                                                  \
    memcpy(parts, &bytes, W);                                          \
    return (parts[0] | parts[W / 8 - 1]) != 0;                         \
  }
VECTORS(8)
VECTORS(16)

// Products `first` to `last` of a row of A and of W columns of B from `column` on, of B's `n`, each with its C in
// words[], where D's go.
typedef struct {
  const Factors *a, *b;
  int row, column, n, first, last;
  const Rule* rule;
} Step;

static inline f32 a_value(const Step* s, int k) { return s->a->values[k * s->a->by_k + s->row * s->a->by_row]; }

// For each k of a step a's element and W of b's from a table of them.
#define FOR_EACH_K(FROM, TO, TABLE, T)                                    \
  const T* a = s->a->TABLE + (FROM) * s->a->by_k + s->row * s->a->by_row; \
  const T* b = s->b->TABLE + (FROM) * s->n + s->column;                   \
  const s64 next_a = s->a->by_k, next_b = s->n;                           \
  _Pragma("GCC unroll 8") for (int left = (TO) - (FROM); left > 0; --left, a += next_a, b += next_b)

// The largest exponent of each column's products and of what is in `most`.
#define LARGEST(W)                                                 \
  static inline s16x##W largest_##W(const Step* s, s16x##W most) { \
    FOR_EACH_K(s->first, s->last, exponents, s16) {                \
      const s16x##W sum = *(const s16x##W*)b + *a;                 \
      most = LARGER_##W(sum, most);                                \
    }                                                              \
    return most;                                                   \
  }
LARGEST(8)
LARGEST(16)

// The products from `from` to `to`, scaled by `by` and cut, summed.
#define PRODUCTS(W)                                                                 \
  static inline s32x##W products_##W(const Step* s, int from, int to, f32x##W by) { \
    s32x##W total = {0};                                                            \
    FOR_EACH_K(from, to, values, f32)                                               \
    total += __builtin_convertvector(*(const f32x##W*)b * *a * by, s32x##W);        \
    return total;                                                                   \
  }
PRODUCTS(8)
PRODUCTS(16)

// How many products scaled and cut an s32 holds the sum of.
static inline int most_products(const Rule* rule) { return rule->fraction < 29 ? 1 << (29 - rule->fraction) : 1; }

// fp32's sums where all numbers are finite, products' exponents lie within -100 and 100, and none of the largest is one
// at which fp32 ends: all of it in registers. 0 where that is not so, and nothing is done.
#define FUSED(W)                                                                                                      \
  static inline int fused_##W(const Step* s, u32* words) {                                                            \
    const int fraction = (int)s->rule->fraction, kept = (int)s->rule->kept;                                           \
    const s32x##W bits = *(const s32x##W*)words, field = bits >> 23 & 255;                                            \
    const s32x##W zero = (bits & 0x7fffffff) == 0;                                                                    \
    s32x##W exponent = field - (field == 0) - 127;                                                                    \
    if (s->a->low + s->b->low < -126) exponent = (zero & SMALLEST_EXPONENT) | (~zero & exponent);                     \
    const s32x##W top = __builtin_convertvector(largest_##W(s, __builtin_convertvector(exponent, s16x##W)), s32x##W); \
    const s32x##W odd = (top > 127) | ((top < -100) & ~zero), tiny = top < -100;                                      \
    if (any_##W(odd)) return 0;                                                                                       \
    const s32x##W at = (tiny & -100) | (~tiny & top);                                                                 \
    const f32x##W by = (f32x##W)((127 + fraction - at) << 23), back = (f32x##W)((127 - fraction + at) << 23);         \
    const s32x##W total = products_##W(s, s->first, s->last, by);                                                     \
    const s32x##W c = __builtin_convertvector((f32x##W)bits * by, s32x##W);                                           \
    const f64x##W sum = __builtin_convertvector(total, f64x##W) + __builtin_convertvector(c, f64x##W);                \
    const f64x##W cut = (f64x##W)((u64x##W)sum & (~0ull << (52 - kept)));                                             \
    *(f32x##W*)words = __builtin_convertvector(cut, f32x##W) * back;                                                  \
    return 1;                                                                                                         \
  }
FUSED(8)
FUSED(16)

// The same of any numbers, and of fp16.
#define CAREFUL(W)                                                                                               \
  static __attribute__((noinline)) void careful_##W(const Step* s, u32* words) {                                 \
    const Factors *fa = s->a, *fb = s->b;                                                                        \
    const Rule* rule = s->rule;                                                                                  \
    const int fraction = (int)rule->fraction, half = (int)rule->half, most = most_products(rule);                \
    const int low = fa->low + fb->low, high = fa->high + fb->high;                                               \
    f64 c[W], sums[W], scale[W];                                                                                 \
    s16 largest[W];                                                                                              \
    for (int j = 0; j < W; ++j) {                                                                                \
      const u32 word = words[j];                                                                                 \
      const f32 value = half ? number(half_bits(word)) : number(word);                                           \
      const int field = half ? (int)(word >> 10 & 31) : (int)(word >> 23 & 255);                                 \
      int exponent = (field > 1 ? field : 1) - (half ? 15 : 127);                                                \
      if ((half || low < -126) && value == 0) exponent = SMALLEST_EXPONENT;                                      \
      c[j] = value;                                                                                              \
      largest[j] = (s16)exponent;                                                                                \
    }                                                                                                            \
    *(s16x##W*)largest = largest_##W(s, *(s16x##W*)largest);                                                     \
    for (int j = 0; j < W; ++j) {                                                                                \
      scale[j] = wide_number((u64)(1023 + fraction - largest[j]) << 52);                                         \
      sums[j] = __builtin_trunc(c[j] * scale[j]);                                                                \
    }                                                                                                            \
    if (high <= 100 && low >= -100) {                                                                            \
      f32 by[W];                                                                                                 \
      for (int j = 0; j < W; ++j)                                                                                \
        by[j] = number((u32)(127 + fraction - (largest[j] > -100 ? largest[j] : -100)) << 23);                   \
      for (int from = s->first; from < s->last; from += most) {                                                  \
        const int to = s->last - from < most ? s->last : from + most;                                            \
        const s32x##W total = products_##W(s, from, to, *(f32x##W*)by);                                          \
        *(f64x##W*)sums += __builtin_convertvector(total, f64x##W);                                              \
      }                                                                                                          \
    } else {                                                                                                     \
      for (int k = s->first; k < s->last; ++k)                                                                   \
        for (int j = 0; j < W; ++j)                                                                              \
          sums[j] += __builtin_trunc((f64)a_value(s, k) * (f64)fb->values[k * s->n + s->column + j] * scale[j]); \
    }                                                                                                            \
    for (int j = 0; j < W; ++j) sums[j] *= wide_number((u64)(1023 - fraction + largest[j]) << 52);               \
    if (!(fa->finite && fb->finite)) {                                                                           \
      for (int j = 0; j < W; ++j) {                                                                              \
        f64 plain = c[j];                                                                                        \
        for (int k = s->first; k < s->last; ++k)                                                                 \
          plain += (f64)a_value(s, k) * (f64)fb->values[k * s->n + s->column + j];                               \
        if (!(plain - plain == 0)) sums[j] = plain;                                                              \
      }                                                                                                          \
    }                                                                                                            \
    for (int j = 0; j < W; ++j) words[j] = half ? to_half(sums[j]) : cut_to_f32(sums[j], (int)rule->kept);       \
  }
CAREFUL(8)
CAREFUL(16)

#define ROW_OF(W)                                          \
  for (; s.column + W <= n; s.column += W) {               \
    u32* at = words + s.column;                            \
    if (!plain || !fused_##W(&s, at)) careful_##W(&s, at); \
  }

// `rows` x n sums of `depth` products of A's rows from `row` on, and B's columns, k * n + column, each with its C in
// words[], where D's go.
static void sum_rows(const Factors* fa, const Factors* fb, int row, int rows, int n, int depth, const Rule* rule,
                     u32* words) {
  const int step = (int)rule->step, low = fa->low + fb->low, high = fa->high + fb->high;
  const int several = depth < step ? depth : step;
  const int plain =
      !rule->half && fa->finite && fb->finite && high <= 100 && low >= -100 && several <= most_products(rule);
  for (const int end = row + rows; row < end; ++row, words += n)
    for (int first = 0; first < depth; first += step) {
      Step s = {fa, fb, row, 0, n, first, first + step < depth ? first + step : depth, rule};
      ROW_OF(16)
      ROW_OF(8)
    }
}

typedef struct {
  s64 kind_a, kind_b, negative, m, n, k;
  Rule rule;
  const f32* fp8_values[2];  // of e4m3 and e5m2
  const s16* fp8_exponents[2];
} Product;

static void decode(const Product* p, Factors* f, int second, int count) {
  const int kind = (int)(second ? p->kind_b : p->kind_a), table = kind == E5M2;
  take_apart(f, count, kind, !second && p->negative, p->fp8_values[table], p->fp8_exponents[table]);
}

static inline u32 load_word(const char* at, int size) {
  if (size == 1) return *(const u8*)at;
  if (size == 2) return *(const u16*)at;
  return *(const u32*)at;
}

static int size_of(s64 kind) { return kind == TF32 ? 4 : kind >= E4M3 ? 1 : 2; }
