#pragma once
// The attention rungs of Hopper, after a17, and the kernel that runs the one that Cfg names.
//
// TMA brings tiles of Q, K and V into shared memory, wgmma multiplies them from there. A warpgroup makes 64 rows of
// out: S = Q K^T in its registers becomes weights P there, and P is the left operand of P V as it lies.
//
// Roles (from a19 on)   warpgroup 0: one thread starts the copies. Warpgroups 1 ..: 64 rows of out each.
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
// Named barriers        1 + w, of turns between warpgroups (a21); 4, of those that clear rows of V

#include "attention/entries.cuh"
#include "attention/hopper_args.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/head_quads.cuh"
#include "tile/row_weights.cuh"
#include "tile/score.cuh"

// ---- a18_wgmma -----------------------------------------------------------------------------------------------------
// TMA copies tiles, wgmma reads them from shared memory, P stays in registers. Thread 0 starts the copies between
// products; a ring of Cfg::stages tiles is on its way.

struct A18 {
  static constexpr bool has_producer = false;    // a warpgroup that only copies, whose registers go to the others
  static constexpr bool overlaps = false;        // Q K^T of the next tile runs under this one's softmax
  static constexpr int turns = 0;                // what warpgroups do in turns: 1 start products, 2 exponentials
  static constexpr bool own_keys = false;        // a warpgroup skips tiles that its rows do not see
  static constexpr bool by_old_maximum = false;  // weights by the maxima of the tiles before
  static constexpr bool stays = false;           // a block makes many tiles; Q of the next comes early
};

// ---- a19_producer --------------------------------------------------------------------------------------------------
// A warpgroup copies and gives its registers away: no warpgroup that multiplies waits to start a copy.

struct A19 : A18 {
  static constexpr bool has_producer = true;
};

// ---- a20_overlap ---------------------------------------------------------------------------------------------------
// Q K^T of the next tile and P V of this one are in flight together, and the softmax waits for the first alone.

struct A20 : A19 {
  static constexpr bool overlaps = true;
};

// ---- a21_turns -----------------------------------------------------------------------------------------------------
// Warpgroups take turns, so that one's softmax runs under another's products.

struct A21 : A20 {
  static constexpr int turns = Cfg::turns;
};

// ---- a22_stays -----------------------------------------------------------------------------------------------------
// As many blocks as SMs: the copies of the next tile run under the end of this one. Under a causal mask a block takes
// the longest tile that is left of a head with the shortest: all blocks have the same to do.

struct A22 : A21 {
  static constexpr bool stays = true;
};

// ---- a23_own_keys --------------------------------------------------------------------------------------------------
// A warpgroup walks the keys that its own 64 rows see, not all of the block's: it only passes on what the mask hides
// from it, and rows after the last query take no products.

struct A23 : A22 {
  static constexpr bool own_keys = true;
};

// ---- a24_old_maximum -----------------------------------------------------------------------------------------------
// Weights are made by the maxima of the tiles before, without a look at this tile's: no comparison, no exchange between
// lanes, before the first exponential. Their sum tells whether that was good enough, and it nearly always is. The
// scores stay until then, so that weights go to registers of their own: two sets of them take turns.

struct A24 : A23 {
  static constexpr bool by_old_maximum = true;
};

// ---- what they share -----------------------------------------------------------------------------------------------

/// A place in a ring of buffers, and the parity of the phase that its barriers are in.
template <int stages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

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
/// one of the same head, which share keys in the L2. Where it makes fewer, tiles are taken by length, forwards and
/// backwards in turns.
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

/// The value, which is the same for a warp: here the compiler learns it, and keeps it in a uniform register.
__device__ inline unsigned the_same(unsigned value) { return __shfl_sync(~0u, value, 0); }

