// Products of tensor cores where their operands lie: mma's and wgmma's in registers, matrices in memory. D stays in its
// registers' order where the numbers allow it: what each lane multiplies is then permuted once per operand.
#include "native.h"

// Registers of a warp's operand, 128 bytes each: element i lies at byte place[i] of them all; `run` elements at a time
// lie in a row. slot[i]: which of the `slots` different operands instruction i has.
typedef struct {
  char* bank;
  s64 row_bytes, registers;
  const s64* rows;
  const s32* place;
  s64 run, slots;
  const s32* slot;
  s64 instructions;
} Fragment;

#define MOST_REGISTERS 32
#define MOST_ELEMENTS 512  // of A or B of one instruction of a warp

static inline void ask_for(const char* register_of_a_warp) {
  __builtin_prefetch(register_of_a_warp), __builtin_prefetch(register_of_a_warp + 64);
}

static inline char* place_of(const Fragment* f, int r, s64 i, s64 warp) {
  return f->bank + f->rows[r * f->instructions + i] * f->row_bytes + warp;
}

// Register r of instruction i's operand, of a warp; the next warp's is asked for, since rows are far apart.
static inline char* row_of(const Fragment* f, int r, s64 i, s64 warp) {
  char* at = place_of(f, r, i, warp);
  ask_for(at + 128);
  return at;
}

#ifdef __AVX512BW__
// `count` elements of 16 bits, a multiple of 32, from two registers of a warp.
static void pick_halves(const char* held, const s32* place, int count, u32* words) {
  const __m512i *from = (const __m512i*)held, *at = (const __m512i*)place;
  __m512i h[4];
  for (int i = 0; i < 4; ++i) h[i] = _mm512_loadu_si512(from + i);
  for (__m512i* to = (__m512i*)words; count > 0; count -= 32, at += 2, to += 2) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(at), 1));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_loadu_si512(at + 1), 1));
    const __m512i which = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    const __mmask32 second = _mm512_test_epi16_mask(which, _mm512_set1_epi16(64));
    const __m512i found = _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(h[0], which, h[1]), second,
                                                _mm512_permutex2var_epi16(h[2], which, h[3]));
    _mm512_storeu_si512(to, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(found)));
    _mm512_storeu_si512(to + 1, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(found, 1)));
  }
}
#endif

static void read_warp(const Fragment* f, s64 i, s64 warp, int count, int size, u32* restrict words) {
  char held[MOST_REGISTERS * 128];
  const s32* restrict place = f->place;
  for (int r = 0; r < f->registers; ++r) memcpy(held + r * 128, row_of(f, r, i, warp), 128);
#ifdef __AVX512BW__
  if (size == 2 && f->registers == 2 && count % 32 == 0) {
    pick_halves(held, place, count, words);
    return;
  }
#endif
  if (f->run == 8 && size == 2)
    for (int e = 0; e < count; e += 8) {
      u16 run[8];
      memcpy(run, held + place[e], 16);
      for (int k = 0; k < 8; ++k) words[e + k] = run[k];
    }
  else if (size == 1)
    for (int e = 0; e < count; ++e) words[e] = *(const u8*)(held + place[e]);
  else if (size == 2)
    for (int e = 0; e < count; ++e) words[e] = *(const u16*)(held + place[e]);
  else
    for (int e = 0; e < count; ++e) words[e] = *(const u32*)(held + place[e]);
}

static void write_warp(const Fragment* f, s64 i, s64 warp, int count, int size, const u32* restrict words) {
  char held[MOST_REGISTERS * 128];
  const s32* restrict place = f->place;
  if (size == 2)
    for (int e = 0; e < count; ++e) *(u16*)(held + place[e]) = (u16)words[e];
  else
    for (int e = 0; e < count; ++e) *(u32*)(held + place[e]) = words[e];
  for (int r = 0; r < f->registers; ++r) memcpy(row_of(f, r, i, warp), held + r * 128, 128);
}

// B in the order of D's lanes: of each k what the 32 lanes multiply, for the two kinds of registers of D. (Of A every
// four lanes have the same: it is kept as [k, 2, 4].)
typedef struct {
  f32 values[2][DEEPEST][32];
  s16 exponents[2][DEEPEST][32];
  s64 warp;
  int low, high, finite;
} __attribute__((aligned(64))) Spread;

