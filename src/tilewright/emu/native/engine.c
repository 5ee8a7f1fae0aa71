// Runs a program from block to block (emu/engine.py) until something comes that Python has to do.
#include "native.h"

enum { PLAIN, ACCESS, PYTHON, MULTIPLY };  // kinds of entries
enum { BY_PYTHON, ON, BY_PREDICATE };      // how a block ends
enum { BEGIN, STEP, FINAL, LIMIT, FULL };  // what Python has to do
#define NOWHERE 2147483647
#define MOST_WARPS 8192
#define SLOW 32           // plain instructions that a product takes the time of
#define LONG (1ll << 28)  // instructions of lanes after which Python may look around: a fraction of a second

typedef struct {
  s64 kind;
  void* what;
  s64 count;
} Entry;

typedef struct {
  const Entry* entries;
  s64 count, threads, warps, instructions;
  s64 final;
  const u8* predicate;
  s64 negated, target, otherwise;
  s64 bound, joins;  // whether it can be run; whether lanes wait for others at its start
} Block;

typedef struct {
  const Product* product;
  const Fragment* fragments;
  const Places* places;
  s64 instructions;
} Products;

typedef struct {
  s64 instruction, pattern, start, claimed;  // of a global access: where it starts; whether owners were asked
} Event;

typedef struct {
  Block* blocks;
  s32* key;
  const u8* live;
  u8* picked;      // the lanes that were picked
  const u8* mask;  // active lanes; null: all
  s64 lanes, uniform, here, entry, active, live_count, live_warps, active_warps;
  s64 picks, fair, fair_most, ran, watch_at, by_order;
  u64* clock;
  s64 limit, batch;
  char *shared, *global;
  u8* initialised;  // of each granule of shared memory whether it holds a value
  s64 granule_bits;
  s64 arena, marks, races;  // where global memory begins; whether marks of what is written are kept; races judged
  const Claims* claims;     // null: Python asks the owners
  Event* events;
  s64 event_count, event_room;
} State;

// Lanes of `mask` for which a guard holds go to `out`; how many.
static s64 guarded_lanes(const u8* mask, const u8* guard, u8 flip, s64 lanes, u8* out) {
  s64 held = 0;
  for (s64 start = 0; start < lanes; start += 32) {
    int some = 0;
    for (int i = 0; i < 32; ++i) {
      const u8 on = (guard[start + i] ^ flip) & (mask ? mask[start + i] : 1);
      out[start + i] = on;
      some += on;
    }
    held += some;
  }
  return held;
}

// Do one access; 0 where Python has to.
static int do_access(State* s, Access* a) {
  if (!a->pattern_count && !a->guard) return 0;
  static __thread u8* space;
  static __thread s64 room;
  const u8* mask = s->mask;
  s64 held = -1;
  if (a->guard) {
    if (room < s->lanes) {
      u8* more = realloc(space, (size_t)s->lanes);
      if (!more) return 0;
      space = more, room = s->lanes;
    }
    held = guarded_lanes(mask, a->guard, (u8)a->negated, s->lanes, space);
    if (!held) return 1;
    mask = held == s->lanes ? 0 : space;
  }
  const int global = a->kind >= READS_GLOBAL, writes = a->kind == WRITES_GLOBAL;
  if (global && (s->marks || (writes && s->races && !(s->claims && a->claims)))) return 0;
  u64 first;
  Pattern* p = pattern_of(a, mask, s->lanes, &first);
  if (!p) return 0;
  char* memory = s->shared;
  s64 start = 0, owned = 0;
  if (global) {
    start = (s64)first + a->offset;
    if (start + p->low < p->buffer_start || start + p->high > p->buffer_end || !p->aligned || start % a->bytes)
      return 0;
    if ((writes && p->buffer_fixed) || p->sectors[start & 31] < 0) return 0;
    owned = s->races && s->claims && a->claims && claimed(p, start, a->bytes, s->claims, s->lanes);
    if (writes && s->races && !owned) return 0;
    a->sectors += p->sectors[start & 31];
    a->moved += a->bytes * p->count;
    memory = s->global + (start - s->arena);
  } else if (p->ready != s->batch) {
    if (!initialised(p, s->initialised, s->granule_bits, a->bytes, writes)) return 0;
    p->ready = s->batch;
  }
  a->requests += p->requests, a->wavefronts += p->wavefronts, a->ideal += p->ideal;
  if (held >= 0) *a->guarded += held;
  move(a, p, memory, s->lanes);
  if (!global || s->races) {
    Event* e = s->events + s->event_count++;
    e->instruction = a->instruction, e->pattern = p->number, e->start = start, e->claimed = owned;
  }
  return 1;
}

