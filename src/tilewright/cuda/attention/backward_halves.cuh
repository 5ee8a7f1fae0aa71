#pragma once
// The walk by keys of attention/backward_apart.cuh where d_head is so wide that one gradient fills a warpgroup's
// registers: both have the same 64 keys, and one makes dV, the other dK. P is made once and handed over. sm_90a.
//
//     warpgroup 0     S^T = K Q^T        P                                     dV += P^T grad
//     warpgroup 1     dP^T = V grad^T    dS, of dP and of P as it is given     dK += dS^T Q
//
// Barriers    k_full, v_full                      1 arrival and the bytes of K, of V
//             q_full[s], grad_full[s]             1 arrival and the bytes of a tile; statistics come with Q
//             q_empty[s], grad_empty[s]           1 arrival of each warp that multiplies
//             p_full[b], p_empty[b]               1 arrival of each warp of warpgroup 0; of warpgroup 1
//
// A turn of a warpgroup: its product of this tile begins, and its sum of the tile before; the product is waited for,
// and becomes weights or their gradients under the sum.

#include "attention/backward_fed.cuh"
#include "ptx/shared_quads.cuh"

/// As each warpgroup is to itself: alone on its rows.
template <class Cfg>
struct OneGroup : Cfg {
  static constexpr int n_warps = 4, along = 1;
};

template <class Cfg>
struct HalvesWalk : FedWalk<OneGroup<Cfg>> {
  using Base = FedWalk<OneGroup<Cfg>>;
  using typename Base::Kept;
  using typename Base::KeptV;
  using typename Base::Passing;
  using typename Base::PassingV;
  using typename Base::T;
  static_assert(Base::by_keys && !Cfg::sums && Cfg::rows == 64 && Cfg::cols == 64 && Cfg::n_warps == 8);
  static_assert(Base::d_v <= Base::d_head, "dV has room where K was, and dK where V was");
  static_assert(!Cfg::varlen && !Pairs<Cfg>::slopes, "rows of other entries and slopes are for walks apart");

  static constexpr int stages = 2, p_bytes = 2 * Cfg::rows * Cfg::cols;
  static constexpr int barriers = 2 + 4 * stages + 4;
  static constexpr int shared_bytes =
      2 * Kept::bytes + stages * (Passing::bytes + PassingV::bytes + Base::stats_bytes) + 2 * p_bytes + 8 * barriers;

  const unsigned qs, grads, ps, stats, at;
  const unsigned char* const stats_pointer;

  __device__ HalvesWalk(const BackwardArgs& args, unsigned char* shared)
      : Base(args, shared), qs(this->kept_2 + Kept::bytes), grads(qs + stages * Passing::bytes),
        ps(grads + stages * PassingV::bytes), stats(ps + 2 * p_bytes), at(stats + stages * Base::stats_bytes),
        stats_pointer(shared + (stats - this->kept_1)) {}

  __device__ unsigned q_tile(int stage) const { return qs + stage * Passing::bytes; }
  __device__ unsigned grad_tile(int stage) const { return grads + stage * PassingV::bytes; }
  __device__ unsigned k_full() const { return at; }
  __device__ unsigned v_full() const { return at + 8; }
  __device__ unsigned q_full(int stage) const { return at + 16 + 8 * stage; }
  __device__ unsigned q_empty(int stage) const { return q_full(stages + stage); }
  __device__ unsigned grad_full(int stage) const { return q_full(2 * stages + stage); }
  __device__ unsigned grad_empty(int stage) const { return q_full(3 * stages + stage); }
  __device__ unsigned p_full(int buffer) const { return q_full(4 * stages + buffer); }
  __device__ unsigned p_empty(int buffer) const { return q_full(4 * stages + 2 + buffer); }
  /// Where this thread's 16 weights of a quarter of a tile's columns are handed over.
  __device__ unsigned p_place(int buffer, int quarter) const {
    return ps + buffer * p_bytes + quarter * (p_bytes / 4) + threadIdx.x % 128 * 16;
  }

  /// By one thread, before all others pass a barrier.
  __device__ void start_barriers() const {
    mbarrier_init(k_full(), 1), mbarrier_init(v_full(), 1);
    for (int stage = 0; stage < stages; ++stage) {
      mbarrier_init(q_full(stage), 1), mbarrier_init(q_empty(stage), 8);
      mbarrier_init(grad_full(stage), 1), mbarrier_init(grad_empty(stage), 8);
    }
    for (int buffer = 0; buffer < 2; ++buffer) mbarrier_init(p_full(buffer), 4), mbarrier_init(p_empty(buffer), 4);
    mbarrier_init_fence();
  }