// Where the elements come from. A: the bytes of a warp's registers. B: [2, k] planes (of each register its lower elements,
// then its upper ones), and of them [2, k, 32] the lanes.
typedef struct {
  const s32 *of_a, *plane, *lane;
  const s16* short_lane;
} Places;

typedef s16 s16x32 __attribute__((vector_size(64), aligned(2)));
typedef f32 f32x4 __attribute__((vector_size(16), aligned(4)));
#ifdef __AVX512BW__
static inline s32x16 low_half(s16x32 x) {
  return (s32x16)_mm512_cvtepi16_epi32(_mm512_castsi512_si256((__m512i)x));
}
static inline s32x16 high_half(s16x32 x) {
  return (s32x16)_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64((__m512i)x, 1));
}
static inline f32x16 four_times(const f32* x) { return (f32x16)_mm512_broadcast_f32x4(_mm_loadu_ps(x)); }
#define LARGER_U32(x, y) (u32x16) _mm512_max_epu32((__m512i)(x), (__m512i)(y))
#else
static inline s32x16 low_half(s16x32 x) { return __builtin_convertvector(*(const s16x16*)&x, s32x16); }
static inline s32x16 high_half(s16x32 x) { return __builtin_convertvector(*((const s16x16*)&x + 1), s32x16); }
static inline f32x16 four_times(const f32* from) {
  const f32x4 x = *(const f32x4*)from;
  return (f32x16){x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
}
#define LARGER_U32(x, y) (((x) & (u32x16)((x) > (y))) | ((y) & ~(u32x16)((x) > (y))))
#endif

// What 32 lanes take of 32 elements.
static inline void spread_row(const f32* values, const s16* exponents, const s32* lane, const s16* short_lane,
                              Spread* to, int kind, int k) {
#if defined(__AVX512BW__) && !defined(__clang__)
  const f32x16* v = (const f32x16*)values;
  const s32x16* lanes = (const s32x16*)lane;
  *(f32x16*)to->values[kind][k] = __builtin_shuffle(v[0], v[1], lanes[0]);
  *(f32x16*)(to->values[kind][k] + 16) = __builtin_shuffle(v[0], v[1], lanes[1]);
  *(s16x32*)to->exponents[kind][k] = __builtin_shuffle(*(const s16x32*)exponents, *(const s16x32*)short_lane);
#else
  (void)short_lane;
  for (int i = 0; i < 32; ++i) {
    to->values[kind][k][i] = values[lane[i]];
    to->exponents[kind][k][i] = exponents[lane[i]];
  }
#endif
}

static inline void spread_bounds(Spread* to, const Factors* from) {
  to->low = from->low, to->high = from->high, to->finite = from->finite;
}

// The registers of a warp's B in the order of D's lanes.
static void spread_warp(const Product* p, const Fragment* f, const Places* from, s64 i, s64 warp, Factors* plain,
                        Spread* to) {
  const int size = size_of(p->kind_b), parts = 4 / size, count = (int)f->registers * parts * 32;
  const u32 keep = size == 4 ? ~0u : (1u << 8 * size) - 1;
  for (int r = 0; r < f->registers; ++r) {
    const u32* at = (const u32*)row_of(f, r, i, warp);
    for (int part = 0; part < parts; ++part) {
      u32* words = (u32*)plain->values + (r * parts + part) * 32;
      for (int lane = 0; lane < 32; ++lane) words[lane] = at[lane] >> 8 * size * part & keep;
    }
  }
  decode(p, plain, 1, count);
  plain->warp = -1, to->warp = warp;
  spread_bounds(to, plain);
  for (int kind = 0; kind < 2; ++kind)
    for (int k = 0; k < p->k; ++k) {
      const s64 place = kind * p->k + k, first = from->plane[place] * 32;
      spread_row(plain->values + first, plain->exponents + first, from->lane + place * 32,
                 from->short_lane + place * 32, to, kind, k);
    }
}

// The exponents that 16 numbers of C take part with.
static inline s32x16 exponents_of(s32x16 bits, int zeros_vanish) {
  const s32x16 field = bits >> 23 & 255, zero = (bits & 0x7fffffff) == 0, exponent = field - (field == 0) - 127;
  return zeros_vanish ? (zero & SMALLEST_EXPONENT) | (~zero & exponent) : exponent;
}

static inline s32x16 larger(s32x16 x, s32x16 y) {
#ifdef __AVX512BW__
  return (s32x16)_mm512_max_epi32((__m512i)x, (__m512i)y);
#endif
  const s32x16 more = x > y;
  return (x & more) | (y & ~more);
}

// Whole numbers other than -2^31 as fp32, of whose mantissa `keep` bits stay, cut towards zero.
static inline f32x16 cut_whole(s32x16 x, s32x16 keep) {
#ifdef __AVX512BW__
  return (f32x16)((s32x16)_mm512_cvt_roundepi32_ps((__m512i)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC) & keep);
#endif
  const s32x16 sign = x >> 31, size = (x ^ sign) - sign;
  const f32x16 near = __builtin_convertvector(size, f32x16);
  const s32x16 up = (s32x16)((u32x16)__builtin_convertvector(near, s32x16) > (u32x16)size);  // -1 where rounded up
  return (f32x16)((((s32x16)near + up) & keep) | (sign & (s32)0x80000000));
}

#define LEAST_SCALED -100  // the exponent of the smallest numbers that fp32 scales without a loss

// What products and C are scaled by where some largest exponent is below LEAST_SCALED or is that of no number; 0 where
// fp32 cannot.
static __attribute__((noinline)) int scales(const s32x16 (*c)[2], const s16x32* most, int zeros_vanish, int fraction,
                                            s32x16 (*by)[2]) {
  s32x16 odd = {0};
  for (int r = 0; r < 4; ++r)
    for (int h = 0; h < 2; ++h) {
      const s32x16 products = h ? high_half(most[r]) : low_half(most[r]);
      const s32x16 top = larger(products, exponents_of(c[r][h], zeros_vanish));
      const s32x16 at = larger(top, (s32x16){0} + LEAST_SCALED);
      odd |= (top > 127) | ((top != at) & ((c[r][h] & 0x7fffffff) != 0));
      by[r][h] = (127 + fraction - at) << 23;
    }
  return !any_16(odd);
}

// FUSED, of four registers of D: register r is of A's kind r % 2 and of B's kind r / 2. Of A the elements of a k begin at
// k * next. 0 where it may not be.
static int spread_sums(s32x16 (*c)[2], const Factors* a, int next, const Spread* b, int depth, const Rule* rule) {
  const int low = a->low + b->low, high = a->high + b->high, step = (int)rule->step;
  const int several = depth < step ? depth : step, fraction = (int)rule->fraction;
  const s32x16 keep = (s32x16){0} - (1 << (23 - (int)rule->kept));
  const u32 room = INT32_MAX - (2u << fraction);  // for products: C is less than 2 << fraction
  if (!(a->finite && b->finite && high <= 100 && low >= -100 && several <= most_products(rule))) return 0;
  for (int first = 0; first < depth; first += step) {
    const int last = first + step < depth ? first + step : depth;
    s16x32 most[4];
    for (int r = 0; r < 4; ++r) most[r] = (s16x32){0} - 127;  // those below are below LEAST_SCALED too
    _Pragma("GCC unroll 2") for (int k = first; k < last; ++k) {
      u64 of_a[2];
      memcpy(of_a, a->exponents + k * next, 16);
      const s16x32 x[2] = {(s16x32)((u64x8){0} + of_a[0]), (s16x32)((u64x8){0} + of_a[1])};
      const s16x32 y[2] = {*(const s16x32*)b->exponents[0][k], *(const s16x32*)b->exponents[1][k]};
      for (int r = 0; r < 4; ++r) {
        const s16x32 sum = x[r % 2] + y[r / 2];
        most[r] = LARGER_32(sum, most[r]);
      }
    }
    // The largest exponents in fp32's field of them, and how far the farthest one is beyond LEAST_SCALED.
    s32x16 total[4][2], by[4][2];
    u32x16 beyond = {0};
    for (int r = 0; r < 4; ++r) {
      const s16x32 fields = most[r] + 127;
      for (int h = 0; h < 2; ++h) {
        const s32x16 top = larger((h ? high_half(fields) : low_half(fields)) << 23, c[r][h] & 0x7f800000);
        beyond = LARGER_U32((u32x16)top - ((127 + LEAST_SCALED) << 23), beyond);
        by[r][h] = (s32x16)(((u32)(254 + fraction) << 23) - (u32x16)top);
        total[r][h] = (s32x16){0};
      }
    }
    if (any_16((s32x16)(beyond > (127u - LEAST_SCALED) << 23)) && !scales(c, most, low < -126, fraction, by)) return 0;
    _Pragma("GCC unroll 2") for (int k = first; k < last; ++k) {
      const f32* of_a = a->values + k * next;
      const f32x16 x[2] = {four_times(of_a), four_times(of_a + 4)};
      for (int h = 0; h < 2; ++h) {
        const f32x16 y[2] = {*(const f32x16*)(b->values[0][k] + 16 * h), *(const f32x16*)(b->values[1][k] + 16 * h)};
        for (int r = 0; r < 4; ++r)
          total[r][h] += __builtin_convertvector(x[r % 2] * y[r / 2] * (f32x16)by[r][h], s32x16);
      }
    }
    u32x16 size = {0};
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h) {
        const s32x16 sign = total[r][h] >> 31;
        size = LARGER_U32((u32x16)((total[r][h] ^ sign) - sign), size);
      }
    if (any_16((s32x16)(size > room))) return 0;  // more than 32 bits may hold
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h) {
        const s32x16 sum = total[r][h] + __builtin_convertvector((f32x16)c[r][h] * (f32x16)by[r][h], s32x16);
        c[r][h] = (s32x16)(cut_whole(sum, keep) * (f32x16)((254 << 23) - by[r][h]));
      }
  }
  return 1;
}

