#pragma once
// The tiles of Hopper's attention rungs (attention/hopper.cuh): where they lie in shared memory, which of them a block
// makes, and the thread that copies them.
//
// Shared memory         Q       Cfg::q_buffers tiles of 64 x d_head a warpgroup
//                       K, V    Cfg::stages tiles of b_c x d_head and of b_c x d_v
//                       in panels of 64 columns (32 where 64 does not divide the columns), swizzled by TMA
// Barriers              q_full[w][b]            1 arrival and the bytes of Q of warpgroup w
//                       q_empty[w][b]           an arrival of each warp of warpgroup w, after its last Q K^T
//                       k_full[s], v_full[s]    1 arrival and the bytes of a tile
//                       k_empty[s], v_empty[s]  an arrival of each warp that multiplies, or lets the tile pass: one
//                                               warp for four would leave behind another that still waits for the
//                                               phase, whose wait would never end once the next has completed
// Packed lengths        blocks that stay draw their tiles from a counter, as nobody knows before how long a tile takes;
//                       a tile is passed on with Q, and one without rows ends the block's work

#include "attention/entries.cuh"
#include "attention/hopper_args.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "tile/ring_place.cuh"
#include "tile/score.cuh"

/// Where tiles and barriers lie.
template <class Cfg>
struct Layout {
  static constexpr int d_head = Cfg::d_head, panel = d_head % 64 ? 32 : 64, row_bytes = 2 * panel;
  static constexpr int v_row_bytes = Cfg::d_v % 64 ? 64 : 128;
  static constexpr int groups = Cfg::b_r / 64, stages = Cfg::stages, qs = groups * Cfg::q_buffers;
  static constexpr unsigned q_panel = 64 * row_bytes, k_panel = Cfg::b_c * row_bytes, v_panel = Cfg::b_c * v_row_bytes;
  static constexpr unsigned q_bytes = 64 * 2 * d_head, k_bytes = Cfg::b_c * 2 * d_head,
                            v_bytes = Cfg::b_c * 2 * Cfg::d_v;
  static constexpr unsigned k0 = qs * q_bytes, v0 = k0 + stages * k_bytes, barriers = v0 + stages * v_bytes;

  unsigned base;
  __device__ unsigned q(int group, int buffer) const { return base + (buffer * groups + group) * q_bytes; }
  __device__ unsigned k(int stage) const { return base + k0 + stage * k_bytes; }
  __device__ unsigned v(int stage) const { return base + v0 + stage * v_bytes; }
  __device__ unsigned q_full(int group, int buffer) const { return barrier(buffer * groups + group); }
  __device__ unsigned q_empty(int group, int buffer) const { return barrier(qs + buffer * groups + group); }
  __device__ unsigned k_full(int stage) const { return barrier(2 * qs + stage); }
  __device__ unsigned k_empty(int stage) const { return barrier(2 * qs + stages + stage); }
  __device__ unsigned v_full(int stage) const { return barrier(2 * qs + 2 * stages + stage); }
  __device__ unsigned v_empty(int stage) const { return barrier(2 * qs + 3 * stages + stage); }

  __device__ unsigned turn(int number) const { return barrier(2 * qs + 4 * stages + number); }

  /// Where tiles are passed on (Cfg::draws): one with each Q.
  static constexpr unsigned drawn = (barriers + 8 * (2 * qs + 4 * stages + 4 * groups) + 15) / 16 * 16;
  static __device__ int place(int group, int buffer) { return buffer * groups + group; }

  /// By one thread, before all others pass a barrier.
  __device__ void start_barriers() const {
    for (int tile = 0; tile < qs; ++tile) mbarrier_init(q_full(tile, 0), 1), mbarrier_init(q_empty(tile, 0), 4);
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(k_full(stage), 1), mbarrier_init(k_empty(stage), 4 * groups);
      mbarrier_init(v_full(stage), 1), mbarrier_init(v_empty(stage), 4 * groups);
    }
    if (Cfg::turns == 2)
      for (int number = 0; number < 4 * groups; ++number) mbarrier_init(turn(number), 1);
    mbarrier_init_fence();
  }

 private:
  __device__ unsigned barrier(int number) const { return base + barriers + 8 * number; }
};

/// A tile of out: `head` counts the heads of all entries (Cfg::varlen: query heads), and under a causal mask the tile
/// of rank 0 is the longest of its head.
struct Place {
  int head, rank;
};

