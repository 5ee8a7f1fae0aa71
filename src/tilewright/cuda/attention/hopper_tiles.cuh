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

/// Which tiles of out a block makes, where it stays and does not draw them: each gridDim.x-th. Under a causal mask all
/// blocks are to have the same to do. Where a block makes four tiles or more, it takes pairs of a long tile and a short
/// one of the same head, which share keys in the L2. What is left in the middle of a head of an odd number of tiles is
/// paired with that of the next head. Where a block makes fewer tiles, they are taken by length, forwards and backwards
/// in turns.
template <class Cfg>
struct Walk {
  static constexpr bool by_mask = Cfg::is_causal && Cfg::rung::stays && !Cfg::draws;
  const bool pairs, by_length;
  const int row_tiles, tiles;
  __device__ Walk(const HopperArgs& args)
      : pairs(by_mask && args.tiles >= 4 * int(gridDim.x)), by_length(by_mask && !pairs), row_tiles(args.row_tiles),
        tiles(args.tiles) {}
  __device__ int number(int step) const {
    const int own = blockIdx.x, all = gridDim.x;
    if (pairs) return 2 * (own + step / 2 * all) + step % 2;
    if (!by_length) return own + step * all;
    const int place = step * all + (step % 2 ? all - 1 - own : own), heads = tiles / row_tiles;
    return place < tiles ? place % heads * row_tiles + place / heads : place;
  }
};

/// A tile of out: b_r rows of a head. Where Cfg::draws, the warp that copies finds it and passes it on with Q.
template <class Cfg>
struct alignas(16) OutTile {
  int batch, head, kv_head, row0, seq_q, seq_k;
  int start_q = 0, start_k = 0;  // Cfg::varlen: the entry's first rows

  /// By whole warps.
  __device__ OutTile(const HopperArgs& args, int number, bool pairs)
      : head(number / args.row_tiles % args.heads), seq_q(args.seq_q), seq_k(args.seq_k) {
    int tiles = args.row_tiles, tile = number % tiles;
    if (pairs && tiles % 2 && number / tiles % 2) tile = (tile + tiles - 1) % tiles;
    if constexpr (Cfg::draws) {
      // The same rows of up to 16 heads side by side: they take as long, and the L2 holds the keys of so many.
      constexpr int together = 16;
      const int first = number / (tiles * together) * together, heads = min(args.heads - first, together);
      number -= tiles * first;
      tile = number / heads, head = first + number % heads;
    }
    if constexpr (Cfg::varlen) {
      const auto first_of = [&](int entry) { return first_tile_of(args, entry, Cfg::b_r, 1); };
      batch = entry_of(tile, args.entries, first_of);
      const Entry entry(args, batch);
      tile -= first_of(batch);
      start_q = entry.start_q, seq_q = entry.seq_q, start_k = entry.start_k, seq_k = entry.seq_k;
      tiles = (seq_q + Cfg::b_r - 1) / Cfg::b_r;  // the tile past them has no rows
      if (tile < 0) tile = max(tiles, 0);         // starts that do not begin with 0
    } else {
      batch = number / tiles / args.heads;
    }
    if (Cfg::is_causal && tile < tiles)  // the longest first
      tile = !pairs ? tiles - 1 - tile : tile % 2 ? tile / 2 : tiles - 1 - tile / 2;
    row0 = tile * Cfg::b_r;
    kv_head = head / args.group;
  }

  /// What is drawn after the last tile.
  struct None {};
  __device__ OutTile(None) : row0(-1) {}
  __device__ bool is_none() const { return row0 < 0; }

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

/// The keys that a warpgroup's rows see, of the tiles that the block's do: from row0 on, none after the last query.
template <class Cfg>
__device__ inline Score<Cfg> keys_of_group(const HopperArgs& args, OutTile<Cfg> tile, int row0, int block_end) {
  tile.row0 = row0;
  Score<Cfg> score(args, tile, 64);
  if (row0 >= tile.seq_q) score.first = score.end = block_end;  // a window of rows that are not there may lie after it
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