// An instruction of a warp in the order of lanes; 0 where that may not be, and nothing is done.
static int multiply_spread(const Product* p, const Fragment* f, const Places* places, s64 i, s64 warp, Factors* plain,
                           Factors* a, Spread* b) {
  s32x16 c[4][2];
  if (a->warp != warp) {
    const int count = (int)p->k * 8;
    Fragment of_a = f[1];
    of_a.place = places->of_a, of_a.run = 1;
    read_warp(&of_a, i, warp, count, size_of(p->kind_a), (u32*)a->values);
    decode(p, a, 0, count);
    a->warp = warp;
  }
  if (b->warp != warp) spread_warp(p, f + 2, places, i, warp, plain, b);
  for (int r = 0; r < 4; ++r) memcpy(c[r], row_of(f + 3, r, i, warp), 128);
  for (int r = 0; r < 4 && i + 1 < f->instructions; ++r) ask_for(place_of(f + 3, r, i + 1, warp));
  if (!spread_sums(c, a, 8, b, (int)p->k, &p->rule)) return 0;
  for (int r = 0; r < 4; ++r) memcpy(row_of(f, r, i, warp), c[r], 128);
  return 1;
}

// Room of this thread for `count` operands of `elements` each, and for some in order of lanes; null where there is no
// memory.
static Factors* workspace(s64 count, s64 elements, s64 spread_count, Spread** spreads) {
  static __thread char* space;
  static __thread s64 room;
  const s64 need = count * ((s64)sizeof(Factors) + elements * 6) + spread_count * (s64)sizeof(Spread);
  if (need > room) {
    free(space);
    space = 0, room = 0;
    if (posix_memalign((void**)&space, 64, (size_t)need)) return 0;
    room = need;
  }
  char* rest = space;
  *spreads = (Spread*)rest, rest += spread_count * (s64)sizeof(Spread);
  for (s64 k = 0; k < spread_count; ++k) (*spreads)[k].warp = -1;
  Factors* all = (Factors*)rest;
  rest += count * (s64)sizeof(Factors);
  for (s64 k = 0; k < count; ++k) {
    all[k].warp = -1;
    all[k].values = (f32*)(rest + k * elements * 4);
    all[k].exponents = (s16*)(rest + count * elements * 4 + k * elements * 2);
  }
  return all;
}