// Products by warps (tw_mma); 0 where Python has to: a warp is there in part, or there is no memory.
static int do_products(const State* s, const Products* p) {
  static __thread s64 warps[MOST_WARPS];
  s64 count = s->lanes / 32;
  if (s->mask) {
    if (count > MOST_WARPS) return 0;
    count = 0;
    for (s64 start = 0; start < s->lanes; start += 32) {
      const int held = count_of(s->mask + start, 32);
      if (held == 32) warps[count++] = start / 32;
      if (held % 32) return 0;
    }
  }
  return (int)tw_mma(p->product, p->fragments, p->places, p->instructions, s->mask ? warps : 0, count);
}

static int may_pick(const State* s) { return !s->by_order && s->picks + 1 < s->fair; }

static void take_picked(State* s, s64 active, s64 warps) {
  s->active = active, s->active_warps = warps;
  ++s->picks;
  s->mask = s->picked;
  if (active == s->live_count) {
    s->uniform = 1, s->picks = 0;
    s->fair = 2 * s->fair < s->fair_most ? 2 * s->fair : s->fair_most;
    s->mask = s->live_count == s->lanes ? 0 : s->live;
  }
}

static int enter(State* s, s64 here) {
  s->blocks[here].threads += s->active;
  s->blocks[here].warps += s->active_warps;
  ++s->ran;
  s->here = here, s->entry = 0;
  return 1;
}

// The next block and its lanes where it is plain which; 0 where Python has to say.
static int begin(State* s) {
  s64 here = s->here;
  if (!s->uniform) {
    s64 out[3];
    if (!may_pick(s)) return 0;
    tw_pick(s->key, s->lanes, s->picked, out);
    here = out[0];
    if (here == NOWHERE || s->blocks[here].joins || !s->blocks[here].bound) return 0;
    take_picked(s, out[1], out[2]);
  } else if (!s->blocks[here].bound) {
    return 0;
  } else {
    s->active = s->live_count, s->active_warps = s->live_warps;
  }
  return enter(s, here);
}

// A loop of some lanes: those that go back run next, as no lane stands before the block that ends. 0 where that is not
// so, and lanes may have been steered: begin's rules are kept.
static int go_back(State* s, const Block* b, int* steered) {
  const int turned = b->otherwise < b->target;
  const s64 back = turned ? b->otherwise : b->target, away = turned ? b->target : b->otherwise;
  if (s->uniform || b->final != BY_PREDICATE || back > s->here || away <= s->here || !may_pick(s)) return 0;
  if (s->ran + 1 >= s->watch_at || s->blocks[back].joins || !s->blocks[back].bound) return 0;
  s64 out[2];
  steer_back(s->key, s->mask ? s->mask : s->live, b->predicate, (u8)(b->negated ^ turned), s->lanes, back, away,
             s->picked, out);
  *steered = 1;
  if (!out[0]) return 0;
  take_picked(s, out[0], out[1]);
  return enter(s, back);
}

static inline s64 least_of(s64 x, s64 y) { return x < y ? x : y; }

