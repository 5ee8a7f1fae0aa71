#pragma once
// What a warpgroup of Hopper's attention rungs (attention/hopper.cuh) does that multiplies: 64 rows of out.

#include "attention/hopper_tiles.cuh"
#include "ptx/shared.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "tile/head_quads.cuh"
#include "tile/row_weights.cuh"

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
      const bool there = !Cfg::edge_q || (at >= 0 && at < tile.seq_q);
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
