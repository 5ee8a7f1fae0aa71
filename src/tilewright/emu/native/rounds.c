// A loop that is one run of plain instructions, which lanes leave one by one: those that are left are moved next to one
// another, so that the rest of the loop takes no others along.
#include "native.h"

#define MOST_ROWS 64
#define PATIENCE 24  // how often the lanes that have left may have been taken along, each, before the others are moved

typedef struct {
  void *real, *near;
  int bytes, written;
} Row;

// The rows that a run of operations works on, and where lanes are kept next to one another.
typedef struct {
  Row rows[MOST_ROWS];
  s64 count, size;  // of rows; of lanes, 0 while all are where they really are
  void* room;
  s32* lanes;             // where each really is
  Operation* operations;  // as they are for those
} Near;

static Row* row_of_lanes(Near* near, const void* real, int bytes, int written) {
  Row* row = near->rows;
  while (row < near->rows + near->count && row->real != real) ++row;
  if (row == near->rows + near->count) {
    if (near->count == MOST_ROWS) return 0;
    ++near->count;
    *row = (Row){(void*)real, 0, bytes, 0};
  }
  row->written |= written;
  return row->bytes == bytes ? row : 0;
}

// Find the rows of operations; 0 where there are too many, or one is seen as elements of two sizes.
static int find_rows(Near* near, const Operation* operations, s64 count) {
  for (const Operation* o = operations; o < operations + count; ++o) {
    const u8* bytes = TABLE[o->code].bytes;
    if (!row_of_lanes(near, o->to, bytes[0], 1)) return 0;
    if (o->guard && !row_of_lanes(near, o->guard, 1, 0)) return 0;
    for (int k = 0; k < 3; ++k)
      if (!o->constant[k] && !row_of_lanes(near, o->from[k], bytes[k + 1], 0)) return 0;
  }
  return 1;
}

#define MOVE(T)                                                             \
  {                                                                         \
    T *real = row->real, *close = row->near;                                \
    if (back)                                                               \
      for (s64 i = 0; i < near->size; ++i) real[near->lanes[i]] = close[i]; \
    else                                                                    \
      for (s64 i = 0; i < near->size; ++i) close[i] = real[near->lanes[i]]; \
  }

// Bring the lanes' elements of all rows next to one another, or `back`.
static void move_rows(const Near* near, int back) {
  for (const Row* row = near->rows; row < near->rows + near->count; ++row) {
    if (back && !row->written) continue;
    if (row->bytes == 1) MOVE(u8);
    if (row->bytes == 2) MOVE(u16);
    if (row->bytes == 4) MOVE(u32);
    if (row->bytes == 8) MOVE(u64);
  }
}

static void* near_row(Near* near, const void* real, int bytes) { return row_of_lanes(near, real, bytes, 0)->near; }

// Move the `held` lanes of a mask of `lanes` next to one another; 0 where there is no memory.
static int draw_near(Near* near, const Operation* operations, s64 count, const u8* mask, s64 lanes, s64 held) {
  if (near->size) move_rows(near, 1);
  if (!near->room) {
    const size_t table = (size_t)count * sizeof *operations, bytes = (size_t)held * 8;
    near->room = malloc(table + bytes * (size_t)(near->count + 1));
    if (!near->room) return 0;
    near->operations = near->room;
    char* at = (char*)near->room + table;
    near->lanes = (s32*)at;
    for (Row* row = near->rows; row < near->rows + near->count; ++row) row->near = at += bytes;
    for (s64 i = 0; i < count; ++i) {
      Operation* o = near->operations + i;
      const u8* sizes = TABLE[operations[i].code].bytes;
      *o = operations[i];
      o->to = near_row(near, o->to, sizes[0]);
      if (o->guard) o->guard = near_row(near, o->guard, 1);
      for (int k = 0; k < 3; ++k)
        if (!o->constant[k]) o->from[k] = near_row(near, o->from[k], sizes[k + 1]);
    }
  }
  near->size = 0;
  for (s64 i = 0; i < lanes; ++i)
    if (mask[i]) near->lanes[near->size++] = (s32)i;
  move_rows(near, 0);
  return 1;
}

// Lanes of `mask` stay if their predicate says so; `stayed` counts for how many rounds each has. How many do.
static s64 stay(u8* mask, const u8* predicate, u8 flip, s32* stayed, s64 lanes) {
  s64 held = 0;
  for (s64 start = 0; start < lanes; start += PIECE) {
    const int n = piece_at(start, lanes);
    INDEPENDENT for (s64 i = start; i < start + n; ++i) mask[i] &= predicate[i] ^ flip;
    INDEPENDENT for (s64 i = start; i < start + n; ++i) stayed[i] += mask[i];
    held += count_of(mask + start, n);
  }
  return held;
}

// Run operations for the `held` lanes of `mask`, of `lanes`, again and again for those whose predicate says so, `most`
// times at most. `mask`: those that are left; stayed: for how many rounds but the first each lane was. How often the
// operations were run.
static s64 run_rounds(const Operation* operations, s64 count, u8* mask, const u8* predicate, u8 flip, s32* stayed,
                      s64 lanes, s64 held, s64 most) {
  Near near = {.count = 0};
  int moves = row_of_lanes(&near, mask, 1, 1) && row_of_lanes(&near, stayed, 4, 1) &&
              row_of_lanes(&near, predicate, 1, 0) && find_rows(&near, operations, count);
  u8* here = mask;
  s64 size = lanes, idle = 0, rounds = 0;
  for (; held && rounds < most; ++rounds) {
    if (moves && idle > PATIENCE * size && 2 * held <= size) {
      moves = draw_near(&near, operations, count, mask, lanes, held);
      if (moves) {
        size = held, idle = 0;
        operations = near.operations, here = near_row(&near, mask, 1);
        predicate = near.rows[2].near, stayed = near.rows[1].near;
      }
    }
    tw_lanes(operations, count, held < size ? here : 0, size);
    held = stay(here, predicate, flip, stayed, size);
    idle += size - held;
  }
  if (near.size) move_rows(&near, 1);
  free(near.room);
  return rounds;
}