// A loop that is one run of plain instructions, by run_rounds: as many rounds as go_back would let it go. 1: some lanes
// have yet to run the block again, which they have entered; -1: all have left it; 0: nothing is done.
static int go_round(State* s, Block* b, s64* work) {
  static __thread s32* stayed;
  static __thread s64 room;
  const int turned = b->otherwise == s->here;
  const s64 away = turned ? b->target : b->otherwise;
  if (s->uniform || s->mask != s->picked || s->by_order || b->joins || b->count != 1 || b->entries->kind != PLAIN)
    return 0;
  if (b->final != BY_PREDICATE || (!turned && b->target != s->here) || away <= s->here) return 0;
  const s64 each = b->instructions * s->lanes;
  const s64 most = least_of(least_of(s->fair - s->picks, s->watch_at - s->ran) - 1,
                            least_of((LONG - *work) / each, (s->limit - (s64)*s->clock) / b->instructions));
  if (most < 1) return 0;
  if (room < s->lanes) {
    s32* more = realloc(stayed, (size_t)s->lanes * sizeof *stayed);
    if (!more) return 0;
    stayed = more, room = s->lanes;
  }
  for (s64 i = 0; i < s->lanes; ++i) stayed[i] = s->picked[i] - 1;  // -1: is not in the loop
  const s64 rounds = run_rounds(b->entries->what, b->entries->count, s->picked, b->predicate, (u8)(b->negated ^ turned),
                                stayed, s->lanes, s->active, most);
  s->active = s->active_warps = 0;
  for (s64 start = 0; start < s->lanes; start += 32) {
    s32 longest = 0, here = 0;
    for (s64 i = start; i < start + 32; ++i) {
      const s32 own = stayed[i];
      s->key[i] = own >= 0 && !s->picked[i] ? (s32)away : s->key[i];
      b->threads += own > 0 ? own : 0;
      longest = own > longest ? own : longest;
      here += s->picked[i];
    }
    b->warps += longest;
    s->active += here, s->active_warps += here != 0;
  }
  const s64 entered = s->active ? rounds : rounds - 1;
  s->ran += entered, s->picks += entered;
  *s->clock += (u64)(rounds * b->instructions);
  *work += rounds * each;
  return s->active ? 1 : -1;
}

static void go_on(State* s, s64 target) {
  if (s->uniform) {
    s->here = target;
    return;
  }
  const u8* mask = s->mask ? s->mask : s->live;
  for (s64 i = 0; i < s->lanes; ++i) s->key[i] = mask[i] ? (s32)target : s->key[i];
}

static void steer(State* s, const Block* b) {
  const u8* mask = s->mask ? s->mask : s->live;
  if (s->uniform) {
    const s64 count = held_of(mask, b->predicate, b->negated, s->lanes);
    if (count == 0 || count == s->live_count) {
      s->here = count ? b->target : b->otherwise;
      return;
    }
    s->uniform = 0;
    for (s64 i = 0; i < s->lanes; ++i) s->key[i] = NOWHERE;
  }
  steer_lanes(s->key, mask, b->predicate, b->negated, s->lanes, b->target, b->otherwise);
}

// Run from entry `entry` of block `here` on; entry -1: from the next block on. What Python has to do then.
EXPORT s64 tw_go(State* s) {
  int first = 0;  // whether no lane stands before the block: it was picked here
  for (s64 work = 0;;) {
    if (s->entry < 0 && work > LONG) return FULL;
    if (s->entry < 0 && (s->ran + 1 >= s->watch_at || !(first = begin(s)))) return BEGIN;
    Block* b = s->blocks + s->here;
    if (first && !s->entry && go_round(s, b, &work) < 0) {
      s->entry = -1;
      continue;
    }
    for (; s->entry < b->count; ++s->entry) {
      const Entry* e = b->entries + s->entry;
      if (e->kind == PLAIN) {
        tw_lanes(e->what, e->count, s->mask, s->lanes);
      } else if (e->kind == PYTHON || (e->kind == MULTIPLY && !do_products(s, e->what))) {
        return STEP;
      } else if (e->kind == MULTIPLY) {
        work += ((const Products*)e->what)->instructions * s->lanes * SLOW;
      } else {
        if (s->event_count == s->event_room) return FULL;
        Access* a = e->what;
        if (!do_access(s, a)) {
          ++a->misses;
          return STEP;
        }
        ++a->hits;
      }
    }
    *s->clock += (u64)b->instructions;
    work += b->instructions * s->lanes;
    if (*s->clock > (u64)s->limit) return LIMIT;
    if (b->final == BY_PYTHON) return FINAL;
    int steered = 0;
    if (first && work <= LONG && go_back(s, b, &steered)) continue;
    s->entry = -1;
    if (steered) continue;
    if (b->final == ON)
      go_on(s, b->target);
    else
      steer(s, b);
  }
}
