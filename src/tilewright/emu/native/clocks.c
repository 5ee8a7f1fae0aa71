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

// Which lanes touched a granule last (emu/lane_races.py): 1 + the lane of the batch or SEVERAL_LANES, when, and by
// which instruction. shared_out: of each instruction whether several lanes may change a place in one step, and not by
// storing one value. met: when all lanes of each warp last came together.
typedef struct {
  s32 *writer, *wrote_at, *wrote, *reader, *read_at, *read;
  const u8* shared_out;
  const s32* met;
} Lanes;
#define SEVERAL_LANES -1

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

// A load or store. together: the lanes of each warp come together in it. time: the number of the last meeting, this
// one's included. parts: some lanes of a warp may have met. block_granules, block_warps: of a block of a cluster, 0
// where there is none.
typedef struct {
  const s64 *granules, *lanes;
  s64 rows, each, writes, together, parts, time, instruction, block_granules, block_warps;
  s32* by;  // the last instructions of this kind
} Touch;
#define MOST_GRANULES 65536
enum { REFUSED, NOTED, AT_ONCE };

// Whether a lane meets another one of its warp that touched something last and that it has not met since.
static inline int apart(s32 last, s32 at, s32 id, s64 warp, const s32* met) {
  return last && last != id && (last == SEVERAL_LANES || (last - 1) / 32 == warp) && at >= met[warp];
}

static int may_be_wrong(const Clocks* c, const Lanes* l, const Touch* a, u8* others) {
  for (s64 r = 0, i = 0; r < a->rows; ++r) {
    const s64 lane = a->lanes[r], warp = lane / 32, own = warp % c->warps;
    const s32 *known = c->known + warp * c->width, id = (s32)lane + 1;
    s64 first = 0;  // of the warps of the block whose memory it is
    if (a->block_granules) first = a->granules[i] / a->block_granules * a->block_warps % c->warps;
    for (const s64 end = i + a->each; i < end; ++i) {
      const s64 g = a->granules[i];
      if (c->flying[g] || c->objects[g] || (c->phase[g] > 0 && c->phase[g] > known[c->column[g]])) return 1;
      if (a->writes) {
        if (c->stored[g] || (c->reads.reading && c->reads.reading[g])) return 1;
        for (s64 group = 0; group < c->reads.groups; ++group)
          if (unwaited(waits_of(&c->reads, g, group), known + first + group * 4)) return 1;
      }
      if (c->noted[g]) {
        if (beyond(c->written + g * c->warps, known, c->warps, own)) return 1;
        if (beyond(c->updated + g * c->warps, known, c->warps, own)) return 1;
        if (a->writes && beyond(c->read + g * c->warps, known, c->warps, own)) return 1;
      }
      others[i] = 0;
      if (a->writes && a->together) continue;
      const s32 last = l->writer[g], mine = a->together ? 0 : id;  // what a lane names, others read
      if ((last != SEVERAL_LANES || l->shared_out[l->wrote[g]]) && apart(last, l->wrote_at[g], mine, warp, l->met))
        return 1;
      if (!apart(l->reader[g], l->read_at[g], id, warp, l->met)) continue;
      if (a->writes || (a->parts && !a->together)) return 1;
      others[i] = !a->together;
    }
  }
  return 0;
}

// Check a plain load or store against what came before, and note it. REFUSED: it may be wrong, and nothing is noted;
// AT_ONCE: two warps write one granule in it.
EXPORT s64 tw_access(const Clocks* c, const Lanes* l, const Touch* a) {
  static __thread u8 others[MOST_GRANULES];
  if (a->rows * a->each > MOST_GRANULES || may_be_wrong(c, l, a, others)) return REFUSED;
  s32* const who = a->writes ? l->writer : l->reader;
  s32* const at = a->writes ? l->wrote_at : l->read_at;
  s32* const by = a->writes ? l->wrote : l->read;
  s32* const clocks = a->writes ? c->written : c->read;
  int answer = NOTED;
  for (s64 r = 0, i = 0; r < a->rows; ++r) {
    const s64 lane = a->lanes[r], warp = lane / 32, own = warp % c->warps;
    const s32* known = c->known + warp * c->width;
    for (const s64 end = i + a->each; i < end; ++i) {
      const s64 g = a->granules[i];
      who[g] = a->together && a->writes ? SEVERAL_LANES : (s32)lane + 1, at[g] = (s32)a->time, by[g] = (s32)a->instruction;
      if (a->writes && c->noted[g] && beyond(clocks + g * c->warps, known, c->warps, own)) answer = AT_ONCE;
      clocks[g * c->warps + own] = known[own];
      c->noted[g] = 1;
      a->by[g] = (s32)a->instruction;
      if (a->writes) c->phase[g] = 0;
    }
  }
  for (s64 r = 0, i = 0; r < a->rows; ++r)
    for (const s64 end = (r + 1) * a->each; i < end; ++i) {
      const s64 g = a->granules[i];
      if (others[i] || who[g] != (s32)a->lanes[r] + 1) who[g] = SEVERAL_LANES;
    }
  return answer;
}