// One instruction of one warp, in the order of rows and columns.
static void multiply(const Product* p, const Fragment* fragments, s64 i, s64 warp, Factors* a, Factors* b) {
  const int m = (int)p->m, n = (int)p->n, k = (int)p->k, c_size = p->rule.half ? 2 : 4;
  const int rows = WIDEST / n < m ? WIDEST / n : m;  // summed at once
  u32 c[32 * 16];
  if (a->warp != warp) {
    a->warp = warp, a->by_row = k, a->by_k = 1;
    read_warp(fragments + 1, i, warp, m * k, size_of(p->kind_a), (u32*)a->values);
    decode(p, a, 0, m * k);
  }
  if (b->warp != warp) {
    b->warp = warp;
    read_warp(fragments + 2, i, warp, n * k, size_of(p->kind_b), (u32*)b->values);
    decode(p, b, 1, n * k);
  }
  read_warp(fragments + 3, i, warp, m * n, c_size, c);
  for (int row = 0; row < m; row += rows) sum_rows(a, b, row, rows, n, k, &p->rule, c + row * n);
  write_warp(fragments, i, warp, m * n, c_size, c);
}

// `instructions` independent products by each of some warps (`warps`: their numbers; null: 0, 1, ...). places: of A and
// B, where their elements go in the order of lanes; null: all is done in the order of rows and columns. 0: no memory.
EXPORT s64 tw_mma(const Product* p, const Fragment* fragments, const Places* places, s64 instructions, const s64* warps,
                  s64 count) {
  const Fragment *of_a = fragments + 1, *of_b = fragments + 2;
  Spread* of_lanes;
  Factors* const as = workspace(2 * of_a->slots + of_b->slots, MOST_ELEMENTS, of_b->slots, &of_lanes);
  if (!as) return 0;
  Factors *const bs = as + of_a->slots, *const fours = bs + of_b->slots;
  for (s64 w = 0; w < count; ++w) {
    const s64 warp = (warps ? warps[w] : w) * 128;
    for (s64 i = 0; i < instructions; ++i) {
      const s64 a = of_a->slot[i], b = of_b->slot[i];
      if (places && multiply_spread(p, fragments, places, i, warp, bs, fours + a, of_lanes + b)) continue;
      multiply(p, fragments, i, warp, as + a, bs + b);
    }
  }
  return 1;
}

