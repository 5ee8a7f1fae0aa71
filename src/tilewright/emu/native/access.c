// Loads and stores whose addresses are a pattern that emu/access.py has checked before (emu/engine.py fills these in).
#include "native.h"

// Addresses of a warp: whatever they are; one element after another; all one; of each four lanes one after another.
enum { ANY, ROW, SAME, FOURS };
enum { READS_SHARED, WRITES_SHARED, READS_GLOBAL, WRITES_GLOBAL };

// How the addresses of each warp lie.
EXPORT void tw_classes(const s64* addresses, s64 lanes, s64 bytes, u8* classes) {
  for (s64 start = 0; start < lanes; start += 32) {
    int steps = 0, within = 0, others = 0;  // lanes not a step from the one before, of four too; that are elsewhere
    for (s64 k = start + 1; k < start + 32; ++k) {
      const int off = addresses[k] - addresses[k - 1] != bytes;
      steps += off;
      within += off & (k % 4 != 0);
      others += addresses[k] != addresses[k - 1];
    }
    classes[start / 32] = !steps ? ROW : !others ? SAME : !within ? FOURS : ANY;
  }
}

// Who has touched the granules of a buffer, plus 1: of each a lane of the only unit, and the only lane. Null: not kept.
typedef struct {
  s32 *unit, *lane;
} Owners;

// Addresses of one instruction. Shared: `known` are addresses within the block. Global: bytes from the first lane's.
typedef struct {
  const u8* mask;  // active lanes; null: all
  const s64 *lanes, count;
  const void* known;
  const s64* offsets;  // from where memory begins; global: from where the first lane's address lies
  const u8* classes;   // of each warp, where all lanes are active
  s64 ready;           // shared: the batch in which every byte is known to hold a value
  s64 requests, wavefronts, ideal;
  s64 low, high, aligned;                     // global: the bytes that are touched, from the first lane's address on
  s64 buffer_start, buffer_end, buffer_fixed;  // global: where the pattern was last
  s64 number;
  const Owners* owners;  // global: of the granules of the buffer where the pattern was last
  s64 sectors[32];  // global: by the first lane's address modulo 32; -1: not known
} Pattern;

typedef struct {
  s64 kind;
  const char* base;
  s64 base_step, base_bytes, offset;  // base_step 0: one address for all
  s64 bytes, part, parts;             // of an element, of a register, registers
  char* rows[4];
  s64 steps[4];  // 0: a row of one element
  const u8* guard;
  s64 negated;
  s64* guarded;
  Pattern** patterns;
  s64 pattern_count, next;
  s64 requests, wavefronts, ideal, sectors, moved;  // counts
  s64 instruction, hits, misses;
  s64 claims;  // a plain load or store, of which owners are all that is asked while they are kept
} Access;

// What is asked of owners (emu/global_races.py): lanes of the batch as they are numbered there, and their units' firsts.
typedef struct {
  s64 units, lanes;  // whether each of the two is judged
  const s32 *ids, *firsts;
  s64 width, bits;  // lanes of a unit; the granule is 1 << bits bytes
} Claims;

static inline int claim(s32* place, s32 id, s32 first, u32 width) {
  if (*place && (u32)(*place - first) >= width) return 0;
  *place = id;
  return 1;
}

// Granules in a row, one a lane of a warp.
static inline int claim_row(s32* place, const s32* ids, const s32* firsts, u32 width) {
  int others = 0;
  for (int i = 0; i < 32; ++i) others |= (place[i] != 0) & ((u32)(place[i] - firsts[i]) >= width);
  if (others) return 0;
  for (int i = 0; i < 32; ++i) place[i] = ids[i];
  return 1;
}

