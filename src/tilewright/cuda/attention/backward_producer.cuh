#pragma once
// The gradients of attention by wgmma, fed by a warpgroup that only copies: the walk by keys of
// attention/backward_groups.cuh, without a barrier that all threads wait at. sm_90a.
//
// Roles       the last warpgroup: a thread starts TMA's copies, and Cfg::writes threads, each of a warp of its own with
// a
//             buffer of its own, add dQ's tiles to their sums by bulk copies. Its registers go to the others.
//             the others: 64 keys each, of S and dP; a part of dQ of the tile before.
// Barriers    k_full, v_full              1 arrival and the bytes of K, of V
//             q_full[s], grad_full[s]     1 arrival and the bytes of a tile; Q's statistics come with Q
//             q_empty[s], grad_empty[s]   1 arrival of each warp that multiplies
//             ds_full[b]                  1 arrival of each warp: its part of dS is in shared memory
//             ds_empty[b]                 1 arrival of each warp: dQ has been multiplied
//             dq_full[w], dq_empty[w]     1 arrival of each warp: its part of dQ is there; 1: it has been read
// Named       1: warps that multiply. 2 + w: those of warpgroup w.
//
// A turn of a warpgroup; a line's products run under what follows, and S of the next tile under the end of this one:
//
//     dP begins; S is waited for, and P made
//     dQ of the tile before and dV begin; dP is waited for, and dS made
//     dK begins; dQ is waited for, and added; dV is waited for
//     S of the next tile begins

#include "attention/backward_fed.cuh"

template <class Cfg>
struct Signals {
  static constexpr int stages = Cfg::stages, bytes = 8 * (10 + 4 * stages);
  unsigned base;
  __device__ unsigned k_full() const { return base; }
  __device__ unsigned v_full() const { return base + 8; }
  __device__ unsigned ds_full(int buffer) const { return base + 16 + 8 * buffer; }
  __device__ unsigned ds_empty(int buffer) const { return base + 32 + 8 * buffer; }
  __device__ unsigned dq_full(int writer) const { return base + 48 + 8 * writer; }
  __device__ unsigned dq_empty(int writer) const { return base + 64 + 8 * writer; }
  __device__ unsigned q_full(int stage) const { return ring(0, stage); }
  __device__ unsigned q_empty(int stage) const { return ring(1, stage); }
  __device__ unsigned grad_full(int stage) const { return ring(2, stage); }
  __device__ unsigned grad_empty(int stage) const { return ring(3, stage); }

  /// By one thread, before all others pass a barrier.
  __device__ void start() const {
    mbarrier_init(k_full(), 1), mbarrier_init(v_full(), 1);
    for (int buffer = 0; buffer < 2; ++buffer) {
      mbarrier_init(ds_full(buffer), Cfg::n_warps), mbarrier_init(ds_empty(buffer), Cfg::n_warps);
      mbarrier_init(dq_full(buffer), Cfg::n_warps), mbarrier_init(dq_empty(buffer), 1);
    }
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(q_full(stage), 1), mbarrier_init(q_empty(stage), Cfg::n_warps);
      mbarrier_init(grad_full(stage), 1), mbarrier_init(grad_empty(stage), Cfg::n_warps);
    }
    mbarrier_init_fence();
  }

 private:
  __device__ unsigned ring(int number, int stage) const { return base + 80 + 8 * (number * stages + stage); }
};

template <class Cfg>
struct ProducedWalk : FedWalk<Cfg> {
  using Base = FedWalk<Cfg>;
  using Base::acc_1;
  using Base::acc_2;
  using Base::begin_products;
  using Base::clear_passing;
  using Base::stages;
  using Base::steps;
  using Base::tell;
  using typename Base::Kept;
  using typename Base::Passing;
  using typename Base::T;
  static_assert(Base::by_keys && Base::makes_1 && Base::makes_2 && Cfg::sums, "the walk by keys that makes all three");
  static_assert(Base::along == 1, "P and dS are left operands in registers");

