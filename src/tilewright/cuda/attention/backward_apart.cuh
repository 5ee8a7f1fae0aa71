#pragma once
// The gradients of attention by wgmma, each made by a walk of its own that looks like the forward pass: eight products
// where five would do, but no sum leaves the registers, and P and dS are left operands there. Where the registers hold
// dK and dV together, one walk makes both: seven products. sm_90a.
//
// V and grad may have another number of columns than Q and K.
//
//                   kept         passing: first, second     products a tile
//     dV            K            Q, grad                    S^T = K Q^T                      dV += P^T grad
//     dK            K, V         Q, grad                    S^T = K Q^T   dP^T = V grad^T    dK += dS^T Q
//     dK, dV        K, V         Q, grad                    S^T = K Q^T   dP^T = V grad^T    both
//     dQ            Q, grad      K, V                       S   = Q K^T   dP   = grad V^T    dQ += dS K
//
// Roles       the last warpgroup: a thread starts TMA's copies. Its registers go to the others.
//             the others: 64 kept rows each.
// Barriers    kept[i]                            1 arrival and the bytes of what is kept
//             first_full[s], second_full[s]      1 arrival and the bytes of a tile; queries' statistics come with first
//             first_empty[s], second_empty[s]    1 arrival of each warp that multiplies
//
// A turn of a warpgroup; a line's products run under what follows it within the turn. P or dS of a tile is multiplied
// in the turn of the next tile:
//
//     dK, dQ     the sum of the tile before and S begin; the sum is waited for, and dP begins
//                S is waited for, and P made; dP is waited for, and dS made
//     dV         S and the sum of the tile before begin; S is waited for, and P made
//     dK, dV     S and dK of the tile before begin; S is waited for, and P made; dK is waited for
//                dP and dV begin; dP is waited for, and dS made

#include "attention/backward_fed.cuh"

template <class Cfg>
struct ApartWalk : FedWalk<Cfg> {
  using Base = FedWalk<Cfg>;
  using Base::by_keys;
  using Base::makes_1;
  using Base::makes_2;
  using typename Base::Kept;
  using typename Base::Passing;
  using typename Base::T;
  static_assert(Base::along == 1 && !Cfg::sums, "P and dS are left operands in registers");
  static_assert(!(makes_1 && makes_2 && Pairs<Cfg>::slopes), "a slope would hold S and dP next to both gradients");

  // What has the columns of V and grad: the second that is kept where there are two, and the second that passes.
  using typename Base::KeptV;
  using typename Base::PassingV;

  static constexpr int stages = Cfg::stages, stages_2 = Cfg::stages_2, kept = makes_1 ? 2 : 1;
  static constexpr int kept_bytes = Kept::bytes + (makes_1 ? KeptV::bytes : 0);
  static constexpr int barriers = 2 + 2 * stages + 2 * stages_2;
  static constexpr int shared_bytes =
      kept_bytes + stages * Passing::bytes + stages_2 * PassingV::bytes + stages * Base::stats_bytes + 8 * barriers;

  const unsigned firsts, seconds, stats, at;
  const unsigned char* const stats_pointer;

  __device__ ApartWalk(const BackwardArgs& args, unsigned char* shared)
      : Base(args, shared), firsts(this->kept_1 + kept_bytes), seconds(firsts + stages * Passing::bytes),
        stats(seconds + stages_2 * PassingV::bytes), at(stats + stages * Base::stats_bytes),
        stats_pointer(shared + (stats - this->kept_1)) {}

  __device__ unsigned first_tile(int stage) const { return firsts + stage * Passing::bytes; }
  __device__ unsigned second_tile(int stage) const { return seconds + stage * PassingV::bytes; }
  __device__ unsigned kept_full(int which) const { return at + 8 * which; }
  __device__ unsigned first_full(int stage) const { return at + 16 + 8 * stage; }
  __device__ unsigned first_empty(int stage) const { return first_full(stages + stage); }
  __device__ unsigned second_full(int stage) const { return first_full(2 * stages + stage); }
  __device__ unsigned second_empty(int stage) const { return second_full(stages_2 + stage); }

  /// By one thread, before all others pass a barrier.
  __device__ void start_barriers() const {
    for (int which = 0; which < 2; ++which) mbarrier_init(kept_full(which), 1);
    for (int stage = 0; stage < stages; ++stage)
      mbarrier_init(first_full(stage), 1), mbarrier_init(first_empty(stage), Cfg::n_warps);
    for (int stage = 0; stage < stages_2; ++stage)
      mbarrier_init(second_full(stage), 1), mbarrier_init(second_empty(stage), Cfg::n_warps);
    mbarrier_init_fence();
  }

  // ---- the warp that copies