// As tw_claim, for the granules of a pattern from `start` bytes into the buffer on.
static int claim_pattern(s32* owner, const Pattern* p, s64 start, s64 bytes, const Claims* c, const s32* firsts,
                         u32 width, s64 lanes) {
  const s64 each = bytes >> c->bits ? bytes >> c->bits : 1;
  if (!p->lanes && each == 1) {
    for (s64 warp = 0; warp < lanes; warp += 32) {
      s32* place = owner + ((start + p->offsets[warp]) >> c->bits);
      if (p->classes[warp / 32] == ROW && bytes >> c->bits) {
        if (!claim_row(place, c->ids + warp, firsts + warp, width)) return 0;
        continue;
      }
      for (s64 k = warp; k < warp + 32; ++k)
        if (!claim(owner + ((start + p->offsets[k]) >> c->bits), c->ids[k], firsts[k], width)) return 0;
    }
    return 1;
  }
  for (s64 k = 0; k < p->count; ++k) {
    const s64 lane = p->lanes ? p->lanes[k] : k;
    s32* place = owner + ((start + p->offsets[k]) >> c->bits);
    for (s64 j = 0; j < each; ++j)
      if (!claim(place + j, c->ids[lane], firsts[lane], width)) return 0;
  }
  return 1;
}

// Whether owners are kept of a buffer, and an access to it meets nobody else's granules, which become its own.
static int claimed(const Pattern* p, s64 start, s64 bytes, const Claims* c, s64 lanes) {
  const Owners* o = p->owners;
  if (!o || (c->units && !o->unit) || (c->lanes && !o->lane)) return 0;
  start -= p->buffer_start;
  if (c->lanes && !claim_pattern(o->lane, p, start, bytes, c, c->ids, 1, lanes)) return 0;
  return !c->units || claim_pattern(o->unit, p, start, bytes, c, c->firsts, (u32)c->width, lanes);
}

#define DIFFERENCES(T, KNOWN)                                                                                      \
  static int differ_##T(const Pattern* p, const T* base, T first, s64 lanes) {                                     \
    const KNOWN* known = p->known;                                                                                 \
    T differ = 0;                                                                                                  \
    if (p->lanes) {                                                                                                \
      for (s64 k = 0; k < p->count; ++k) differ |= (base[p->lanes[k]] - first) ^ (T)known[k];                      \
      return differ != 0;                                                                                          \
    }                                                                                                              \
    for (s64 start = 0; start < lanes; start += 32) {                                                              \
      const u8 kind = p->classes[start / 32];                                                                      \
      if (kind != ROW && kind != SAME) {                                                                           \
        for (int k = 0; k < 32; ++k) differ |= (base[start + k] - first) ^ (T)known[start + k];                    \
      } else {                                                                                                     \
        const T from = (T)known[start] + first, step = kind == ROW ? (T)(known[start + 1] - known[start]) : 0;     \
        for (int k = 0; k < 32; ++k) differ |= base[start + k] ^ (from + step * (T)k);                             \
      }                                                                                                            \
      if (differ) return 1;                                                                                        \
    }                                                                                                              \
    return 0;                                                                                                      \
  }
DIFFERENCES(u32, u32)
DIFFERENCES(u64, u64)

// The pattern that the active lanes' addresses have, and the first one's address; null for one that is not known.
static Pattern* pattern_of(Access* a, const u8* mask, s64 lanes, u64* first) {
  for (s64 tried = 0; tried < a->pattern_count; ++tried) {
    const s64 which = (a->next + tried) % a->pattern_count;
    Pattern* p = a->patterns[which];
    if (!mask != !p->mask || (mask && memcmp(mask, p->mask, (size_t)lanes))) continue;
    const s64 lane = p->lanes && a->base_step ? p->lanes[0] : 0;
    const u64 at = a->base_bytes == 4 ? ((const u32*)a->base)[lane] : ((const u64*)a->base)[lane];
    const int global = a->kind >= READS_GLOBAL;
    if (!global && at != (a->base_bytes == 4 ? *(const u32*)p->known : *(const u64*)p->known)) continue;
    if (a->base_step) {
      const int differ = a->base_bytes == 4 ? differ_u32(p, (const u32*)a->base, 0, lanes)
                                            : differ_u64(p, (const u64*)a->base, global ? at : 0, lanes);
      if (differ) continue;
    }
    *first = at;
    a->next = which + 1;
    return p;
  }
  return 0;
}

