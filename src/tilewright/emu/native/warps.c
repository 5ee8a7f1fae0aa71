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

// Register r of instruction i's operand, of a warp; the next warp's is asked for, since rows are far apart.
static inline char* row_of(const Fragment* f, int r, s64 i, s64 warp) {
  char* at = f->bank + f->rows[r * f->instructions + i] * f->row_bytes + warp;
  __builtin_prefetch(at + 128), __builtin_prefetch(at + 192);
  return at;
}

static void read_warp(const Fragment* f, s64 i, s64 warp, int count, int size, u32* restrict words) {
  char held[MOST_REGISTERS * 128];
  const s32* restrict place = f->place;
  for (int r = 0; r < f->registers; ++r) memcpy(held + r * 128, row_of(f, r, i, warp), 128);
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

// A or B in the order of D's lanes: of each k what the 32 lanes multiply, for the two kinds of registers of D.
typedef struct {
  f32 values[2][DEEPEST][32];
  s16 exponents[2][DEEPEST][32];
  s64 warp;
  int low, high, finite;
} __attribute__((aligned(64))) Spread;

// Where the elements come from: [2, k] planes (of each register its lower elements, then its upper ones), and of them
// [2, k, 32] the lanes.
typedef struct {
  const s32 *plane, *lane;
  const s16* short_lane;
} Places;

typedef s16 s16x32 __attribute__((vector_size(64), aligned(2)));
#define LOW_HALF(x) __builtin_convertvector(*(const s16x16*)&(x), s32x16)
#define HIGH_HALF(x) __builtin_convertvector(*((const s16x16*)&(x) + 1), s32x16)

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

// The registers of a warp's operand in the order of D's lanes.
static void spread_warp(const Product* p, const Fragment* f, const Places* from, int second, s64 i, s64 warp,
                        Factors* plain, Spread* to) {
  const int size = size_of(second ? p->kind_b : p->kind_a), parts = 4 / size, count = (int)f->registers * parts * 32;
  const u32 keep = size == 4 ? ~0u : (1u << 8 * size) - 1;
  for (int r = 0; r < f->registers; ++r) {
    const u32* at = (const u32*)row_of(f, r, i, warp);
    for (int part = 0; part < parts; ++part) {
      u32* words = (u32*)plain->values + (r * parts + part) * 32;
      for (int lane = 0; lane < 32; ++lane) words[lane] = at[lane] >> 8 * size * part & keep;
    }
  }
  decode(p, plain, second, count);
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

static inline s32x16 finish(s32x16 bits, s32x16 total, s32x16 top, const Rule* rule) {
  const int fraction = (int)rule->fraction;
  const f32x16 by = (f32x16)((127 + fraction - top) << 23), back = (f32x16)((127 - fraction + top) << 23);
  const s32x16 c = __builtin_convertvector((f32x16)bits * by, s32x16);
  const f64x16 sum = __builtin_convertvector(total, f64x16) + __builtin_convertvector(c, f64x16);
  const f64x16 cut = (f64x16)((u64x16)sum & (~0ull << (52 - (int)rule->kept)));
  return (s32x16)(__builtin_convertvector(cut, f32x16) * back);
}

// FUSED, of four registers of D: register r is of A's kind r % 2 and of B's kind r / 2. 0 where it may not be.
static int spread_sums(s32x16 (*c)[2], const Spread* a, const Spread* b, int depth, const Rule* rule) {
  const int low = a->low + b->low, high = a->high + b->high, step = (int)rule->step;
  const int several = depth < step ? depth : step, fraction = (int)rule->fraction;
  if (!(a->finite && b->finite && high <= 100 && low >= -100 && several <= most_products(rule))) return 0;
  for (int first = 0; first < depth; first += step) {
    const int last = first + step < depth ? first + step : depth;
    s16x32 most[4];
    for (int r = 0; r < 4; ++r) {
      const s32x16 x = exponents_of(c[r][0], low < -126), y = exponents_of(c[r][1], low < -126);
      ((s16x16*)&most[r])[0] = __builtin_convertvector(x, s16x16);
      ((s16x16*)&most[r])[1] = __builtin_convertvector(y, s16x16);
    }
    for (int k = first; k < last; ++k)
      for (int r = 0; r < 4; ++r) {
        const s16x32 sum = *(const s16x32*)a->exponents[r % 2][k] + *(const s16x32*)b->exponents[r / 2][k];
        most[r] = LARGER_32(sum, most[r]);
      }
    s32x16 top[4][2], odd = {0};
    for (int r = 0; r < 4; ++r) {
      top[r][0] = LOW_HALF(most[r]), top[r][1] = HIGH_HALF(most[r]);
      for (int h = 0; h < 2; ++h) {
        const s32x16 zero = (c[r][h] & 0x7fffffff) == 0, tiny = top[r][h] < -100;
        odd |= (top[r][h] > 127) | (tiny & ~zero);
        top[r][h] = (tiny & -100) | (~tiny & top[r][h]);
      }
    }
    if (any_16(odd)) return 0;
    s32x16 total[4][2] = {{{0}}};
    f32x16 by[4][2];
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h) by[r][h] = (f32x16)((127 + fraction - top[r][h]) << 23);
    for (int k = first; k < last; ++k)
      for (int r = 0; r < 4; ++r)
        for (int h = 0; h < 2; ++h) {
          const f32x16 x = *(const f32x16*)(a->values[r % 2][k] + 16 * h),
                       y = *(const f32x16*)(b->values[r / 2][k] + 16 * h);
          total[r][h] += __builtin_convertvector(x * y * by[r][h], s32x16);
        }
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h) c[r][h] = finish(c[r][h], total[r][h], top[r][h], rule);
  }
  return 1;
}

