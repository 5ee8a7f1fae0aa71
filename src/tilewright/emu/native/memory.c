// Loads, stores and the comparison of address patterns (emu/access.py), and tables of clocks (emu/clocks.py).
#include "native.h"

#define LANE(k) (lanes ? lanes[k] : (k))

// Whether the addresses of the lanes lie `relative` to that of the first.
EXPORT s64 tw_apart(const u64* base, const s64* lanes, s64 n, const u64* relative) {
  const u64 first = base[LANE(0)];
  for (s64 start = 0; start < n; start += 256) {
    const s64 stop = start + 256 < n ? start + 256 : n;
    u64 differ = 0;
    if (lanes)
      for (s64 k = start; k < stop; ++k) differ |= (base[lanes[k]] - first) ^ relative[k];
    else
      for (s64 k = start; k < stop; ++k) differ |= (base[k] - first) ^ relative[k];
    if (differ) return 0;
  }
  return 1;
}

#define EQUAL(T)                                                           \
  {                                                                        \
    const T *xs = base, *ys = known;                                       \
    for (s64 start = 0; start < n; start += 256) {                         \
      const s64 stop = start + 256 < n ? start + 256 : n;                  \
      T differ = 0;                                                        \
      if (lanes)                                                           \
        for (s64 k = start; k < stop; ++k) differ |= xs[lanes[k]] ^ ys[k]; \
      else                                                                 \
        for (s64 k = start; k < stop; ++k) differ |= xs[k] ^ ys[k];        \
      if (differ) return 0;                                                \
    }                                                                      \
    return 1;                                                              \
  }
// Whether the lanes' values, of 4 or 8 bytes, are the known ones.
EXPORT s64 tw_equal(const void* base, const s64* lanes, s64 n, const void* known, s64 bytes) {
  if (bytes == 4) EQUAL(u32)
  EQUAL(u64)
}

#define EACH_SIZE(DO) \
  switch (part) {     \
    case 1:           \
      DO(u8) break;   \
    case 2:           \
      DO(u16) break;  \
    case 4:           \
      DO(u32) break;  \
    default:          \
      DO(u64)         \
  }

// Elements of `parts` x `part` bytes at data + offsets[k] go to lane k's place in as many rows.
EXPORT void tw_load(const char* data, const s64* offsets, const s64* lanes, s64 n, s64 part, s64 parts,
                    char* const* rows) {
  for (s64 p = 0; p < parts; ++p) {
    const char* from = data + p * part;
#define LOAD(T)                                                                   \
  {                                                                               \
    T* row = (T*)rows[p];                                                         \
    if (lanes)                                                                    \
      for (s64 k = 0; k < n; ++k) row[lanes[k]] = *(const T*)(from + offsets[k]); \
    else                                                                          \
      for (s64 k = 0; k < n; ++k) row[k] = *(const T*)(from + offsets[k]);        \
  }
    EACH_SIZE(LOAD)
  }
}

// The inverse; of two lanes at one place the higher one's element stays. steps[p]: 1, or 0 for a row of one element.
EXPORT void tw_store(char* data, const s64* offsets, const s64* lanes, s64 n, s64 part, s64 parts,
                     const char* const* rows, const s64* steps) {
  for (s64 p = 0; p < parts; ++p) {
    char* to = data + p * part;
    const s64 step = steps[p];
#define STORE(T)                                                              \
  {                                                                           \
    const T* row = (const T*)rows[p];                                         \
    for (s64 k = 0; k < n; ++k) *(T*)(to + offsets[k]) = row[LANE(k) * step]; \
  }
    EACH_SIZE(STORE)
  }
}

// Elements of `bytes`, a power of two up to 16, at data + offsets[k] are put next to one another.
EXPORT void tw_fetch(const char* data, const s64* offsets, s64 n, s64 bytes, char* elements) {
#define FETCH(BYTES) \
  for (s64 k = 0; k < n; ++k) memcpy(elements + k * (BYTES), data + offsets[k], BYTES);
  if (bytes == 16)
    FETCH(16)
  else if (bytes == 8)
    FETCH(8)
  else if (bytes == 4)
    FETCH(4)
  else if (bytes == 2)
    FETCH(2)
  else
    FETCH(1)
}

