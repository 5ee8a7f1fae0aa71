// Bulk copies' writes and wgmma's reads of shared memory beside vector clocks (emu/clocks.py): checked, and noted where
// nothing can be wrong.
#include "native.h"

#define FLYING 0x7fffffff

// What is kept of each granule. written, read, updated: clocks of each of `warps` warps, zeros where it is not `noted`.
// known: what each warp of the batch knows, `width` numbers, the first of them of warps.
typedef struct {
  u8 *noted, *merging;
  const u8* objects;
  const s32* flying;
  s32 *written, *read, *updated;
  s32 *phase, *column, *by;
  const s16* stored;  // bulk stores in flight that read it
  s64 warps, width;
  const s32* known;
  Reads reads;  // all null for a program without wgmma
} Clocks;

static inline int beyond(const s32* clocks, const s32* known, s64 warps, s64 own) {
  u32 found = 0;
  for (s64 w = 0; w < warps; ++w) found |= (clocks[w] > known[w]) & (w != own);
  return (int)found;
}

// A bulk copy that a warp of the batch starts writes the granules from `low` to `high`, whose block's first warp is
// number `first` of its cluster. 0, and nothing is noted: it may be wrong.
EXPORT s64 tw_bulk_write(const Clocks* c, s64 low, s64 high, s64 warp, s64 first, s64 instruction) {
  const s32* known = c->known + warp * c->width;
  const s64 own = warp % c->warps;
  u32 bad = 0, noted = 0, phases = 0;
  INDEPENDENT for (s64 g = low; g < high; ++g) bad |= (u32)c->flying[g];
  INDEPENDENT for (s64 g = low; g < high; ++g) bad |= c->objects[g];
  INDEPENDENT for (s64 g = low; g < high; ++g) bad |= (u32)c->stored[g];
  INDEPENDENT for (s64 g = low; g < high; ++g) noted |= c->noted[g];
  INDEPENDENT for (s64 g = low; g < high; ++g) phases |= (u32)c->phase[g];
  if (c->reads.reading) INDEPENDENT for (s64 g = low; g < high; ++g) bad |= (u32)c->reads.reading[g];
  if (bad) return 0;
  for (s64 g = low; phases && g < high; ++g) {
    if (g > low && c->phase[g] == c->phase[g - 1] && c->column[g] == c->column[g - 1]) continue;
    if (c->phase[g] > 0 && c->phase[g] > known[c->column[g]]) return 0;
  }
  for (s64 group = 0; group < c->reads.groups; ++group) {
    const s32 *seen = waits_of(&c->reads, low, group), *end = waits_of(&c->reads, high, group);
    for (const s32* at = seen; at < end; at += 4)
      if ((at == seen || memcmp(at, at - 4, 16)) && unwaited(at, known + first + group * 4)) return 0;
  }
  for (s64 g = low; noted && g < high; ++g) {
    if (!c->noted[g]) continue;
    s32* const of[] = {c->written + g * c->warps, c->read + g * c->warps, c->updated + g * c->warps};
    for (int table = 0; table < 3; ++table)
      if (beyond(of[table], known, c->warps, own)) return 0;
  }
  for (s64 g = low; noted && g < high; ++g) {
    if (!c->noted[g]) continue;
    s32* const of[] = {c->written + g * c->warps, c->read + g * c->warps, c->updated + g * c->warps};
    for (int table = 0; table < 3; ++table) memset(of[table], 0, (size_t)c->warps * 4);
  }
  for (s64 group = 0; group < c->reads.groups; ++group) {
    s32 *seen = waits_of(&c->reads, low, group), *end = waits_of(&c->reads, high, group), any = 0;
    INDEPENDENT for (const s32* at = seen; at < end; ++at) any |= *at;
    if (any) memset(seen, 0, (size_t)(end - seen) * 4);  // to write zeros is to use the memory
  }
  const size_t count = (size_t)(high - low);
  memset(c->merging + low, 0, count);
  memset(c->column + low, 0, count * 4);
  if (noted) memset(c->noted + low, 0, count);
  INDEPENDENT for (s64 g = low; g < high; ++g) c->by[g] = (s32)instruction;
  INDEPENDENT for (s64 g = low; g < high; ++g) c->phase[g] = FLYING;
  return 1;
}

// A product of some warpgroups begins to read `each` granules apiece. warp: each one's first in the batch; group: its
// number in its block. 0, and nothing is noted: it may be wrong.
EXPORT s64 tw_product_reads(const Clocks* c, const s64* granules, s64 rows, s64 each, const s64* warp, const s64* group,
                            s64 instruction) {
  for (s64 r = 0; r < rows; ++r) {
    const s32* known[4];
    for (int w = 0; w < 4; ++w) known[w] = c->known + (warp[r] + w) * c->width;
    s32 phase = 0, column = 0;
    for (s64 k = 0; k < each; ++k) {
      const s64 g = granules[r * each + k];
      if (c->flying[g] || c->objects[g]) return 0;
      if (c->phase[g] != phase || c->column[g] != column) {
        phase = c->phase[g], column = c->column[g];
        for (int w = 0; w < 4; ++w)
          if (phase > 0 && phase > known[w][column]) return 0;
      }
      if (!c->noted[g]) continue;
      for (int w = 0; w < 4; ++w)
        if (beyond(c->written + g * c->warps, known[w], c->warps, -1) ||
            beyond(c->updated + g * c->warps, known[w], c->warps, -1))
          return 0;
    }
  }
  tw_reads_begin(&c->reads, granules, rows, each, group, instruction);
  return 1;
}
