// Which lanes run next (emu/schedule.py): the passes over all lanes of a batch.
#include "native.h"

// The lowest block at which a lane stands and, in `mask`, the lanes there; out: the block, how many lanes, how many
// warps of 32.
EXPORT void tw_pick(const s32* key, s64 lanes, u8* mask, s64* out) {
  s32 lowest = key[0];
  for (s64 i = 0; i < lanes; ++i) lowest = key[i] < lowest ? key[i] : lowest;
  s64 active = 0, warps = 0;
  for (s64 start = 0; start < lanes; start += 32) {
    int held = 0;
    for (int i = 0; i < 32; ++i) {
      const u8 here = key[start + i] == lowest;
      mask[start + i] = here;
      held += here;
    }
    active += held;
    warps += held != 0;
  }
  out[0] = lowest, out[1] = active, out[2] = warps;
}

// How many lanes of `mask` have a predicate that is not `negated`.
static s64 held_of(const u8* mask, const u8* row, s64 negated, s64 lanes) {
  s64 held = 0;
  for (s64 start = 0; start < lanes; start += 32) {
    int some = 0;
    for (int i = 0; i < 32; ++i) some += mask[start + i] & (row[start + i] ^ (u8)negated);
    held += some;
  }
  return held;
}

// The lanes of `mask` go to `target` where their predicate is not `negated`, else to `otherwise`.
static void steer_lanes(s32* key, const u8* mask, const u8* row, s64 negated, s64 lanes, s64 target, s64 otherwise) {
  const s32 to = (s32)target, other = (s32)otherwise;
  for (s64 i = 0; i < lanes; ++i) {
    const s32 next = row[i] ^ (u8)negated ? to : other;
    key[i] = mask[i] ? next : key[i];
  }
}

// The same where those who go to `back` are the next to run: they go to `picked`, which may be `mask`; out: how many
// lanes and warps.
static void steer_back(s32* key, const u8* mask, const u8* row, u8 flip, s64 lanes, s64 back, s64 away, u8* picked,
                       s64* out) {
  const s32 to = (s32)back, other = (s32)away;
  s64 active = 0, warps = 0;
  for (s64 start = 0; start < lanes; start += 32) {
    if (!count_of(mask + start, 32)) {
      memset(picked + start, 0, 32);
      continue;
    }
    for (int i = 0; i < 32; ++i) {
      const u8 on = mask[start + i], goes = on & (row[start + i] ^ flip);
      key[start + i] = on ? (goes ? to : other) : key[start + i];
      picked[start + i] = goes;
    }
    const int held = count_of(picked + start, 32);
    active += held;
    warps += held != 0;
  }
  out[0] = active, out[1] = warps;
}

static inline void join(s32* into, const s32* from, s64 n) {
  INDEPENDENT for (s64 i = 0; i < n; ++i) into[i] = from[i] > into[i] ? from[i] : into[i];
}

static inline void join_both(s32* a, s32* b, s64 n) {
  INDEPENDENT for (s64 i = 0; i < n; ++i) a[i] = b[i] = a[i] > b[i] ? a[i] : b[i];
}

typedef struct {
  s64 width, batch;  // units of the launch, and of the batch
  s32 *known, *heard;
  const s32 *fenced, *clock;
  s32 *flag_known, *flag_heard;
  s64 *version, *read;
  s64 first, listens, tells, atomic, releases, knows;  // knows: 0 while known, fenced and flag_known are zeros
} Act;

// What emu/telling.py's `act` does for pairs of a unit and a flag, one after another; whether somebody learned
// something.
EXPORT s64 tw_act(const Act* a, const s64* units, const s64* flags, s64 pairs) {
  const s64 n = a->width, begun = a->first + a->batch;  // of units to come nobody has heard
  s64 changed = 0;
  for (s64 p = 0; p < pairs; ++p) {
    const s64 unit = units[p], flag = flags[p], me = unit + a->first;
    s32 *known = a->known + unit * n, *heard = a->heard + unit * n;
    s32 *flag_known = a->flag_known + flag * n, *flag_heard = a->flag_heard + flag * n;
    s64* read = a->read + flag * a->batch + unit;
    const int both = a->tells && a->atomic;  // then the flag has from now on what its listener has heard
    if (a->listens && *read != a->version[flag]) {
      if (a->knows) join(known, flag_known, begun);
      if (both)
        join_both(heard, flag_heard, begun);
      else
        join(heard, flag_heard, begun);
      *read = a->version[flag];
      changed = 1;
    } else if (both) {
      join(flag_heard, heard, begun);
    }
    if (!a->tells) continue;
    if (!a->atomic) {
      if (a->knows) memset(flag_known, 0, 4 * (size_t)n);
      memset(flag_heard, 0, 4 * (size_t)n);
    }
    if (a->knows) join(flag_known, a->releases ? known : a->fenced + unit * n, begun);
    if (!both) join(flag_heard, heard, begun);
    flag_heard[me] = a->clock[unit];
    if (a->releases) flag_known[me] = a->clock[unit];
    ++a->version[flag];
  }
  return changed;
}