  static constexpr int dq_bytes = Base::Sums::m * Base::d_head * 4;
  static constexpr int shared_bytes = Base::shared_bytes + Cfg::writes * dq_bytes + Signals<Cfg>::bytes;

  const Signals<Cfg> at;

  __device__ ProducedWalk(const BackwardArgs& args, unsigned char* shared)
      : Base(args, shared), at{this->stats + stages * Base::stats_bytes + Cfg::writes * dq_bytes} {}

  __device__ unsigned q_tile(int stage) const { return this->passing_1 + stage * Passing::bytes; }
  __device__ unsigned grad_tile(int stage) const { return this->passing_2 + stage * Passing::bytes; }
  __device__ unsigned ds_tile(int buffer) const { return this->scores + buffer * Base::scores_bytes; }

  __device__ unsigned dq_tile(int writer) const { return at.base - (Cfg::writes - writer) * dq_bytes; }

  // ---- the warp that copies

  __device__ void copy_all(const BackwardMaps& maps) const {
    const auto& place = this->place;
    mbarrier_arrive_expect(at.k_full(), Kept::bytes);
    this->template load<Kept>(this->kept_1, maps.k, place.start_k + place.row0, place.head, at.k_full());
    Cursor now = Base::opening();
    RingPlace<stages> to;
    for (int n = 0, count = steps(); n < count; ++n, to.advance()) {
      const int row = now.tile * Cfg::cols;
      mbarrier_wait(at.q_empty(to.stage), to.parity ^ 1);
      mbarrier_arrive_expect(at.q_full(to.stage), Passing::bytes + Base::stats_bytes);
      this->template load<Passing>(q_tile(to.stage), maps.q, place.start_q + row, now.head, at.q_full(to.stage));
      bulk_load(this->stats + to.stage * Base::stats_bytes,
                this->args.stats + Base::stat_floats * (place.padded(this->args, now.head) + row), Base::stats_bytes,
                at.q_full(to.stage));
      if (n == 0) {
        mbarrier_arrive_expect(at.v_full(), Kept::bytes);
        this->template load<Kept>(this->kept_2, maps.v, place.start_k + place.row0, place.head, at.v_full());
      }
      mbarrier_wait(at.grad_empty(to.stage), to.parity ^ 1);
      mbarrier_arrive_expect(at.grad_full(to.stage), Passing::bytes);
      this->template load<Passing>(grad_tile(to.stage), maps.grad, place.start_q + row, now.head,
                                   at.grad_full(to.stage));
      now = now.next(this->first, this->end);
    }
  }

  __device__ float* sums_of(const Cursor& to) const {
    return this->args.sums + (this->place.padded(this->args, to.head) + to.tile * Cfg::cols) * Base::d_head;
  }

  // ---- the warps that add dQ, Cfg::writes: tile after tile in turn

  /// With Cfg::ordered blocks of keys add to a tile in their order, so that its sum is the same bits at every run: each
  /// after its neighbour that was started before it. The first stores, so that no sum has to begin as 0.
  __device__ void write_all(int writer) const {
    const int mine = this->place.row0 / Cfg::rows, before = Cfg::backwards ? mine + 1 : mine - 1;
    int their_first = 0, their_end = 0;
    if (before >= 0 && before * Cfg::rows < this->place.seq_k)
      this->pairs.range(before * Cfg::rows, their_first, their_end);
    Cursor now = Base::opening();
    unsigned parity = 0;
    for (int n = 0, count = steps(); n < count; ++n, now = now.next(this->first, this->end)) {
      if (n % Cfg::writes != writer) continue;
      mbarrier_wait(at.dq_full(writer), parity);
      parity ^= 1;
      const bool stores = Cfg::ordered && !(their_first <= now.tile && now.tile < their_end);
      if (stores) {
        bulk_store(sums_of(now), dq_tile(writer), dq_bytes);
      } else {
        if constexpr (Cfg::ordered)
          while (load_acquire(Base::turn_of(now.head, now.tile)) != before + 1) {
          }
        bulk_add(sums_of(now), dq_tile(writer), dq_bytes);
      }
      tma_commit();
      tma_wait_read<0>();
      mbarrier_arrive(at.dq_empty(writer));
      if constexpr (Cfg::ordered) {
        tma_wait<0>();
        store_release(Base::turn_of(now.head, now.tile), mine + 1);
      }
    }
    tma_wait<0>();
  }