// Elements of `bytes` next to one another go to data + offsets[k], and granules (2 to the power of `shift` bytes) there
// are marked as written.
#define LAND(BYTES)                                           \
  for (s64 k = 0; k < n; ++k) {                               \
    memcpy(data + offsets[k], elements + k * (BYTES), BYTES); \
    u8* at = marks + (offsets[k] >> shift);                   \
    for (s64 g = 0; g < (BYTES) >> shift; ++g) at[g] = 1;     \
  }
EXPORT void tw_land(char* data, u8* marks, s64 shift, const s64* offsets, s64 n, s64 bytes, const char* elements) {
  if (bytes == 16)
    LAND(16)
  else if (bytes == 8)
    LAND(8)
  else
    LAND(4)
}

// Whether all of some granules are marked.
EXPORT s64 tw_marked(const u8* marks, const s64* granules, s64 count) {
  for (s64 start = 0; start < count; start += 64) {
    u8 all = 1;
    for (s64 k = start; k < count && k < start + 64; ++k) all &= marks[granules[k]];
    if (!all) return 0;
  }
  return 1;
}

// Whether some clock of table[granules[r, k]], one for each warp, is beyond what row r knows of that warp. own: a warp
// of each row that does not count; null: all do.
EXPORT s64 tw_newer(const s32* table, const s64* granules, s64 rows, s64 k, s64 warps, const s32* known,
                    const s64* own) {
  for (s64 r = 0; r < rows; ++r) {
    s32 knows[1024];
    memcpy(knows, known + r * warps, 4 * (size_t)warps);
    if (own) knows[own[r]] = 0x7fffffff;
    for (s64 i = 0; i < k; ++i) {
      const s32* clocks = table + granules[r * k + i] * warps;
      s32 newer = 0;
      for (s64 w = 0; w < warps; ++w) newer |= clocks[w] > knows[w];
      if (newer) return 1;
    }
  }
  return 0;
}

// Whether some byte of some row is still to come: its phase is beyond what one of `four` warps from warp[r] on knows.
EXPORT s64 tw_unseen(const s32* phase, const s32* column, const s64* granules, s64 rows, s64 k, const s32* known,
                     s64 width, const s64* warp, s64 four) {
  for (s64 r = 0; r < rows; ++r)
    for (s64 i = 0; i < k; ++i) {
      const s64 granule = granules[r * k + i];
      if (phase[granule] <= 0) continue;
      for (s64 w = 0; w < four; ++w)
        if (phase[granule] > known[(warp[r] + w) * width + column[granule]]) return 1;
    }
  return 0;
}

// What is kept of wgmma's reads (emu/product_hazards.py): of each granule the products in flight, the last one, and for
// each warpgroup of a block the clocks at which its four warps waited.
typedef struct {
  s16* reading;
  s32 *waits, *by;
  s64 groups, granules;
} Reads;

static inline s32* waits_of(const Reads* r, s64 granule, s64 group) {
  return r->waits + (group * r->granules + granule) * 4;
}

// Whether a warpgroup has read a granule, and of its four warps' waits none is known.
static inline int unwaited(const s32* seen, const s32* knows) {
  int any = 0, fine = 0;
  for (int w = 0; w < 4; ++w) any |= seen[w] > 0, fine |= (seen[w] > 0) & (seen[w] <= knows[w]);
  return any & !fine;
}

// Whether some warpgroup has read a granule and row r knows of none of its four warps' waits. knows [rows, groups, 4].
EXPORT s64 tw_unwaited(const Reads* reads, const s64* granules, s64 rows, s64 k, const s32* knows) {
  for (s64 r = 0; r < rows; ++r)
    for (s64 group = 0; group < reads->groups; ++group)
      for (s64 i = 0; i < k; ++i)
        if (unwaited(waits_of(reads, granules[r * k + i], group), knows + (r * reads->groups + group) * 4)) return 1;
  return 0;
}

// Products of some warpgroups begin to read `each` granules apiece.
EXPORT void tw_reads_begin(const Reads* r, const s64* granules, s64 rows, s64 each, const s64* group, s64 instruction) {
  for (s64 row = 0; row < rows; ++row)
    for (s64 k = 0; k < each; ++k) {
      const s64 g = granules[row * each + k];
      ++r->reading[g];
      r->by[g] = (s32)instruction;
      memset(waits_of(r, g, group[row]), 0, 16);
    }
}

