// What accesses to global memory count (emu/coalesce.py), and who touched what first (emu/global_races.py, telling.py).
#include "native.h"

// Distinct sectors of 32 bytes that n lanes of a warp touch, `bytes` at each address.
static s64 scattered_sectors(const s64* addresses, int n, s64 bytes, s64 shift) {
  s64 found[64], last = -1;  // open addressing; 32 lanes touch at most 64
  u64 used = 0;
  for (int i = 0; i < n; ++i) {
    const s64 at = addresses[i] + shift;
    for (s64 sector = at >> 5; sector <= (at + bytes - 1) >> 5; ++sector) {
      if (sector == last) continue;
      u64 place = (u64)(last = sector) & 63;
      while (used >> place & 1 && found[place] != sector) place = (place + 1) & 63;
      used |= 1ull << place;
      found[place] = sector;
    }
  }
  return __builtin_popcountll(used);
}

// The least of some addresses, the greatest, and all their bits together.
typedef struct {
  s64 low, high, bits;
} Extent;

static inline Extent extent_of(const s64* addresses, s64 n) {
  Extent e = {addresses[0], addresses[0], 0};
  for (s64 i = 0; i < n; ++i) {
    e.low = addresses[i] < e.low ? addresses[i] : e.low;
    e.high = addresses[i] > e.high ? addresses[i] : e.high;
    e.bits |= addresses[i];
  }
  return e;
}

// The same where they are among the 64 from `low` on, and no lane touches more than `most`, which is 1 or 2.
static inline s64 near_sectors(const s64* addresses, int n, s64 bytes, s64 shift, s64 low, int most) {
  u64 used = 0;
  for (int i = 0; i < n; ++i) used |= 1ull << (((addresses[i] + shift) >> 5) - low);
  for (int i = 0; i < n && most > 1; ++i) used |= 1ull << (((addresses[i] + shift + bytes - 1) >> 5) - low);
  return __builtin_popcountll(used);
}

// Distinct sectors of each warp's request, summed: addresses of `n` lanes, `shift` on, in ascending order of lanes.
EXPORT s64 tw_sectors(const s64* addresses, const s64* lanes, s64 n, s64 bytes, s64 shift) {
  s64 total = 0;
  if (!n) return 0;
  const Extent all = extent_of(addresses, n);
  const int most = bytes > 32 ? 3 : (all.bits | shift) & (bytes - 1) ? 2 : 1;
  const s64 first = (all.low + shift) >> 5, last = (all.high + shift + bytes - 1) >> 5;
  const int together = last - first < 64;
  for (s64 start = 0, stop; start < n; start = stop) {
    if (lanes)
      for (stop = start + 1; stop < n && lanes[stop] >> 5 == lanes[start] >> 5;) ++stop;
    else
      stop = start + 32;
    const s64* own = addresses + start;
    const int count = (int)(stop - start);
    s64 low = first, high = last;
    if (!together) {
      const Extent e = extent_of(own, count);
      low = (e.low + shift) >> 5, high = (e.high + shift + bytes - 1) >> 5;
    }
    total += most > 2 || high - low > 63 ? scattered_sectors(own, count, bytes, shift)
             : count == 32               ? near_sectors(own, 32, bytes, shift, low, most)
                                         : near_sectors(own, count, bytes, shift, low, most);
  }
  return total;
}

// Of addresses relative to the first one's: the least, the greatest, all their bits together, and how many warps their
// lanes are of.
EXPORT void tw_extent(const s64* relative, const s64* lanes, s64 n, s64* told) {
  const Extent e = extent_of(relative, n);
  s64 warps = lanes ? n > 0 : n / 32;
  if (lanes)
    for (s64 k = 1; k < n; ++k) warps += lanes[k] >> 5 != lanes[k - 1] >> 5;
  told[0] = e.low, told[1] = e.high, told[2] = e.bits, told[3] = warps;
}

#define NEAR 4096

// What tw_firsts finds of fewer than NEAR different keys from `low` on.
static s64 near_firsts(const s64* keys, s64 n, s64 low, s64* first, s64* which) {
  s32 table[NEAR];
  memset(table, -1, sizeof table);
  s64 count = 0;
  for (s64 k = 0; k < n; ++k) {
    s32* place = table + (keys[k] - low);
    if (*place < 0) {
      *place = (s32)count;
      first[count++] = k;
    }
    which[k] = *place;
  }
  return count;
}