  // ---- those that multiply

  __device__ void clear_kept() const {
    if constexpr (Cfg::varlen) {
      mbarrier_wait(at.v_full(), 0);
      Base::template clear_rows<Kept>(this->kept_1, this->place.seq_k - this->place.row0);
      Base::template clear_rows<Kept>(this->kept_2, this->place.seq_k - this->place.row0);
    }
  }
  __device__ void await_q(const RingPlace<stages>& from, const Cursor& now) const {
    mbarrier_wait(at.q_full(from.stage), from.parity);
    clear_passing(q_tile(from.stage), now);
  }

  /// Adds this warpgroup's part of dQ of a tile, or hands it to the warp that does.
  __device__ void add(const float (&sum)[Base::sum_cols][4], const Cursor& to) {
    if constexpr (Cfg::writes) {
      mbarrier_wait(at.dq_empty(writer.stage), writer.parity ^ 1);
#pragma unroll
      for (int j = 0; j < Base::sum_cols; ++j)
        store_shared_quad(dq_tile(writer.stage) + 4 * Base::Sums::place(0, j), sum[j]);
      fence_proxy_async();
      tell(at.dq_full(writer.stage));
      writer.advance();
    } else {
      float* sums = sums_of(to);
#pragma unroll
      for (int j = 0; j < Base::sum_cols; ++j) red_add_4(sums + Base::Sums::place(0, j), sum[j]);
    }
  }

  // What a warpgroup has in hand.
  float s[1][Base::s_cols][4];
  Held<1, Base::across_pieces> p, ds;
  Cursor now, before;                               // this tile, and the one before
  RingPlace<stages> from;                           // its buffers
  RingPlace<2> to, to_before;                       // and those of dS
  RingPlace<Cfg::writes ? Cfg::writes : 1> writer;  // that adds the next tile of dQ

  /// This warp's part of dS is in shared memory.
  __device__ void tell_ds(int buffer) const {
    fence_proxy_async();
    tell(at.ds_full(buffer));
  }

  /// The dS of a tile before the first.
  __device__ void clear_ds() {
    for (int i = threadIdx.x; i < Base::scores_bytes / 16; i += Base::threads)
      store_shared_zero_128(ds_tile(0) + 16 * i);
    tell_ds(0);
    to.advance();
  }