// They have read.
EXPORT void tw_reads_end(const Reads* r, const s64* granules, s64 count) {
  for (s64 k = 0; k < count; ++k) --r->reading[granules[k]];
}

// Warps that are `due`, [warpgroups, 4], have waited for them at their clocks.
EXPORT void tw_reads_wait(const Reads* r, const s64* granules, s64 rows, s64 each, const s64* group, const u8* due,
                          const s32* clocks) {
  for (s64 row = 0; row < rows; ++row) {
    const int all = due[row * 4] && due[row * 4 + 1] && due[row * 4 + 2] && due[row * 4 + 3];
    for (s64 k = 0; k < each; ++k) {
      s32* waits = waits_of(r, granules[row * each + k], group[row]);
      if (all) memcpy(waits, clocks + row * 4, 16);
      for (int warp = 0; warp < 4 && !all; ++warp)
        if (due[row * 4 + warp]) waits[warp] = clocks[row * 4 + warp];
    }
  }
}

// What is kept of writes that the asynchronous proxy may read (emu/proxies.py): of each granule the lane that wrote it
// last, or -1, how many fences it had run, by which instruction, how far its warp had come, and when (or null, both).
// fences: of each lane so far.
typedef struct {
  s32 *writer, *stamp, *by, *clock;
  s64* when;
  const s32* fences;
} Writes;

// Lane lanes[r] writes `each` granules. clocks: of each warp.
EXPORT void tw_written(const Writes* w, const s64* granules, s64 rows, s64 each, const s64* lanes, const s32* clocks,
                       s64 time, s64 instruction) {
  for (s64 r = 0; r < rows; ++r)
    for (s64 k = 0; k < each; ++k) {
      const s64 g = granules[r * each + k], lane = lanes[r];
      w->writer[g] = (s32)lane, w->stamp[g] = w->fences[lane];
      w->by[g] = (s32)instruction;
      if (w->when) w->clock[g] = clocks[lane / 32], w->when[g] = time;
    }
}

// Whether the last writer of some granule has run no fence since.
EXPORT s64 tw_unfenced(const Writes* w, const s64* granules, s64 count) {
  for (s64 start = 0; start < count; start += 64) {
    s32 late = 0;
    for (s64 k = start; k < count && k < start + 64; ++k) {
      const s32 writer = w->writer[granules[k]], lane = writer > 0 ? writer : 0;
      late |= (writer >= 0) & (w->stamp[granules[k]] == w->fences[lane]);
    }
    if (late) return 1;
  }
  return 0;
}

// What is kept of the registers that wgmma works on (emu/products.py), [registers, warps]: the group of the last
// product, how it uses the register, and its instruction. committed, finished: groups of each warp so far.
typedef struct {
  s64 *group, *use, *by;
  const s64 *committed, *finished;
  s64 all;  // warps of the batch
} InFlight;

// Some warps start a product on registers, each in its use. 0, and nothing is noted: one is in another use meanwhile.
EXPORT s64 tw_product_starts(const InFlight* f, const s64* registers, const s64* use, s64 count, const s64* warps,
                             s64 some, s64 instruction) {
  const s64* which = some < f->all ? warps : 0;  // null: all of them, in vectors
#define WARP(w) (which ? which[w] : (w))
  for (s64 r = 0; r < count; ++r) {
    const s64 *group = f->group + registers[r] * f->all, *used = f->use + registers[r] * f->all;
    s64 wrong = 0;
    for (s64 w = 0; w < some; ++w) wrong |= (group[WARP(w)] >= f->finished[WARP(w)]) & (used[WARP(w)] != use[r]);
    if (wrong) return 0;
  }
  for (s64 r = 0; r < count; ++r) {
    s64* at[] = {f->group + registers[r] * f->all, f->use + registers[r] * f->all, f->by + registers[r] * f->all};
    for (s64 w = 0; w < some; ++w) at[0][WARP(w)] = f->committed[WARP(w)];
    for (s64 w = 0; w < some; ++w) at[1][WARP(w)] = use[r];
    for (s64 w = 0; w < some; ++w) at[2][WARP(w)] = instruction;
  }
  return 1;
}
