// What accesses to global memory count (emu/coalesce.py), and who touched what first (emu/global_races.py, telling.py).
#include "native.h"

// Distinct sectors of 32 bytes of each warp's request, summed: addresses of `n` lanes, in ascending order of lanes.
EXPORT s64 tw_sectors(const s64* addresses, const s64* lanes, s64 n, s64 bytes) {
  s64 total = 0;
  for (s64 start = 0; start < n;) {
    const s64 warp = (lanes ? lanes[start] : start) >> 5;
    s64 found[64], last = -1;  // open addressing; 32 lanes touch at most 64
    u64 used = 0;
    for (; start < n && (lanes ? lanes[start] : start) >> 5 == warp; ++start)
      for (s64 sector = addresses[start] >> 5; sector <= (addresses[start] + bytes - 1) >> 5; ++sector) {
        if (sector == last) continue;
        u64 place = (u64)(last = sector) & 63;
        while (used >> place & 1 && found[place] != sector) place = (place + 1) & 63;
        used |= 1ull << place;
        found[place] = sector;
      }
    total += __builtin_popcountll(used);
  }
  return total;
}

// Of each different key the position where it first occurs, in that order, and which of them each key is; how many, or
// -1 where there is no memory.
EXPORT s64 tw_firsts(const s64* keys, s64 n, s64* first, s64* which) {
  u64 room = 64;
  while (room < 2 * (u64)n) room *= 2;
  s64* table = malloc(room * sizeof *table);
  if (!table) return -1;
  memset(table, -1, room * sizeof *table);
  s64 count = 0;
  for (s64 k = 0; k < n; ++k) {
    u64 place = ((u64)keys[k] * 0x9e3779b97f4a7c15ull >> 20) & (room - 1);
    while (table[place] >= 0 && keys[first[table[place]]] != keys[k]) place = (place + 1) & (room - 1);
    if (table[place] < 0) {
      table[place] = count;
      first[count++] = k;
    }
    which[k] = table[place];
  }
  free(table);
  return count;
}

// Lanes `ids` of units of `width` lanes, which begin at `low`, take cells (`each` a lane, `shift` on) that are nobody's
// or their own unit's; 0 for one that is another's.
EXPORT s64 tw_claim(s32* owner, const s64* cells, s64 n, s64 each, s64 shift, const s32* ids, const s32* low, s64 width) {
  for (s64 k = 0; k < n; ++k)
    for (s64 j = 0; j < each; ++j) {
      s32* place = owner + cells[k * each + j] + shift;
      if (*place && (u32)(*place - low[k]) >= (u32)width) return 0;
      *place = ids[k];
    }
  return 1;
}