  template <class Tile>
  __device__ void keep(unsigned tile, const TensorMap& map, int which) const {
    const auto& place = this->place;
    const int row = place.row0 + (by_keys ? place.start_k : place.start_q);
    mbarrier_arrive_expect(kept_full(which), Tile::bytes);
    this->template load<Tile>(tile, map, row, place.head, kept_full(which));
  }
  template <class Tile>
  __device__ void pass(unsigned tile, const TensorMap& map, const Cursor& now, unsigned full) const {
    const auto& place = this->place;
    const int row = now.tile * Cfg::cols + (by_keys ? place.start_q : place.start_k);
    this->template load<Tile>(tile, map, row, by_keys ? now.head : now.head / this->args.group, full);
  }

  __device__ void copy_all(const BackwardMaps& maps) const {
    keep<Kept>(this->kept_1, by_keys ? maps.k : maps.q, 0);
    Cursor now = Base::opening();
    RingPlace<stages> to;
    RingPlace<stages_2> to_2;
    for (int n = 0, count = this->steps(); n < count; ++n, to.advance(), to_2.advance()) {
      mbarrier_wait(first_empty(to.stage), to.parity ^ 1);
      mbarrier_arrive_expect(first_full(to.stage), Passing::bytes + Base::stats_bytes);
      pass<Passing>(first_tile(to.stage), by_keys ? maps.q : maps.k, now, first_full(to.stage));
      if constexpr (by_keys)
        bulk_load(
            stats + to.stage * Base::stats_bytes,
            this->args.stats + Base::stat_floats * (this->place.padded(this->args, now.head) + now.tile * Cfg::cols),
            Base::stats_bytes, first_full(to.stage));
      if (makes_1 && n == 0) keep<KeptV>(this->kept_2, by_keys ? maps.v : maps.grad, 1);
      mbarrier_wait(second_empty(to_2.stage), to_2.parity ^ 1);
      mbarrier_arrive_expect(second_full(to_2.stage), PassingV::bytes);
      pass<PassingV>(second_tile(to_2.stage), by_keys ? maps.grad : maps.v, now, second_full(to_2.stage));
      now = now.next(this->first, this->end);
    }
  }

  // ---- those that multiply

  __device__ void await_first() const {
    mbarrier_wait(first_full(from.stage), from.parity);
    this->template clear_passing<Passing>(first_tile(from.stage), now);
  }
  __device__ void await_second(const RingPlace<stages_2>& from, const Cursor& of) const {
    mbarrier_wait(second_full(from.stage), from.parity);
    this->template clear_passing<PassingV>(second_tile(from.stage), of);
  }

  /// An address that the compiler takes for new: it would hold the many operands that it makes of one over all turns,
  /// and has no registers for them.
  static __device__ unsigned anew(unsigned tile) {
    asm volatile("" : "+r"(tile));
    return tile;
  }

  /// Of the queries that pass in a buffer, or of those that are kept.
  __device__ auto stats_of(int stage, const RowStats<1>& rows) const {
    if constexpr (by_keys)
      return ColumnStats<Cfg::wide>{reinterpret_cast<const float4*>(stats_pointer + stage * Base::stats_bytes) +
                                    this->lane % 4 * (Base::stat_floats / 2)};
    else
      return rows;
  }

  // What a warpgroup has in hand.
  Held<1, Base::across_pieces> held;  // P or dS of the tile before, as it is multiplied
  Cursor now, before;                 // this tile, and the one before
  RingPlace<stages> from, before_1;   // their buffers
  RingPlace<stages_2> from_2, before_2;

  /// P of S, and where a slope belongs to a weight dS of dP too, dx.
  template <bool graded, int n, class Stats>
  __device__ void weigh(float (&s)[1][n][4], float (&dp)[1][n][4], const Stats& of) const {
    const int row = this->place.row0 + this->warp_row + this->lane / 4;
    const int col = now.tile * Cfg::cols + this->lane % 4 * 2;
    const bool hides = this->pairs.hides(this->place.row0, now.tile * Cfg::cols);
    if constexpr (graded) {
      if (hides)
        this->pairs.template apply<true>(s, dp, row, col, now.head, of);
      else
        this->pairs.template apply<false>(s, dp, row, col, now.head, of);
    } else {
      if (hides)
        this->pairs.template weigh<true>(s, row, col, now.head, of);
      else
        this->pairs.template weigh<false>(s, row, col, now.head, of);
    }
  }

  /// acc += held^T second, or held^T first, of the tile before.
  __device__ void start_sum() {
    if constexpr (makes_1)
      this->start_held(this->acc_1[0], held.piece, first_tile(before_1.stage));
    else
      this->start_held(this->acc_2[0], held.piece, second_tile(before_2.stage));
  }
  __device__ void sum_arrived() {
    if constexpr (makes_1)
      wgmma_arrived(this->acc_1[0]);
    else
      wgmma_arrived(this->acc_2[0]);
    Base::read(held.piece);
  }