// Of each different key the position where it first occurs, in that order, and which of them each key is; how many, or
// -1 where there is no memory.
EXPORT s64 tw_firsts(const s64* keys, s64 n, s64* first, s64* which) {
  const Extent e = extent_of(keys, n);
  if ((u64)e.high - (u64)e.low < NEAR) return near_firsts(keys, n, e.low, first, which);
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
EXPORT s64 tw_claim(s32* owner, const s64* cells, s64 n, s64 each, s64 shift, const s32* ids, const s32* low,
                    s64 width) {
  for (s64 k = 0; k < n; ++k)
    for (s64 j = 0; j < each; ++j) {
      s32* place = owner + cells[k * each + j] + shift;
      if (*place && (u32)(*place - low[k]) >= (u32)width) return 0;
      *place = ids[k];
    }
  return 1;
}

// Bank conflicts of requests to shared memory by the rule of emu/banks.py.
enum { OF_LOAD, OF_STORE, OF_COPY };  // ldmatrix counts as a store does

// Words asked for, by bank: each one once.
typedef struct {
  u32 words[32][128];
  u8 count[32];
} Banks;

static inline void ask(Banks* b, u32 word) {
  const u32 bank = word & 31;
  for (int k = 0; k < b->count[bank]; ++k)
    if (b->words[bank][k] == word) return;
  b->words[bank][b->count[bank]++] = word;
}

// The most words of a bank, and in `all` those of all banks.
static int busiest(const Banks* b, int* all) {
  int most = 0;
  *all = 0;
  for (int bank = 0; bank < 32; ++bank) {
    *all += b->count[bank];
    most = b->count[bank] > most ? b->count[bank] : most;
  }
  return most;
}

// One warp's request; lanes that ask for nothing have the address -1.
typedef struct {
  s64 at[32];
  int words;  // of each lane
} Request;

static int degree(const Request* q, int from, int to, int* all) {
  Banks b;
  memset(b.count, 0, sizeof b.count);
  for (int lane = from; lane < to; ++lane)
    for (int k = 0; q->at[lane] >= 0 && k < q->words; ++k) ask(&b, (u32)(q->at[lane] >> 2) + (u32)k);
  return busiest(&b, all);
}

static int paired(const Request* q, int from, int to) {
  int fine = 0;
  for (int distance = 1; distance < 3; ++distance) {
    int agree = 1;
    for (int lane = from; lane < to; ++lane) {
      const s64 mine = q->at[lane], other = q->at[lane ^ distance];
      agree &= mine < 0 || other < 0 || mine == other;
    }
    fine |= agree;
  }
  return fine;
}

static s64 fronts_of(const Request* q, int lanes, s64 bytes, s64 access, s64* ideal) {
  int all, none;
  const int most = degree(q, 0, 32, &all);
  *ideal = (all + 31) / 32;
  if (access == OF_COPY && bytes == 16) return (lanes * bytes + 127) / 128;
  if (access == OF_COPY) {
    u8 asked[32] = {0}, highest = 0;
    for (int lane = 0; lane < 32; ++lane)
      for (int k = 0; q->at[lane] >= 0 && k < q->words; ++k) ++asked[((q->at[lane] >> 2) + k) & 31];
    for (int bank = 0; bank < 32; ++bank) highest = asked[bank] > highest ? asked[bank] : highest;
    return highest;
  }
  if (bytes <= 4) return most;
  s64 fronts = 0;
  const int whole = bytes == 8 ? 32 : 16;
  for (int start = 0; start < 32; start += whole) {
    const int middle = start + whole / 2, end = start + whole;
    if (access == OF_LOAD && paired(q, start, end))
      fronts += degree(q, start, end, &none);
    else
      fronts += degree(q, start, middle, &none) + degree(q, middle, end, &none);
  }
  return fronts;
}

// Requests, wavefronts and the fewest that could do, summed over the warps of some lanes in ascending order.
EXPORT void tw_conflicts(const s64* addresses, const s64* lanes, s64 n, s64 bytes, s64 access, s64* told) {
  told[0] = told[1] = told[2] = 0;
  for (s64 start = 0, stop; start < n; start = stop) {
    Request q = {.words = bytes < 4 ? 1 : (int)bytes / 4};
    for (int lane = 0; lane < 32; ++lane) q.at[lane] = -1;
    const s64 warp = (lanes ? lanes[start] : start) >> 5;
    for (stop = start; stop < n && (lanes ? lanes[stop] : stop) >> 5 == warp; ++stop)
      q.at[(lanes ? lanes[stop] : stop) & 31] = addresses[stop];
    s64 ideal;
    ++told[0];
    told[1] += fronts_of(&q, (int)(stop - start), bytes, access, &ideal);
    told[2] += ideal;
  }
}