/// What a warpgroup that multiplies has and does.
template <class Cfg>
struct Multiplier {
  using Rung = typename Cfg::rung;
  using T = typename Cfg::in_type;
  using At = Layout<Cfg>;
  using Scores = Score<Cfg>;
  static constexpr int all_values = 4;  // a named barrier
  static constexpr int keys = Cfg::b_c / 8, columns = Cfg::d_v / 8, depth = Cfg::d_head / 16;

  const HopperArgs& args;
  const At at;
  const int group;  // of those that multiply
  RingPlace<Cfg::q_buffers> q;
  RingPlace<Cfg::stages> k, v;
  unsigned turn_parity = 0;
  RowWeights<!Scores::rewrites, Scores::may_hide_rows> weights;
  float s[1][keys][4], out[columns][4];
  using Weights = unsigned[keys / 2][4];
  Weights p, other_p;  // other_p: where weights are made while P V reads p

  __device__ Multiplier(const HopperArgs& args, At at, int group) : args(args), at(at), group(group) {}

  __device__ bool speaks() const { return threadIdx.x % 32 == 0; }

  /// Waits for Q of the next tile of out.
  __device__ void await_q() const { mbarrier_wait(at.q_full(group, q.stage), q.parity); }

  /// Waits for the next tile of keys.
  __device__ void await_k() const { mbarrier_wait(at.k_full(k.stage), k.parity); }