// An instruction of a warp in the order of lanes; 0 where that may not be, and nothing is done.
static int multiply_spread(const Product* p, const Fragment* f, const Places* places, s64 i, s64 warp, Factors* plain,
                           Spread* a, Spread* b) {
  s32x16 c[4][2];
  if (a->warp != warp) spread_warp(p, f + 1, places, 0, i, warp, plain, a);
  if (b->warp != warp) spread_warp(p, f + 2, places + 1, 1, i, warp, plain, b);
  for (int r = 0; r < 4; ++r) memcpy(c[r], row_of(f + 3, r, i, warp), 128);
  if (!spread_sums(c, a, b, (int)p->k, &p->rule)) return 0;
  for (int r = 0; r < 4; ++r) memcpy(row_of(f, r, i, warp), c[r], 128);
  return 1;
}

// Room of this thread for `count` operands of `elements` each, and as many in order of lanes; null where there is no
// memory.
static Factors* workspace(s64 count, s64 elements, Spread** spreads) {
  static __thread char* space;
  static __thread s64 room;
  const s64 each = (s64)sizeof(Factors) + elements * 6 + (spreads ? (s64)sizeof(Spread) : 0), need = count * each;
  if (need > room) {
    free(space);
    space = 0, room = 0;
    if (posix_memalign((void**)&space, 64, (size_t)need)) return 0;
    room = need;
  }
  char* rest = space;
  if (spreads) *spreads = (Spread*)rest, rest += count * (s64)sizeof(Spread);
  Factors* all = (Factors*)rest;
  rest += count * (s64)sizeof(Factors);
  for (s64 k = 0; k < count; ++k) {
    if (spreads) (*spreads)[k].warp = -1;
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
  Spread* spreads = 0;
  Factors* const as = workspace(of_a->slots + of_b->slots, MOST_ELEMENTS, places ? &spreads : 0);
  if (!as) return 0;
  for (s64 w = 0; w < count; ++w) {
    const s64 warp = (warps ? warps[w] : w) * 128;
    for (s64 i = 0; i < instructions; ++i) {
      const s64 a = of_a->slot[i], b = of_a->slots + of_b->slot[i];
      if (places && multiply_spread(p, fragments, places, i, warp, as, spreads + a, spreads + b)) continue;
      multiply(p, fragments, i, warp, as + a, as + b);
    }
  }
  return 1;
}

// Matrices in memory, one a tile: [k, tile, width] of a type, tile t at places[t] elements and its k a step apart.
typedef struct {
  const char* words;
  const s64* places;
  s64 step;
} Matrices;

static void read_tile(const Product* p, const Matrices* from, s64 tile, int second, int width, Factors* to) {
  const int size = size_of(second ? p->kind_b : p->kind_a);
  for (int z = 0; z < p->k; ++z)
    for (int i = 0; i < width; ++i)
      ((u32*)to->values)[z * width + i] =
          load_word(from->words + (from->places[tile] + z * from->step + i) * size, size);
  decode(p, to, second, (int)p->k * width);
}

// Products of matrices in memory; C and D [tile, m, n]: the same array. 0: no memory.
EXPORT s64 tw_tiles(const Product* p, s64 tiles, const Matrices* of_a, const Matrices* of_b, char* d) {
  Factors* const a = workspace(2, DEEPEST * WIDEST, 0);
  if (!a) return 0;
  Factors* const b = a + 1;
  u32 words[WIDEST];
  const int m = (int)p->m, n = (int)p->n, k = (int)p->k;
  const int rows = WIDEST / n;  // summed at once
  a->by_row = 1, a->by_k = m;
  for (s64 t = 0; t < tiles; ++t) {
    read_tile(p, of_a, t, 0, m, a);
    if (!t || of_b->places[t] != of_b->places[t - 1]) read_tile(p, of_b, t, 1, n, b);
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

// 16 x 8 sums of any numbers, in the order of spread_sums.
static void careful_block(s32x16 (*c)[2], const Factors* a, const Factors* b, int row, int column, int n, int depth,
                          const Rule* rule) {
  for (int i = 0; i < 16; ++i) {
    u32 words[8];
    for (int j = 0; j < 8; ++j) words[j] = ((const u32*)c[i / 8 * 2 + j % 2])[i % 8 * 4 + j / 2];
    for (int first = 0; first < depth; first += (int)rule->step) {
      const int last = first + (int)rule->step < depth ? first + (int)rule->step : depth;
      const Step s = {a, b, row + i, column, n, first, last, rule};
      careful_8(&s, words);
    }
    for (int j = 0; j < 8; ++j) ((u32*)c[i / 8 * 2 + j % 2])[i % 8 * 4 + j / 2] = words[j];
  }
}

// Products by warpgroups, 64 x n of fp32, of matrices in memory. 0: no memory.
EXPORT s64 tw_warpgroups(const Product* p, s64 teams, const Matrices* of_a, const Matrices* of_b,
                         const Accumulators* d) {
  const int n = (int)p->n, k = (int)p->k;
  Spread* spreads;
  Factors* const a = workspace(4 + WIDEST / 8, DEEPEST * (WIDEST + 32), &spreads);
  if (!a) return 0;
  Factors* const b = a + 1;
  s32 lane_a[2][32], lane_b[2][32];
  s16 short_a[2][32], short_b[2][32];
  for (int kind = 0; kind < 2; ++kind)
    for (int lane = 0; lane < 32; ++lane) {
      short_a[kind][lane] = (s16)(lane_a[kind][lane] = 8 * kind + lane / 4);
      short_b[kind][lane] = (s16)(lane_b[kind][lane] = lane % 4 * 2 + kind);
    }
  a->by_row = 1, a->by_k = 64;
  for (s64 t = 0; t < teams; ++t) {
    read_tile(p, of_a, t, 0, 64, a);
    for (int w = 0; w < 4; ++w) {
      spread_bounds(spreads + w, a);
      for (int h = 0; h < 2; ++h)
        for (int z = 0; z < k; ++z)
          spread_row(a->values + z * 64 + 16 * w, a->exponents + z * 64 + 16 * w, lane_a[h], short_a[h], spreads + w, h,
                     z);
    }
    if (!t || of_b->places[t] != of_b->places[t - 1]) {
      read_tile(p, of_b, t, 1, n, b);
      for (int j = 0; j < n / 8; ++j) {
        spread_bounds(spreads + 4 + j, b);
        for (int q = 0; q < 2; ++q)
          for (int z = 0; z < k; ++z)
            spread_row(b->values + z * n + 8 * j, b->exponents + z * n + 8 * j, lane_b[q], short_b[q], spreads + 4 + j,
                       q, z);
      }
    }
    for (int j = 0; j < n / 8; ++j)
      for (int w = 0; w < 4; ++w) {
        s32x16 c[4][2] = {{{0}}};
        if (d->kept[t])
          for (int r = 0; r < 4; ++r) memcpy(c[r], accumulator(d, 4 * j + r, t, w), 128);
        if (!spread_sums(c, spreads + 4 + j, spreads + w, k, &p->rule))
          careful_block(c, a, b, 16 * w, 8 * j, n, k, &p->rule);
        for (int r = 0; r < 4; ++r) memcpy(accumulator(d, 4 * j + r, t, w), c[r], 128);
      }
  }
  return 1;
}