// Matrices in memory, one a tile: [k, tile, width] of a type, tile t at places[t] elements and its k a step apart. With
// tables: element z * width + i of tile t lies at the byte places[t] + tables[t][z * width + i], in the order that is
// asked for.
typedef struct {
  const char* words;
  const s64* places;
  s64 step;
  const s32* const* tables;
} Matrices;

#define GATHER(T) \
  for (int e = 0; e < count; ++e) words[e] = *(const T*)(at + table[e])
static void read_scattered(const char* at, const s32* restrict table, int count, int size, u32* restrict words) {
  if (size == 1)
    GATHER(u8);
  else if (size == 2)
    GATHER(u16);
  else
    GATHER(u32);
}

static inline int same_tile(const Matrices* from, s64 t) {  // as the tile before
  return t && from->places[t] == from->places[t - 1] && (!from->tables || from->tables[t] == from->tables[t - 1]);
}

// fours: of 8 in a row first those with even numbers.
static void read_tile(const Product* p, const Matrices* from, s64 tile, int second, int width, Factors* to, int fours) {
  const int size = size_of(second ? p->kind_b : p->kind_a);
  if (from->tables)
    read_scattered(from->words + from->places[tile], from->tables[tile], (int)p->k * width, size, (u32*)to->values);
  for (int z = 0; !from->tables && z < p->k; ++z) {
    u32* words = (u32*)to->values + z * width;
    const char* at = from->words + (from->places[tile] + z * from->step) * size;
    if (fours)
      for (int i = 0; i < width; ++i) words[(i & ~7) | (i & 1) << 2 | (i & 7) >> 1] = load_word(at + i * size, size);
    else
      for (int i = 0; i < width; ++i) words[i] = load_word(at + i * size, size);
  }
  decode(p, to, second, (int)p->k * width);
}

// Products of matrices in memory; C and D [tile, m, n]: the same array. 0: no memory.
EXPORT s64 tw_tiles(const Product* p, s64 tiles, const Matrices* of_a, const Matrices* of_b, char* d) {
  Spread* none;
  Factors* const a = workspace(2, DEEPEST * WIDEST, 0, &none);
  if (!a) return 0;
  Factors* const b = a + 1;
  u32 words[WIDEST];
  const int m = (int)p->m, n = (int)p->n, k = (int)p->k;
  const int rows = WIDEST / n;  // summed at once
  a->by_row = 1, a->by_k = m;
  for (s64 t = 0; t < tiles; ++t) {
    read_tile(p, of_a, t, 0, m, a, 0);
    if (!same_tile(of_b, t)) read_tile(p, of_b, t, 1, n, b, 0);
    for (int row = 0; row < m; row += rows) {
      const int some = rows < m - row ? rows : m - row, count = some * n;
      char* at = d + ((t * m + row) * n) * (p->rule.half ? 2 : 4);
      if (p->rule.half)
        for (int j = 0; j < count; ++j) words[j] = ((u16*)at)[j];
      else
        memcpy(words, at, 4 * (size_t)count);
      sum_rows(a, b, row, some, n, k, &p->rule, words);
      if (p->rule.half)
        for (int j = 0; j < count; ++j) ((u16*)at)[j] = (u16)words[j];
      else
        memcpy(at, words, 4 * (size_t)count);
    }
  }
  return 1;
}

