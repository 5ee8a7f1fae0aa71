#pragma once
// The gradients of attention by wgmma: the walk of attention/backward_walk.cuh, whose products a warpgroup makes
// straight from shared memory, asynchronously. sm_90a.
//
// A warpgroup has 64 rows. Products are groups that end in the order in which they begin:
//
//     S, dP, dQ of the tile before     begin; S is waited for, and P made while the others run
//     dV                               begins; dP is waited for, and dS made
//     dK                               begins; dQ is waited for, and added
//
// P and dS are left operands in registers. With Cfg::along warpgroups on the same rows they go through shared memory,
// and dQ is of this tile.

#include "attention/backward_walk.cuh"
#include "ptx/wgmma.cuh"

template <class Cfg>
struct GroupWalk : Walk<Cfg> {
  using Base = Walk<Cfg>;
  using Base::acc_1;
  using Base::acc_2;
  using Base::along;
  using Base::depth;
  using Base::makes_1;
  using Base::makes_2;
  using typename Base::Kept;
  using typename Base::Passing;
  using typename Base::Scores;
  using typename Base::T;
  static_assert(Base::pieces == 1 && Base::slice == 64 && Base::warps % 4 == 0, "warpgroups of 64 rows, panels of 64");
  static_assert(Cfg::cols % 64 == 0, "a row of dS is whole panels");
  static constexpr int s_cols = 2 * Base::across_pieces, acc_cols = Base::acc_cols, row_bytes = 128;
  static constexpr int groups = Base::warps / 4, row_groups = groups / along;

  // dQ: a warpgroup has 64 queries, and a part of d_head
  static constexpr int q_groups = Cfg::cols / 64, d_groups = Cfg::sums ? groups / q_groups : 1;
  static constexpr int sum_d = Base::d_head / d_groups, sum_cols = sum_d / 8;
  float sum[1][sum_cols][4];

  const int group;  // the same for a warp, as the compiler then knows

  __device__ GroupWalk(const BackwardArgs& args, unsigned char* shared)
      : Base(args, shared), group(__shfl_sync(~0u, threadIdx.x / 128, 0)) {}

  /// Rows of a tile from `row` on, k along d_head.
  template <class Tile>
  static __device__ unsigned long long along_d(unsigned tile, int row, int step) {
    return wgmma_operand<row_bytes>(tile + step / 4 * (Tile::rows * row_bytes) + row * row_bytes + step % 4 * 32, 0);
  }
  /// Panels of a tile from column `col` on, k along its rows.
  template <class Tile>
  static __device__ unsigned long long along_rows(unsigned tile, int col, int step) {
    return wgmma_operand<row_bytes>(tile + col / 64 * (Tile::rows * row_bytes) + col % 64 * 2 + step * 16 * row_bytes,
                                    Tile::rows * row_bytes);
  }

  template <int steps = depth, int columns>
  __device__ void start_scores(float (&s)[columns][4], unsigned kept, unsigned passing) const {
#pragma unroll
    for (int step = 0; step < steps; ++step)
      Wgmma<T, false, false, columns>::multiply(s, along_d<Kept>(kept, group % row_groups * 64, step),
                                                along_d<Passing>(passing, group / row_groups * Base::warp_cols, step),
                                                step > 0);
    wgmma_commit();
  }
  /// acc += x^T passing, x in registers.
  template <int columns, int steps>
  __device__ void start_held(float (&acc)[columns][4], const unsigned (&x)[steps][1][4], unsigned passing) const {
#pragma unroll
    for (int step = 0; step < steps; ++step)
      WgmmaHeld<T, true, columns>::multiply(acc, x[step][0], along_rows<Passing>(passing, 0, step));
    wgmma_commit();
  }
  /// The same with x in shared memory, for this warpgroup's part of d_head.
  __device__ void start_shared(float (&acc)[acc_cols][4], unsigned x, unsigned passing) const {
#pragma unroll
    for (int step = 0; step < Cfg::cols / 16; ++step)
      Wgmma<T, false, true, acc_cols>::multiply(acc, along_d<Scores>(x, group % row_groups * 64, step),
                                                along_rows<Passing>(passing, group / row_groups * Base::warp_d, step));
    wgmma_commit();
  }
  __device__ void start_sums(float (&sum)[sum_cols][4], unsigned ds) const {
#pragma unroll
    for (int step = 0; step < Cfg::rows / 16; ++step)
      Wgmma<T, true, true, sum_cols>::multiply(sum, along_rows<Scores>(ds, group % q_groups * 64, step),
                                               along_rows<Kept>(this->kept_1, group / q_groups * sum_d, step),
                                               step > 0);
    wgmma_commit();
  }
  __device__ void add_sums(int head, int tile, bool any, int before_head, int before_tile) const {
    this->take_turn(head, tile, any, before_head, before_tile);
    float* to = this->args.sums + (this->place.padded(this->args, head) + tile * Cfg::cols) * Base::d_head;
#pragma unroll
    for (int j = 0; j < sum_cols; ++j) red_add_4(to + Base::Sums::place(0, j), sum[0][j]);
  }

  template <int n>
  static __device__ void read(unsigned (&x)[n][1][4]) {
#pragma unroll
    for (int step = 0; step < n; ++step) wgmma_read(x[step][0]);
  }