  /// S = Q K^T of that tile, as one group.
  __device__ void start_qk() {
    const unsigned rows = Cfg::q_buffers == 1 ? at.q(group, 0) : the_same(at.q(group, q.stage));
    const unsigned tile = the_same(at.k(k.stage));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < depth; ++step) {
      constexpr int steps = At::panel / 16;  // of a panel
      const unsigned along = step % steps * 32;
      Wgmma<T, false, false, keys>::multiply(
          s[0], wgmma_operand<At::row_bytes>(rows + step / steps * At::q_panel + along, 0),
          wgmma_operand<At::row_bytes>(tile + step / steps * At::k_panel + along, 0), step > 0);
    }
    wgmma_commit();
  }
  /// out += P V of the next tile of values, as one group.
  __device__ void start_pv(const Weights& p) {
    mbarrier_wait(at.v_full(v.stage), v.parity);
    const unsigned tile = the_same(at.v(v.stage));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < keys / 2; ++step)
      WgmmaHeld<T, true, columns>::multiply(
          out, p[step], wgmma_operand<At::v_row_bytes>(tile + step * 16 * At::v_row_bytes, At::v_panel));
    wgmma_commit();
  }
  /// With packed lengths, rows of the last tile of values after the entry's last are another entry's. A weight of 0
  /// does not stop what is infinite or NaN there, so they become 0.
  __device__ void end_values(const Scores& score) const {
    if constexpr (Cfg::varlen) {
      const int rows = score.seq_k - (score.end - 1) * Cfg::b_c;
      if (rows >= Cfg::b_c) return;
      mbarrier_wait(at.v_full(v.stage), v.parity);
      constexpr int chunks = At::v_row_bytes / 16;  // of a row of a panel
      for (unsigned panel = at.v(v.stage); panel < at.v(v.stage) + At::v_bytes; panel += At::v_panel)
        for (int i = rows * chunks + group * 128 + threadIdx.x % 128; i < Cfg::b_c * chunks; i += 128 * At::groups)
          store_shared_zero_128(panel + 16 * i);
      fence_proxy_async();
      named_barrier_sync(all_values, 128 * At::groups);
    }
  }

  /// Waits for S; `pending` groups may still run.
  template <int pending>
  __device__ void end_qk() {
    wgmma_wait<pending>();
    wgmma_arrived(s[0]);
    if (speaks()) mbarrier_arrive(at.k_empty(k.stage));
    k.advance();
  }
  __device__ void end_pv(Weights& p) {
    wgmma_wait<0>();
    wgmma_arrived(out);
#pragma unroll
    for (int step = 0; step < keys / 2; ++step) wgmma_read(p[step]);
    if (speaks()) mbarrier_arrive(at.v_empty(v.stage));
    v.advance();
  }

  __device__ void take_turn() const { named_barrier_sync(1 + group, 256); }
  __device__ void pass_turn() const { named_barrier_arrive(1 + (group + 1) % At::groups, 256); }

  /// Turns of exponentials are between the warps that share a scheduler, and its exponential unit: one of each group.
  __device__ unsigned turn(int of) const { return at.turn(of * 4 + threadIdx.x / 32 % 4); }
  __device__ void await_exponentials() {
    mbarrier_wait(turn(group), turn_parity);
    turn_parity ^= 1;
  }
  __device__ void pass_exponentials(int more = 0) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(turn((group + 1) % At::groups) + more);
  }

  /// S becomes weights in place; returns whether out must be multiplied with weights.keep.
  template <bool first>
  __device__ bool weigh(const Scores& score, int row, int number) {
    score.apply(s, row, number * Cfg::b_c + threadIdx.x % 4 * 2, number);
    const bool grown = weights.template raise<first>(s[0], args.factor);
    begin_exponentials();
    weights.weigh(s[0], args.factor);
    wgmma_arrived(s[0]);  // the compiler would weigh after the wait for P V
    end_exponentials();
    return grown;
  }
  /// The same, to `to`, by the maxima of the tiles before (a24).
  __device__ bool weigh_by_old(const Scores& score, int row, int number, Weights& to) {
    score.apply(s, row, number * Cfg::b_c + threadIdx.x % 4 * 2, number);
    begin_exponentials();
    const bool grown = weights.template weigh_by_old<T>(s[0], to, args.factor);
#pragma unroll
    for (int step = 0; step < keys / 2; ++step)
      wgmma_read(to[step]);  // so that weights are made before the wait for P V
    end_exponentials();
    return grown;
  }
  __device__ void begin_exponentials() {
    if constexpr (Rung::turns == 2) {
      await_exponentials();
      wgmma_arrived(s[0]);
    }
  }
  /// The sums are of all exponentials, and never negative: the compiler cannot pass the turn ahead of them.
  __device__ void end_exponentials() const {
    if constexpr (Rung::turns == 2) pass_exponentials(weights.sum[0] + weights.sum[1] < 0 ? 8 : 0);
  }

  /// Makes P of the weights in S.
  __device__ void pack_weights() {
#pragma unroll
    for (int j = 0; j < keys; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        p[j / 2][j % 2 * 2 + half] = pack<T>(s[0][j][2 * half], s[0][j][2 * half + 1]);
  }

  /// Q K^T of tile `number` together with P V of the tile before, whose weights are `before`; the weights of this one
  /// then stand in `next`. `more`: another tile follows.
  __device__ void step(const Scores& score, int row, int number, bool more, Weights& before, Weights& next) {
    if constexpr (Rung::turns == 1) take_turn();
    start_qk();
    start_pv(before);
    if constexpr (Rung::turns == 1) pass_turn();
    end_qk<1>();
    bool grown;
    if constexpr (Rung::by_old_maximum)
      grown = weigh_by_old(score, row, number, next);
    else
      grown = weigh<false>(score, row, number);
    // Here, because a branch keeps the compiler from moving the exponentials after the wait for P V.
    if (more) await_k();
    end_pv(before);
    if (grown) weights.follow(out);
    if constexpr (!Rung::by_old_maximum) pack_weights();
  }

  __device__ void clear() {
    weights.clear();
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[j][e] = 0;
  }

  /// After the last Q K^T: Q of the next tile may come.
  __device__ void release_q() {
    if (speaks()) mbarrier_arrive(at.q_empty(group, q.stage));
    q.advance();
  }

  /// Lets tile n of the block's pass by.
  __device__ void pass_by(const Scores& block, int n) {
    await_k();
    __syncwarp();  // turns are taken by whole warps, and no product brought its lanes together
    if constexpr (Rung::turns == 1) {
      if (n > 0) take_turn(), pass_turn();
    } else if constexpr (Rung::turns == 2) {
      await_exponentials(), pass_exponentials();
    }
    if (speaks()) mbarrier_arrive(at.k_empty(k.stage));
    k.advance();
    if (n == 0) end_values(block);
    mbarrier_wait(at.v_full(v.stage), v.parity);
    if (speaks()) mbarrier_arrive(at.v_empty(v.stage));
    v.advance();
  }

  /// The tiles of keys that this warpgroup's rows see (`own`) of those that the block walks, from the last to the
  /// first. `after(n)`: called when tile n of the block's has been multiplied and its buffers are free.
  template <class After>
  __device__ void walk(const Scores& block, const Scores& own, int row, After after) {
    const int all = block.end - block.first, first = block.end - own.end, end = first + own.end - own.first;
    clear();
    if constexpr (Rung::own_keys)
      for (int n = 0; n < min(first, all); ++n) pass_by(block, n);
    if constexpr (!Rung::overlaps) {
      for (int n = first; n < end; ++n) {
        await_k();
        start_qk();
        end_qk<0>();
        if (weigh<false>(own, row, block.end - 1 - n)) weights.follow(out);
        pack_weights();
        if (n == 0) end_values(block);
        start_pv(p);
        end_pv(p);
        after(n);
      }
      release_q();
    } else if (first < end) {
      await_k();
      if (Rung::turns == 1 && first > 0) __syncwarp(), take_turn();
      start_qk();
      if (Rung::turns == 1 && first > 0) pass_turn();
      end_qk<0>();
      weigh<true>(own, row, own.end - 1);
      if (first + 1 < end) await_k();
      pack_weights();
      if (first == 0) end_values(block);
      bool in_other = false;  // the weights of the newest tile
      for (int n = first + 1; n < end; ++n) {
        if constexpr (Rung::by_old_maximum) {
          step(own, row, block.end - 1 - n, n + 1 < end, p, other_p);
          in_other = ++n == end;
          if (in_other) break;
          step(own, row, block.end - 1 - n, n + 1 < end, other_p, p);
        } else {
          step(own, row, block.end - 1 - n, n + 1 < end, p, p);
        }
      }
      release_q();
      if (in_other) {
        start_pv(other_p);
        end_pv(other_p);
      } else {
        start_pv(p);
        end_pv(p);
      }
    } else {
      release_q();
    }
    if constexpr (Rung::own_keys)
      for (int n = max(end, first); n < all; ++n) pass_by(block, n);
  }

  /// out / sum to global memory, and log(sum) + max. `row`: this thread's first.
  __device__ void store(const OutTile<Cfg>& tile, int row) {
    weights.finish();
    const int lane = threadIdx.x % 32;
    unsigned short* to = tile.out(args);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = weights.sum[half], inverse = sum == 0 ? 0.f : 1.f / sum;
      const int at = row + 8 * half;
      const bool there = !Cfg::edge_q || at < tile.seq_q;
#pragma unroll
      for (int j = 0; j < columns; j += 4) {
        unsigned pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          pair[i] = pack<T>(out[j + i][2 * half] * inverse, out[j + i][2 * half + 1] * inverse);
        const uint4 chunk = quad_transposed(pair);
        if (there) __stcs(reinterpret_cast<uint4*>(to + at * args.out_row + 8 * (j + lane % 4)), chunk);
      }
      if constexpr (Cfg::with_lse) {
        constexpr float ln_2 = 0.6931471805599453f;
        if (lane % 4 == 0 && there)
          tile.lse(args)[at] = sum == 0
                                   ? minus_infinity()
                                   : fmaf(weights.max[half], Cfg::scale_first ? 1.f : args.scale, __log2f(sum) * ln_2);
      }
    }
  }
};