  __device__ void copy_all(const BackwardMaps& maps) const {
    const auto& place = this->place;
    mbarrier_arrive_expect(k_full(), Kept::bytes);
    this->template load<Kept>(this->kept_1, maps.k, place.row0, place.head, k_full());
    Cursor now{this->head_0, this->first};
    RingPlace<stages> to;
    for (int n = 0, count = this->steps(); n < count; ++n, to.advance()) {
      const int row = now.tile * Cfg::cols;
      mbarrier_wait(q_empty(to.stage), to.parity ^ 1);
      mbarrier_arrive_expect(q_full(to.stage), Passing::bytes + Base::stats_bytes);
      this->template load<Passing>(q_tile(to.stage), maps.q, row, now.head, q_full(to.stage));
      bulk_load(stats + to.stage * Base::stats_bytes,
                this->args.stats + Base::stat_floats * (place.padded(this->args, now.head) + row), Base::stats_bytes,
                q_full(to.stage));
      if (n == 0) {
        mbarrier_arrive_expect(v_full(), KeptV::bytes);
        this->template load<KeptV>(this->kept_2, maps.v, place.row0, place.head, v_full());
      }
      mbarrier_wait(grad_empty(to.stage), to.parity ^ 1);
      mbarrier_arrive_expect(grad_full(to.stage), PassingV::bytes);
      this->template load<PassingV>(grad_tile(to.stage), maps.grad, row, now.head, grad_full(to.stage));
      now = now.next(this->first, this->end);
    }
  }

  // What a warpgroup has in hand.
  Held<1, Base::across_pieces> held;  // P or dS of the tile before, as it is multiplied
  Cursor now;                         // this tile, and its buffers
  RingPlace<stages> from, before;     // and those of the tile before
  RingPlace<2> handed;

  __device__ ColumnStats<Cfg::wide> stats_of(int stage) const {
    return {reinterpret_cast<const float4*>(stats_pointer + stage * Base::stats_bytes) +
            this->lane % 4 * (Base::stat_floats / 2)};
  }

  /// x = kept passing^T.
  template <int steps>
  __device__ void start_product(float (&x)[Base::s_cols][4], unsigned kept, unsigned passing) const {
    asm volatile("" : "+r"(kept));  // or the compiler holds all operands that it makes of it over all turns
#pragma unroll
    for (int step = 0; step < steps; ++step)
      Wgmma<T, false, false, Base::s_cols>::multiply(x, Base::template along_d<Kept>(kept, 0, step),
                                                     Base::template along_d<Passing>(passing, 0, step), step > 0);
    wgmma_commit();
  }
  __device__ void advance() {
    before = from;
    now = now.next(this->first, this->end);
    from.advance(), handed.advance();
  }

  template <bool sums, int columns>
  __device__ void turn_dv(float (&acc)[columns][4]) {
    float s[1][Base::s_cols][4];
    const int row = this->place.row0 + this->warp_row + this->lane / 4;
    const int col = now.tile * Cfg::cols + this->lane % 4 * 2;
    mbarrier_wait(q_full(from.stage), from.parity);
    if constexpr (sums) mbarrier_wait(grad_full(before.stage), before.parity);
    this->begin_products();
    start_product<Base::depth>(s[0], this->kept_1, q_tile(from.stage));
    if constexpr (sums) this->start_held(acc, held.piece, grad_tile(before.stage));
    wgmma_wait<sums>();
    wgmma_arrived(s[0]);
    const auto of = stats_of(from.stage);
    if (this->pairs.hides(this->place.row0, now.tile * Cfg::cols))
      this->pairs.template weigh<true>(s, row, col, now.head, of);
    else
      this->pairs.template weigh<false>(s, row, col, now.head, of);
    this->tell(q_empty(from.stage));
    if constexpr (sums) {
      wgmma_wait<0>();
      wgmma_arrived(acc);
      Base::read(held.piece);
      this->tell(grad_empty(before.stage));
    }
    Base::packed(held, s);
    mbarrier_wait(p_empty(handed.stage), handed.parity ^ 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float bits[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) bits[e] = __uint_as_float(held.piece[i][0][e]);
      store_shared_128(p_place(handed.stage, i), bits);
    }
    this->tell(p_full(handed.stage));
    advance();
  }