  /// `sums`: whether there is a tile before. Nothing runs on when a turn ends, or the compiler would let no product run
  /// under another.
  template <bool sums>
  __device__ void turn_1(const RowStats<1>& rows) {
    constexpr bool slopes = Pairs<Cfg>::slopes;
    const auto of = stats_of(from.stage, rows);
    float s[1][Base::s_cols][4], dp[1][Base::s_cols][4];
    await_first();
    this->begin_products();
    if constexpr (sums) start_sum();
    this->start_scores(s[0], anew(this->kept_1), first_tile(from.stage));
    await_second(from_2, now);
    if constexpr (sums) {  // dP begins under S, where dS holds no registers any more
      wgmma_wait<1>();
      sum_arrived();
      this->tell(first_empty(before_1.stage));
    }
    this->begin_products();
    this->template start_scores<Base::v_there / 16>(dp[0], anew(this->kept_2), second_tile(from_2.stage));
    if constexpr (!slopes) {
      wgmma_wait<1>();
      wgmma_arrived(s[0]);
      weigh<false>(s, dp, of);
    }
    wgmma_wait<0>();
    wgmma_arrived(dp[0]);
    this->tell(second_empty(from_2.stage));
    if constexpr (slopes) {
      wgmma_arrived(s[0]);
      weigh<true>(s, dp, of);
    } else {
      this->pairs.grade(s, dp, of);
    }
    Base::packed(held, dp);
  }

  template <bool sums>
  __device__ void turn_2(const RowStats<1>& rows) {
    const auto of = stats_of(from.stage, rows);
    float s[1][Base::s_cols][4], none[1][Base::s_cols][4] = {};
    await_first();
    if constexpr (sums) await_second(before_2, before);
    this->begin_products();
    this->start_scores(s[0], anew(this->kept_1), first_tile(from.stage));
    if constexpr (sums) start_sum();
    wgmma_wait<sums>();
    wgmma_arrived(s[0]);
    weigh<Pairs<Cfg>::slopes>(s, none, of);
    this->tell(first_empty(from.stage));
    if constexpr (sums) {
      wgmma_wait<0>();
      sum_arrived();
      this->tell(second_empty(before_2.stage));
    }
    Base::packed(held, s);
  }

  template <bool sums>
  __device__ void turn_both(const RowStats<1>& rows) {
    const auto of = stats_of(from.stage, rows);
    float s[1][Base::s_cols][4], dp[1][Base::s_cols][4];
    Held<1, Base::across_pieces> p;
    await_first();
    this->begin_products();
    this->start_scores(s[0], anew(this->kept_1), first_tile(from.stage));
    if constexpr (sums) start_sum();
    wgmma_wait<sums>();
    wgmma_arrived(s[0]);
    weigh<false>(s, dp, of);
    if constexpr (sums) {
      wgmma_wait<0>();
      sum_arrived();
      this->tell(first_empty(before_1.stage));
    }
    Base::packed(p, s);
    await_second(from_2, now);
    this->begin_products();
    this->template start_scores<Base::v_there / 16>(dp[0], anew(this->kept_2), second_tile(from_2.stage));
    this->start_held(this->acc_2[0], p.piece, second_tile(from_2.stage));
    wgmma_wait<1>();
    wgmma_arrived(dp[0]);
    Base::grade(held, p, dp, of);
    wgmma_wait<0>();
    wgmma_arrived(this->acc_2[0]);
    Base::read(p.piece);
    this->tell(second_empty(from_2.stage));
  }

  template <bool sums>
  __device__ void turn(const RowStats<1>& rows) {
    if constexpr (makes_1 && makes_2)
      turn_both<sums>(rows);
    else if constexpr (makes_1)
      turn_1<sums>(rows);
    else
      turn_2<sums>(rows);
    before = now, before_1 = from, before_2 = from_2;
    now = now.next(this->first, this->end);
    from.advance(), from_2.advance();
  }

  __device__ void multiply_all() {
    if constexpr (makes_1) Base::clear(this->acc_1[0]);
    if constexpr (makes_2) Base::clear(this->acc_2[0]);
    const int count = this->steps();
    if (count == 0) return;
    const RowStats<1> rows = this->row_stats();
    now = Base::opening();
    for (int which = 0; which < kept; ++which) mbarrier_wait(kept_full(which), 0);
    if constexpr (makes_1 && makes_2) wgmma_arrived(this->acc_2[0]);
    turn<false>(rows);
    sum_arrived();
    for (int n = 1; n < count; ++n) turn<true>(rows);
    if constexpr (!makes_1) await_second(before_2, before);
    this->begin_products();
    start_sum();
    wgmma_wait<0>();
    sum_arrived();
    Base::meet();  // all have read what was kept
  }

  // ---- roles (run_fed)

  __device__ void feed(int warp, const BackwardMaps& maps) const {
    if (warp == 0) copy_all(maps);
  }
  __device__ void make(int) {
    multiply_all();
    if constexpr (by_keys)
      this->store_keys();
    else
      this->store_all();
  }
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1)
    backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
             const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  run_fed<ApartWalk<Cfg>>({q_map, k_map, v_map, grad_map}, args, shared);
}