// Accumulators of fp32: `rows` of registers. Lane 4 g + t of warp w has in register 4 j + 2 h + q the element of row
// 16 w + 8 h + g and column 8 j + 2 t + q.
typedef struct {
  char* bank;
  s64 row_bytes;
  const s64 *rows, *first_warps;
  const u8* kept;  // of each warpgroup: whether C is what they hold; else zeros
} Accumulators;

static inline char* accumulator(const Accumulators* d, s64 r, s64 team, int warp) {
  return d->bank + d->rows[r] * d->row_bytes + (d->first_warps[team] + warp) * 128;
}

// 16 x 8 sums of any numbers, in the order of spread_sums; B's columns as read_tile has fours.
static void careful_block(s32x16 (*c)[2], const Factors* a, const Factors* b, int row, int column, int n, int depth,
                          const Rule* rule) {
  for (int i = 0; i < 16; ++i) {
    u32 words[8];
    for (int j = 0; j < 8; ++j) words[j] = ((const u32*)c[i / 8 * 2 + j / 4])[i % 8 * 4 + j % 4];
    for (int first = 0; first < depth; first += (int)rule->step) {
      const int last = first + (int)rule->step < depth ? first + (int)rule->step : depth;
      const Step s = {a, b, row + i, column, n, first, last, rule};
      careful_8(&s, words);
    }
    for (int j = 0; j < 8; ++j) ((u32*)c[i / 8 * 2 + j / 4])[i % 8 * 4 + j % 4] = words[j];
  }
}

// Products by warpgroups, 64 x n of fp32, of matrices in memory. 0: no memory.
EXPORT s64 tw_warpgroups(const Product* p, s64 teams, const Matrices* of_a, const Matrices* of_b,
                         const Accumulators* d) {
  const int n = (int)p->n, k = (int)p->k;
  Spread* spreads;
  Factors* const a = workspace(2, DEEPEST * WIDEST, 4, &spreads);
  if (!a) return 0;
  Factors* const b = a + 1;
  s32 lane[2][32];
  s16 short_lane[2][32];
  for (int kind = 0; kind < 2; ++kind)
    for (int l = 0; l < 32; ++l) short_lane[kind][l] = (s16)(lane[kind][l] = 8 * kind + l / 4);
  a->by_row = 1, a->by_k = 64;
  for (s64 t = 0; t < teams; ++t) {
    read_tile(p, of_a, t, 0, 64, a, 0);
    for (int w = 0; w < 4; ++w) {
      spread_bounds(spreads + w, a);
      for (int h = 0; h < 2; ++h)
        for (int z = 0; z < k; ++z)
          spread_row(a->values + z * 64 + 16 * w, a->exponents + z * 64 + 16 * w, lane[h], short_lane[h], spreads + w,
                     h, z);
    }
    if (!same_tile(of_b, t)) read_tile(p, of_b, t, 1, n, b, 1);
    for (int j = 0; j < n / 8; ++j)
      for (int w = 0; w < 4; ++w) {
        s32x16 c[4][2] = {{{0}}};
        if (d->kept[t])
          for (int r = 0; r < 4; ++r) {
            memcpy(c[r], accumulator(d, 4 * j + r, t, w), 128);
            ask_for(accumulator(d, 4 * (j + 1 < n / 8 ? j + 1 : 0) + r, t, w));
          }
        Factors columns = *b;
        columns.values += 8 * j, columns.exponents += 8 * j;
        if (!spread_sums(c, &columns, n, spreads + w, k, &p->rule))
          careful_block(c, a, b, 16 * w, 8 * j, n, k, &p->rule);
        for (int r = 0; r < 4; ++r) memcpy(accumulator(d, 4 * j + r, t, w), c[r], 128);
      }
  }
  return 1;
}