  template <bool sums, int columns>
  __device__ void turn_dk(float (&acc)[columns][4]) {
    float dp[1][Base::s_cols][4];
    mbarrier_wait(grad_full(from.stage), from.parity);
    this->begin_products();
    start_product<Base::v_there / 16>(dp[0], this->kept_2, grad_tile(from.stage));
    if constexpr (sums) this->start_held(acc, held.piece, q_tile(before.stage));
    mbarrier_wait(q_full(from.stage), from.parity);
    mbarrier_wait(p_full(handed.stage), handed.parity);
    wgmma_wait<sums>();
    wgmma_arrived(dp[0]);
    this->tell(grad_empty(from.stage));
    const auto of = stats_of(from.stage);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float p[4];
      load_shared_128(p, p_place(handed.stage, i));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto of_column = of.column(2 * i + j);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = dp[0][2 * i + j][2 * half + e];
            x = half_of<T>(__float_as_uint(p[2 * j + half]), e) * (x - of.of(of_column, 0, half, e).delta);
          }
      }
    }
    this->tell(p_empty(handed.stage));
    if constexpr (sums) {
      wgmma_wait<0>();
      wgmma_arrived(acc);
      Base::read(held.piece);
      this->tell(q_empty(before.stage));
    }
    Base::packed(held, dp);
    advance();
  }

  template <bool makes_dv>
  __device__ void multiply_all(unsigned short* to, const long long (&strides)[3], float factor) {
    float acc[(makes_dv ? Base::v_there : Base::d_there) / 8][4];
    Base::clear(acc);
    const int count = this->steps();
    if (count > 0) {
      now = Cursor{this->head_0, this->first};
      mbarrier_wait(makes_dv ? k_full() : v_full(), 0);
      if constexpr (makes_dv)
        turn_dv<false>(acc);
      else
        turn_dk<false>(acc);
      wgmma_arrived(acc);
      for (int n = 1; n < count; ++n)
        if constexpr (makes_dv)
          turn_dv<true>(acc);
        else
          turn_dk<true>(acc);
      if constexpr (makes_dv) mbarrier_wait(grad_full(before.stage), before.parity);
      this->begin_products();
      this->start_held(acc, held.piece, (makes_dv ? grad_tile(before.stage) : q_tile(before.stage)));
      wgmma_wait<0>();
      wgmma_arrived(acc);
      Base::read(held.piece);
    }
    if constexpr (makes_dv)
      store<KeptV, Base::v_there>(acc, this->kept_1, to, strides, factor);
    else
      store<Kept, Base::d_there>(acc, this->kept_2, to, strides, factor);
  }

  /// This warp's rows through those of a tile that only its warpgroup multiplied.
  template <class Tile, int there, int columns>
  __device__ void store(const float (&acc)[columns][4], unsigned tile, unsigned short* to,
                        const long long (&strides)[3], float factor) const {
    named_barrier_sync(1 + threadIdx.x / 128, 128);  // all have read what was kept
    StridedWriter<Tile> writer(tile, this->warp_row);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < columns; ++n)
        writer.put(half, n, pack<T>(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor));
    __syncwarp();
    const auto& place = this->place;
    store_rows<ThereOf<Tile, there>, 16, PlainStore, Cfg::edge_k>(
        tile, this->warp_row, to + place.at_k(strides, place.head) + place.row0 * strides[2], strides[2],
        place.seq_k - place.row0);
  }

  // ---- roles (run_fed)

  __device__ void feed(int warp, const BackwardMaps& maps) const {
    if (warp == 0) copy_all(maps);
  }
  __device__ void make(int warpgroup) {
    const auto& args = this->args;
    if (warpgroup == 0)
      multiply_all<true>(static_cast<unsigned short*>(args.dv), args.dv_at, 1.f);
    else
      multiply_all<false>(static_cast<unsigned short*>(args.dk), args.dk_at, args.scale);
  }
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, 1)
    backward(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
             const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
             const __grid_constant__ BackwardArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  run_fed<HalvesWalk<Cfg>>({q_map, k_map, v_map, grad_map}, args, shared);
}