  /// Tile `now`, number n. `before` and `last`: those of the two turns before; dS of `before` is in the other buffer.
  template <class Stats>
  __device__ void turn(int n, const Cursor& now, const Cursor& before, const Cursor& last, const Stats& of) {
    const int head = now.head, tile = now.tile;
    const int buffer = n % 2;
    const unsigned from_1 = this->passing_1 + buffer * Passing::bytes,
                   from_2 = this->passing_2 + buffer * Passing::bytes;
    const unsigned scores = this->scores, scores_bytes = Base::scores_bytes;
    constexpr bool delayed = Cfg::sums && along == 1;
    float s[1][s_cols][4], dp[1][s_cols][4];
    wgmma_fence();
    start_scores(s[0], this->kept_1, from_1);
    if constexpr (makes_1) start_scores(dp[0], this->kept_2, from_2);
    if constexpr (delayed) {
      if (n > 0)
        start_sums(sum[0], scores + (1 - buffer) * scores_bytes);
      else
        wgmma_commit();
    }
    Held<1, Base::across_pieces> p, ds;
    const int row = this->place.row0 + this->warp_row + this->lane / 4;
    const int col = tile * Cfg::cols + this->warp_col + this->lane % 4 * 2;
    const bool hides = this->pairs.hides(this->place.row0, tile * Cfg::cols);
    if constexpr (Pairs<Cfg>::slopes || !makes_1) {
      wgmma_wait<delayed>();
      wgmma_arrived(s[0]);
      wgmma_arrived(dp[0]);
      if (hides)
        this->pairs.template apply<true>(s, dp, row, col, head, of);
      else
        this->pairs.template apply<false>(s, dp, row, col, head, of);
    } else {
      wgmma_wait<1 + delayed>();
      wgmma_arrived(s[0]);
      if (hides)
        this->pairs.template weigh<true>(s, row, col, head, of);
      else
        this->pairs.template weigh<false>(s, row, col, head, of);
    }
    if constexpr (makes_2) {
      Base::packed(p, s);
      if constexpr (along == 1) {
        wgmma_fence();
        start_held(acc_2[0], p.piece, from_2);
      } else {
        this->keep(p, scores + scores_bytes);
      }
    }
    if constexpr (makes_1) {
      if constexpr (!Pairs<Cfg>::slopes) {
        wgmma_wait<(along == 1 && makes_2) + delayed>();
        wgmma_arrived(dp[0]);
        this->pairs.grade(s, dp, of);
      }
      Base::packed(ds, dp);
      if constexpr (Cfg::sums || along > 1) this->keep(ds, scores + (along > 1 ? 0 : buffer * scores_bytes));
      if constexpr (along == 1) {
        wgmma_fence();
        start_held(acc_1[0], ds.piece, from_1);
      }
    }
    if constexpr (along > 1) {
      fence_proxy_async();
      __syncthreads();  // P and dS are there for all
      wgmma_fence();
      if constexpr (makes_2) start_shared(acc_2[0], scores + scores_bytes, from_2);
      if constexpr (Cfg::sums) start_sums(sum[0], scores);
      if constexpr (makes_1) start_shared(acc_1[0], scores, from_1);
    }
    if constexpr (Cfg::sums) {
      wgmma_wait<along == 1 ? makes_2 + makes_1 : 1>();
      if (!delayed || n > 0) {
        wgmma_arrived(sum[0]);
        if constexpr (delayed)
          add_sums(before.head, before.tile, n > 1, last.head, last.tile);
        else
          add_sums(head, tile, n > 0, before.head, before.tile);
      }
    }
    wgmma_wait<0>();
    if constexpr (makes_1) wgmma_arrived(acc_1[0]);
    if constexpr (makes_2) wgmma_arrived(acc_2[0]);
    if constexpr (along == 1) {
      if constexpr (makes_2) read(p.piece);
      if constexpr (makes_1) read(ds.piece);
    }
  }

  __device__ void run() {
    if (this->place.row0 >= this->place.seq()) return;
    Base::clear(acc_1[0]);
    Base::clear(acc_2[0]);
    wgmma_arrived(acc_1[0]);
    wgmma_arrived(acc_2[0]);
    const int first = this->first, end = this->end, steps = (end - first) * this->heads;
    if (steps > 0) {
      this->start_kept();
      this->start(this->head_0, first, 0);
      cp_async_commit();
      Cursor now{this->head_0, first}, before = now, last = now;
      const auto of = this->row_stats();
      for (int n = 0; n < steps; ++n) {
        const Cursor next = now.next(first, end);
        cp_async_wait<0>();
        fence_proxy_async();
        __syncthreads();  // this tile has landed for all, and dS of the one before; all have read the other buffers
        if (n + 1 < steps) this->start(next.head, next.tile, (n + 1) % 2);
        cp_async_commit();
        if constexpr (Base::by_keys)
          turn(n, now, before, last, this->column_stats(n % 2));
        else
          turn(n, now, before, last, of);
        last = before, before = now, now = next;
      }
      if constexpr (Cfg::sums && along == 1) {
        fence_proxy_async();
        __syncthreads();
        wgmma_fence();
        start_sums(sum[0], this->scores + (steps + 1) % 2 * Base::scores_bytes);
        wgmma_wait<0>();
        wgmma_arrived(sum[0]);
        add_sums(before.head, before.tile, steps > 1, last.head, last.tile);
      }
      if constexpr (Cfg::sums) this->give_turn(before.head, before.tile);
      __syncthreads();  // all have read what was kept
    }
    this->store_all();
  }
};
