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
EXPORT s64 tw_held(const u8* mask, const u8* row, s64 negated, s64 lanes) {
  s64 held = 0;
  for (s64 start = 0; start < lanes; start += 32) {
    int some = 0;
    for (int i = 0; i < 32; ++i) some += mask[start + i] & (row[start + i] ^ (u8)negated);
    held += some;
  }
  return held;
}

// The lanes of `mask` go to `target` where their predicate is not `negated`, else to `otherwise`.
EXPORT void tw_steer(s32* key, const u8* mask, const u8* row, s64 negated, s64 lanes, s64 target, s64 otherwise) {
  const s32 to = (s32)target, other = (s32)otherwise;
  for (s64 i = 0; i < lanes; ++i) {
    const s32 next = row[i] ^ (u8)negated ? to : other;
    key[i] = mask[i] ? next : key[i];
  }
}