  /// Turn number n of `count`. No product depends on a condition, or the compiler would let none run under another: the
  /// first turn multiplies a dS of zeros, the last makes S of its own tile again.
  __device__ void turn(int n, int count) {
    constexpr bool slopes = Pairs<Cfg>::slopes;
    const bool more = n + 1 < count;
    const Cursor next = now.next(this->first, this->end);
    RingPlace<stages> from_next = from;
    from_next.advance();
    const unsigned q = q_tile(from.stage), grad = grad_tile(from.stage);
    const int row = this->place.row0 + this->warp_row + this->lane / 4;
    const int head = now.head, col = now.tile * Cfg::cols + this->warp_col + this->lane % 4 * 2;
    const bool hides = this->pairs.hides(this->place.row0, now.tile * Cfg::cols);
    const auto of = this->column_stats(from.stage);
    // Here, where they hold nothing: what products will overwrite is kept by the compiler else.
    float dp[1][Base::s_cols][4], sum[Base::sum_cols][4], next_s[1][Base::s_cols][4];

    mbarrier_wait(at.grad_full(from.stage), from.parity);
    clear_passing(grad, now);
    begin_products();
    this->start_scores(dp[0], this->kept_2, grad);
    if constexpr (slopes) {
      wgmma_wait<0>();
      wgmma_arrived(dp[0]);
      if (hides)
        this->pairs.template apply<true>(s, dp, row, col, head, of);
      else
        this->pairs.template apply<false>(s, dp, row, col, head, of);
    } else {
      if (hides)
        this->pairs.template weigh<true>(s, row, col, head, of);
      else
        this->pairs.template weigh<false>(s, row, col, head, of);
    }
    Base::packed(p, s);

    begin_products();
    this->start_held(acc_2[0], p.piece, grad);
    if constexpr (!slopes) {
      wgmma_wait<1>();
      wgmma_arrived(dp[0]);
      Base::grade(ds, p, dp, of);
    } else {
      Base::packed(ds, dp);
    }
    mbarrier_wait(at.ds_empty(to.stage), to.parity ^ 1);
    this->keep(ds, ds_tile(to.stage));
    tell_ds(to.stage);
    mbarrier_wait(at.ds_full(to_before.stage), to_before.parity);
    begin_products();
    this->start_sums(sum, ds_tile(to_before.stage));
    this->start_held(acc_1[0], ds.piece, q);

    wgmma_wait<1>();
    wgmma_arrived(acc_2[0]);
    Base::read(p.piece);
    tell(at.grad_empty(from.stage));
    wgmma_arrived(sum);
    tell(at.ds_empty(to_before.stage));
    if (n > 0) add(sum, before);
    if (more) await_q(from_next, next);
    begin_products();
    this->start_scores(next_s[0], this->kept_1, q_tile(more ? from_next.stage : from.stage));
    wgmma_wait<1>();
    wgmma_arrived(acc_1[0]);
    Base::read(ds.piece);
    tell(at.q_empty(from.stage));
    wgmma_wait<0>();
    wgmma_arrived(next_s[0]);
#pragma unroll
    for (int j = 0; j < Base::s_cols; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][j][e] = next_s[0][j][e];
    before = now, now = next;
    from = from_next;
    to_before = to, to.advance();
  }

  __device__ void multiply_all() {
    Base::clear(acc_1[0]);
    Base::clear(acc_2[0]);
    wgmma_arrived(acc_1[0]);
    wgmma_arrived(acc_2[0]);
    const int count = steps();
    if (count == 0) return;
    now = before = Base::opening();
    clear_ds();
    mbarrier_wait(at.k_full(), 0);
    clear_kept();
    await_q(from, now);
    begin_products();
    this->start_scores(s[0], this->kept_1, q_tile(from.stage));
    wgmma_wait<0>();
    wgmma_arrived(s[0]);
    if constexpr (!Cfg::varlen) mbarrier_wait(at.v_full(), 0);
    for (int n = 0; n < count; ++n) turn(n, count);
    float sum[Base::sum_cols][4];
    mbarrier_wait(at.ds_full(to_before.stage), to_before.parity);
    begin_products();
    this->start_sums(sum, ds_tile(to_before.stage));
    wgmma_wait<0>();
    wgmma_arrived(sum);
    add(sum, before);
    Base::meet();  // all have read what was kept
  }

  // ---- roles (run_fed)

  __device__ void start_barriers() const { at.start(); }
  __device__ void feed(int warp, const BackwardMaps& maps) const {
    if (warp == 0) copy_all(maps);
    if (0 < warp && warp <= Cfg::writes) write_all(warp - 1);
  }
  __device__ void make(int) {
    multiply_all();
    this->store_keys();
  }
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1)
    backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
             const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  run_fed<ProducedWalk<Cfg>>({q_map, k_map, v_map, grad_map}, args, shared);
}