/// Which tiles of out a block makes, one after the other. Under a causal mask all blocks are to have the same to do:
/// in `rounds` rounds each takes a long tile and a short one of the same head, which share keys in the L2. What is left
/// in the middle of a head of an odd number of tiles is paired with that of the next head. The tiles left, up to four a
/// block, are taken by length, forwards and backwards in turns, so that no round is begun that few blocks end.
template <class Cfg>
struct Walk {
  static constexpr bool by_mask = Cfg::is_causal && Cfg::rung::stays && !Cfg::draws;
  const HopperArgs& args;

  /// The block's step-th tile, counted from 0; false where there is none. `all`: gridDim.x.
  __device__ bool at(unsigned step, unsigned all, Place& place) const {
    const unsigned own = blockIdx.x, tiles = args.tiles, of_head = args.row_tiles;
    const unsigned rounds = !by_mask || tiles < 4 * all ? 0 : (tiles - 1) / (2 * all) - 1;
    unsigned number = 2 * (own + step / 2 * all) + step % 2;
    if (step >= 2 * rounds) {
      number = step * all + (by_mask && step % 2 ? all - 1 - own : own);
      if (number >= tiles) return false;
      if (!by_mask) {
        place = {int(number / of_head), int(number % of_head)};
        return true;
      }
      if (by_length(number, 2 * rounds * all, place)) return true;
    }
    const unsigned head = number / of_head;
    unsigned turn = number % of_head;
    if (of_head % 2 && head % 2) turn = turn == 0 ? of_head - 1 : turn - 1;
    place = {int(head), int(turn % 2 ? of_head - 1 - turn / 2 : turn / 2)};
    return true;
  }
  /// gridDim.x, read anew each time: what is made of it would else be held in registers, of which a warp that copies
  /// has few.
  __device__ static unsigned blocks_anew() {
    unsigned all;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(all));
    return all;
  }
  /// The number-th tile that is drawn: the same rows of up to 16 heads side by side. They take as long, and the L2
  /// holds the keys of so many.
  __device__ static Place drawn(const HopperArgs& args, int number) {
    constexpr int together = 16;
    const int first = number / (args.row_tiles * together) * together, heads = min(args.heads - first, together);
    number -= args.row_tiles * first;
    return {first + number % heads, number / heads};
  }

 private:
  /// Puts the tiles from `done` on, which no round of pairs takes, in the order of their lengths. The rounds can end
  /// within a head, whose middle is then left: false where the number-th is of those, and `number` its place in pairs.
  __device__ bool by_length(unsigned& number, unsigned done, Place& place) const {
    const unsigned of_head = args.row_tiles, left = args.tiles - done, heads = left / of_head, middle = left % of_head;
    const unsigned first_head = (done + of_head - 1) / of_head, longer = (of_head - middle) / 2;
    unsigned at = number - done, rank = 0, across = heads;
    if (at >= longer * heads) {
      at -= longer * heads, rank = longer, across = heads + 1;
      if (at >= middle * across) at -= middle * across, rank += middle, across = heads;
    }
    const unsigned head = at % across, more = at / across;
    if (head < heads) {
      place = {int(first_head + head), int(rank + more)};
      return true;
    }
    number = done + (2 * more < middle ? 2 * more : 2 * (middle - more) - 1);
    return false;
  }
};

/// A tile of out: b_r rows of a head. Where Cfg::draws, the warp that copies finds it and passes it on with Q.
///
/// Under a causal mask, where a warpgroup walks its own keys, tiles end with the last 64 rows rather than begin with
/// the first: a tile that is not full is then the shortest of its head and not the longest. Its first warpgroups have
/// rows below 0, and nothing to do.
template <class Cfg>
struct alignas(16) OutTile {
  static constexpr bool from_the_end = Cfg::is_causal && Cfg::rung::own_keys && !Cfg::has_left;
  int batch, head, kv_head, row0, seq_q, seq_k;
  int start_q = 0, start_k = 0;  // Cfg::varlen: the entry's first rows

  /// By whole warps.
  __device__ OutTile(const HopperArgs& args, Place place)
      : batch(place.head / args.heads), head(place.head % args.heads), seq_q(args.seq_q), seq_k(args.seq_k) {
    int tiles = args.row_tiles, tile = place.rank;
    if constexpr (Cfg::varlen) {
      const auto first_of = [&](int entry) { return first_tile_of(args, entry, Cfg::b_r, 1); };
      batch = entry_of(tile, args.entries, first_of);
      const Entry entry(args, batch);
      tile -= first_of(batch);
      start_q = entry.start_q, seq_q = entry.seq_q, start_k = entry.start_k, seq_k = entry.seq_k;
      tiles = (seq_q + Cfg::b_r - 1) / Cfg::b_r;  // the tile past them has no rows
      if (tile < 0) tile = max(tiles, 0);         // starts that do not begin with 0
    }
    if (Cfg::is_causal && tile < tiles) tile = tiles - 1 - tile;
    row0 = tile * Cfg::b_r;
    if constexpr (from_the_end) row0 -= tiles * Cfg::b_r - (seq_q + 63) / 64 * 64;
    kv_head = head / args.group;
  }