// ---- the kernel ----------------------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1)
    attention(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
              const __grid_constant__ TensorMap v_map, const __grid_constant__ HopperArgs args) {
  using Rung = typename Cfg::rung;
  using At = Layout<Cfg>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const At at{shared_address(shared)};
  const Maps maps{q_map, k_map, v_map};
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler knows it the same for a warp
  if (threadIdx.x == 0) at.start_barriers();
  __syncthreads();

  OutTile<Cfg>* const drawn = reinterpret_cast<OutTile<Cfg>*>(shared + At::drawn);
  Copies<Cfg> copies{maps, at, drawn};
  const Walk<Cfg> walk(args);
  if constexpr (Cfg::draws) wait_for_earlier_grids();
  if constexpr (Rung::has_producer) {
    if (warpgroup == 0) {
      if constexpr (At::groups > 1) release_registers<At::groups == 3 ? 32 : 24>();
      if (threadIdx.x < 32) {
        int number = walk.number(0);
        for (int step = 0; number < args.tiles; ++step) {
          int next = 0;
          if (Cfg::draws && threadIdx.x == 0) next = gridDim.x + atomicAdd(args.drawn, 1);
          const OutTile<Cfg> tile(args, number, walk.pairs);
          if (threadIdx.x == 0 && tile.exists()) copies.start(tile, Score<Cfg>(args, tile, Cfg::b_r));
          __syncwarp();
          if (!Rung::stays) break;
          number = Cfg::draws ? __shfl_sync(~0u, next, 0) : walk.number(step + 1);
        }
        if (Cfg::draws && threadIdx.x == 0) copies.end();
      }
    } else {
      if constexpr (At::groups > 1) take_registers<At::groups == 3 ? 160 : 240>();
      Multiplier<Cfg> multiplier(args, at, warpgroup - 1);
      if (Rung::turns == 1 && multiplier.group == At::groups - 1) multiplier.pass_turn();
      if (Rung::turns == 2 && multiplier.group == At::groups - 1) multiplier.pass_exponentials();
      const auto make = [&](const OutTile<Cfg>& tile) {
        const Score<Cfg> block(args, tile, Cfg::b_r);
        const int row0 = tile.row0 + 64 * multiplier.group;
        const int row = row0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        if constexpr (!Cfg::draws) multiplier.await_q();
        if constexpr (Rung::own_keys)
          multiplier.walk(block, keys_of_group<Cfg>(args, tile, row0, block.end), row, [](int) {});
        else
          multiplier.walk(block, block, row, [](int) {});
        multiplier.store(tile, row);
      };
      if constexpr (Cfg::draws) {
        while (true) {
          multiplier.await_q();
          const OutTile<Cfg> tile = drawn[At::place(multiplier.group, multiplier.q.stage)];
          __syncwarp();  // all lanes have read it, and one lets the next come
          if (tile.is_none()) break;
          make(tile);
        }
      } else {
        int number;
        for (int step = 0; (number = walk.number(step)) < args.tiles; ++step) {
          const OutTile<Cfg> tile(args, number, walk.pairs);
          if (tile.exists()) make(tile);
          if (!Rung::stays) break;
        }
      }
    }
  } else {
    const OutTile<Cfg> tile(args, blockIdx.x, false);
    const Score<Cfg> score(args, tile, Cfg::b_r);
    if (!tile.exists()) return;
    if (threadIdx.x == 0) {
      copies.start_q(tile);
      for (int n = 0; n < Cfg::stages && n < score.end - score.first; ++n)
        copies.start_k(tile, score.end - 1 - n), copies.start_v(tile, score.end - 1 - n);
    }
    __syncwarp();
    Multiplier<Cfg> multiplier(args, at, warpgroup);
    const int row = tile.row0 + 64 * warpgroup + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    multiplier.await_q();
    multiplier.walk(score, score, row, [&](int n) {
      const int next = score.end - 1 - n - Cfg::stages;
      if (threadIdx.x == 0 && next >= score.first) copies.start_k(tile, next), copies.start_v(tile, next);
      __syncwarp();
    });
    multiplier.store(tile, row);
  }
}