// Whether shared memory's bytes of a pattern hold values, those that are written now among them: `marks` has a byte for
// each granule of 1 << bits bytes.
static int initialised(const Pattern* p, u8* marks, s64 bits, s64 bytes, int writes) {
  const s64 each = bytes >> bits ? bytes >> bits : 1;
  u8 all = 1;
  for (s64 k = 0; k < p->count; ++k) {
    u8* mark = marks + (p->offsets[k] >> bits);
    for (s64 j = 0; j < each; ++j) {
      if (writes) mark[j] = 1;
      all &= mark[j];
    }
  }
  return all;
}

#define READ_AS(T)                                                               \
  {                                                                              \
    T* row = (T*)a->rows[part];                                                  \
    if (p->lanes) {                                                              \
      for (s64 k = 0; k < p->count; ++k) row[p->lanes[k]] = *(const T*)(from + p->offsets[k]); \
      break;                                                                     \
    }                                                                            \
    for (s64 start = 0; start < lanes; start += 32) {                            \
      const u8 kind = p->classes[start / 32];                                    \
      const char* at = from + p->offsets[start];                                 \
      T* to = row + start;                                                       \
      if (kind == ROW && a->parts == 1) {                                        \
        memcpy(to, at, 32 * sizeof(T));                                          \
      } else if (kind == ROW) {                                                  \
        for (s64 k = 0; k < 32; ++k) to[k] = *(const T*)(at + k * a->bytes);     \
      } else if (kind == FOURS && a->parts == 1) {                               \
        for (int k = 0; k < 32; k += 4) memcpy(to + k, from + p->offsets[start + k], 4 * sizeof(T)); \
      } else if (kind == SAME) {                                                 \
        const T value = *(const T*)at;                                           \
        for (int k = 0; k < 32; ++k) to[k] = value;                              \
      } else {                                                                   \
        for (int k = 0; k < 32; ++k) to[k] = *(const T*)(from + p->offsets[start + k]); \
      }                                                                          \
    }                                                                            \
    break;                                                                       \
  }

// Of two lanes at one place the higher one's element stays.
#define WRITE_AS(T)                                                                                       \
  {                                                                                                       \
    const T* row = (const T*)a->rows[part];                                                               \
    const s64 step = a->steps[part];                                                                      \
    if (p->lanes) {                                                                                       \
      for (s64 k = 0; k < p->count; ++k) *(T*)(to + p->offsets[k]) = row[p->lanes[k] * step];             \
      break;                                                                                              \
    }                                                                                                     \
    for (s64 start = 0; start < lanes; start += 32) {                                                     \
      if (p->classes[start / 32] == ROW && step && a->parts == 1)                                         \
        memcpy(to + p->offsets[start], row + start, 32 * sizeof(T));                                      \
      else if (p->classes[start / 32] == FOURS && step && a->parts == 1)                                  \
        for (s64 k = start; k < start + 32; k += 4) memcpy(to + p->offsets[k], row + k, 4 * sizeof(T));   \
      else                                                                                                \
        for (s64 k = start; k < start + 32; ++k) *(T*)(to + p->offsets[k]) = row[k * step];               \
    }                                                                                                     \
    break;                                                                                                \
  }

static void move(const Access* a, const Pattern* p, char* memory, s64 lanes) {
  const int writes = a->kind == WRITES_SHARED || a->kind == WRITES_GLOBAL;
  for (s64 part = 0; part < a->parts; ++part) {
    char *to = memory + part * a->part, *from = to;
    if (writes) switch (a->part) {
        case 1:
          WRITE_AS(u8)
        case 2:
          WRITE_AS(u16)
        case 4:
          WRITE_AS(u32)
        default:
          WRITE_AS(u64)
      }
    else
      switch (a->part) {
        case 1:
          READ_AS(u8)
        case 2:
          READ_AS(u16)
        case 4:
          READ_AS(u32)
        default:
          READ_AS(u64)
      }
  }
}