  /// What is drawn after the last tile.
  struct None {};
  static constexpr int no_row = -1 << 30;
  __device__ OutTile(None) : row0(no_row) {}
  __device__ bool is_none() const { return row0 == no_row; }

  /// Packed lengths can leave tiles without rows.
  __device__ bool exists() const { return !Cfg::varlen || row0 < seq_q; }
  /// The entry of a tensor map.
  __device__ int entry() const { return Cfg::varlen ? 0 : batch; }
  /// The first row of out of this tile's entry and head.
  __device__ unsigned short* out(const HopperArgs& args) const {
    return static_cast<unsigned short*>(args.out) + (Cfg::varlen ? start_q * args.out_row : batch * args.out_batch) +
           head * args.out_head;
  }
  /// The place of its row 0 in lse.
  __device__ float* lse(const HopperArgs& args) const {
    if constexpr (Cfg::varlen) return args.lse + (long long)head * args.seq_q + start_q;
    return args.lse + ((long long)batch * args.heads + head) * seq_q;
  }
};

/// The keys that a warpgroup's rows see, of the tiles that the block's do: from row0 on, none where there are no rows.
template <class Cfg>
__device__ inline Score<Cfg> keys_of_group(const HopperArgs& args, OutTile<Cfg> tile, int row0, int block_end) {
  tile.row0 = row0;
  Score<Cfg> score(args, tile, 64);
  if (row0 < 0 || row0 >= tile.seq_q) score.first = score.end = block_end;  // whatever a window of no rows may see
  return score;
}

struct Maps {
  const TensorMap &q, &k, &v;
};

/// What one thread does: starts copies, in the order in which tiles are used.
template <class Cfg>
struct Copies {
  using At = Layout<Cfg>;
  const Maps& maps;
  const At at;
  OutTile<Cfg>* const drawn;
  RingPlace<Cfg::q_buffers> q;
  RingPlace<Cfg::stages> k, v;

  /// All copies of a tile of out.
  __device__ void start(const OutTile<Cfg>& tile, const Score<Cfg>& score) {
    start_q(tile);
    for (int n = score.end - 1; n >= score.first; --n) {
      start_k(tile, n);
      if (n + 1 < score.end) start_v(tile, n + 1);
    }
    if (score.first < score.end) start_v(tile, score.first);
  }
  /// Tells all that no tile follows.
  __device__ void end() {
    for (int group = 0; group < At::groups; ++group) {
      mbarrier_wait(at.q_empty(group, q.stage), q.parity ^ 1);
      drawn[At::place(group, q.stage)] = typename OutTile<Cfg>::None();
      mbarrier_arrive(at.q_full(group, q.stage));
    }
  }

  __device__ void start_q(const OutTile<Cfg>& tile) {
    for (int group = 0; group < At::groups; ++group) {
      const unsigned full = at.q_full(group, q.stage);
      mbarrier_wait(at.q_empty(group, q.stage), q.parity ^ 1);
      if constexpr (Cfg::draws) drawn[At::place(group, q.stage)] = tile;
      mbarrier_arrive_expect(full, At::q_bytes);
      tma_load(at.q(group, q.stage), maps.q, 0, tile.start_q + tile.row0 + 64 * group, 0, tile.head, tile.entry(),
               full);
    }
    q.advance();
  }
  __device__ void start_k(const OutTile<Cfg>& tile, int number) {
    mbarrier_wait(at.k_empty(k.stage), k.parity ^ 1);
    mbarrier_arrive_expect(at.k_full(k.stage), At::k_bytes);
    tma_load(at.k(k.stage), maps.k, 0, tile.start_k + number * Cfg::b_c, 0, tile.kv_head, tile.entry(),
             at.k_full(k.stage));
    k.advance();
  }
  __device__ void start_v(const OutTile<Cfg>& tile, int number) {
    mbarrier_wait(at.v_empty(v.stage), v.parity ^ 1);
    mbarrier_arrive_expect(at.v_full(v.stage), At::v_bytes);
    tma_load(at.v(v.stage), maps.v, 0, tile.start_k + number * Cfg::b_c, 0, tile.kv_head, tile.entry(),
             at.v_full(v.stage));
    v.advance();
  }
};
