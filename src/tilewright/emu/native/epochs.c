// What happened in shared memory between two barriers of a block (emu/epochs.py): whether it can be wrong at all.
#include "native.h"

// The kind of an access, and what becomes of it.
enum { READ, WRITE, ATOMIC, COPY, TENSOR };
enum { PENDING, HAPPENS, LANDS };
// The answers: nothing is wrong; lanes of one warp have to be looked at in order; something may be wrong.
enum { CLEAN, LANES, PERHAPS };
#define SEVERAL 255

// One access: `each` granules of each row, and the row's warp in its block + 1.
typedef struct {
  s64 kind;
  const s64* granules;
  const u8* warps;
  s64 rows, each;
} Accessed;

// What is known of a granule, zeros at first: products in flight that read it; warpgroups whose products did at some
// time; whether a copy is in flight to it; 1 + the warps that wrote it last, that wrote it at all, and that added to it
// (or SEVERAL); whether anything but loads touched it.
typedef struct {
  u16 reading;
  u8 has_read, flying, wrote, owner, added, marked;
} Granule;

#define FOR_EACH(A)                          \
  for (s64 r = 0, i = 0; r < (A)->rows; ++r) \
    for (const s64 end = (r + 1) * (A)->each; i < end; ++i)

// Go through one event; whether it may be wrong. again: it was an event before.
static int happened(const Accessed* a, s64 what, Granule* table, int* twice, int again) {
  u32 bad = 0, met = 0;
  const s64* at = a->granules;
  const int writes = a->kind == WRITE || a->kind == COPY;
  FOR_EACH(a) {
    Granule* g = table + at[i];
    const u8 warp = a->warps[r], group = (u8)(1 << (warp - 1) / 4);
    met |= g->marked;
    if (what == LANDS) {
      if (a->kind == COPY)
        g->flying = 0;
      else
        --g->reading;
      continue;
    }
    if (what == HAPPENS) bad |= g->flying;
    if (a->kind == TENSOR) {
      if (what == HAPPENS) bad |= g->wrote;
      ++g->reading;
      g->has_read |= group;
    } else if (a->kind != READ) {
      if (what == HAPPENS) bad |= g->reading | (g->has_read & ~group);
      g->wrote = warp;
    }
    if (writes) {
      bad |= g->owner && g->owner != warp;
      g->owner = warp;
    }
    if (a->kind == COPY) g->flying = 1;
  }
  if (what != PENDING && !again && (writes || a->kind == ATOMIC)) {
    *twice |= met != 0;
    FOR_EACH(a) table[at[i]].marked = 1;
  }
  return bad != 0;
}

// Judge events, each a number of `accessed` * 4 + what becomes of it, those that are pending first.
EXPORT s64 tw_epoch(const Accessed* accessed, s64 count, const s64* events, s64 event_count, Granule* table, u8* seen) {
  u32 bad = 0;
  int twice = 0;
  for (s64 e = 0; e < event_count && !bad; ++e) {
    const s64 which = events[e] >> 2, what = events[e] & 3;
    bad = (u32)happened(accessed + which, what, table, &twice, seen[which]);
    if (what != PENDING) seen[which] = 1;
  }
  for (int kind = ATOMIC; kind >= READ && !bad; kind -= ATOMIC)  // against what was written at any time
    for (const Accessed* a = accessed; a < accessed + count; ++a) {
      if (a->kind != kind) continue;
      FOR_EACH(a) {
        Granule* g = table + a->granules[i];
        const u8 warp = a->warps[r];
        if (kind == ATOMIC) {
          bad |= g->owner && g->owner != warp;
          g->added = g->added && g->added != warp ? SEVERAL : warp;
        } else {
          const u8 found = g->owner ? g->owner : g->added;
          bad |= found && found != warp;
          twice |= g->marked;
        }
      }
    }
  for (const Accessed* a = accessed; a < accessed + count; ++a)
    for (s64 i = 0; i < a->rows * a->each; ++i) table[a->granules[i]] = (Granule){0};
  return bad ? PERHAPS : twice ? LANES : CLEAN;
}

// Whether numbers of `blocks` blocks, `count` of each, are those of the first, each block's `step` further.
EXPORT s64 tw_alike(const s64* numbers, s64 blocks, s64 count, s64 step) {
  s64 differ = 0;
  for (s64 b = 1; b < blocks && !differ; ++b)
    for (s64 i = 0; i < count; ++i) differ |= numbers[b * count + i] - numbers[i] - b * step;
  return !differ;
}
