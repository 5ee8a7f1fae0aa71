#pragma once
// Partial sums of fp8. wgmma's fp8 form keeps 14 bits of a sum, so the products of one tile, at most 128 along k, are a
// sum of their own; a rounded fp32 operation takes it to the whole sums, with the scales of blocks where operands have
// some.
//
// Where registers allow, two partial sums take turns: while the tensor cores make one, the threads add up the other.
//
//     products      tile 0   tile 1   tile 2   tile 3
//     additions              tile 0   tile 1   tile 2
//
// Larger tiles are cut into parts of 64 x part_n, one after another; another warpgroup's products fill the gaps.

#include "ptx/wgmma_fp8.cuh"
#include "tile/block_scales.cuh"
#include "tile/ring.cuh"
#include "tile/wgmma_sums.cuh"

/// The operand that lies `bytes` after another, both in the 18 bits of address that count: one addition, where making
/// it anew takes ten instructions, which warps that also add up have no time for.
__device__ inline unsigned long long operand_after(unsigned long long operand, unsigned bytes) {
  return operand >> 32 << 32 | (unsigned(operand) + (bytes >> 4));
}

/// 0 or 1, as a type.
template <int turn>
struct Turn {
  static constexpr int value = turn;
};

template <class Cfg, class A, class B>
struct PromotedSums : WarpgroupAccumulators<Cfg, A, B> {
  using Base = WarpgroupAccumulators<Cfg, A, B>;
  using At = WarpgroupTiling<Cfg>;
  static constexpr int columns = Cfg::part_n / 8;  // of a part, in eights
  static constexpr int across = At::columns / columns, parts = At::products * across;
  using Scales = BlockScales<Cfg, 2 * At::products, Cfg::warp_n>;

  /// Whether there are registers for two partial sums of the whole tile, which take turns. Else there is one.
  static constexpr bool take_turns = parts == 1 && Cfg::warp_n <= 128;

  float part[1 + take_turns][columns][4];
  Scales now, before;  // of a tile, and of the one before

  __device__ void clear() {
    Base::clear();
#pragma unroll
    for (int turn = 0; turn <= take_turns; ++turn) {
#pragma unroll
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) part[turn][j][e] = 0;
      wgmma_arrived(part[turn]);
    }
    now.clear(), before.clear();
  }

  /// Starts the products of part `p` of the tiles whose operands are `a` and `b`, as one group, into part[turn].
  template <int turn>
  __device__ void start(unsigned long long a, unsigned long long b, int p) {
    using Product = Wgmma<typename Cfg::in_type, false, false, columns>;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step)
      Product::multiply(part[turn], operand_after(a, 2 * A::offset(p / across * 64, 16 * step)),
                        operand_after(b, 2 * B::offset(p % across * Cfg::part_n, 16 * step)), step > 0);
    wgmma_commit();
  }

  /// Adds part[turn], which is part `p` of a tile whose scales are `scales`, to the whole sums.
  template <int turn>
  __device__ void add(int p, const Scales& scales, int col0) {
    wgmma_arrived(part[turn]);
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& sum = this->value[p / across][p % across * columns + j][e];
        if constexpr (has_block_scales<Cfg>)
          sum = fmaf(part[turn][j][e], scales(p / across * 2 + e / 2, col0, (p % across * columns + j) * 8), sum);
        else
          sum += part[turn][j][e];
      }
  }

  /// Everything along k for the warpgroup's tile from (row0, col0) on. `tiles` has the operands' tiles, one after the
  /// other: wait() until one is there, a_after() and b_after() how far after the first, at a_at() and b_at(), it is,
  /// started() once its first products are,
  /// read_scales() of its blocks, turn() to the next, release_previous() when the one before that has been read.
  template <class Tiles>
  __device__ void multiply(Tiles& tiles, const GemmArgs& args, const KRange<Cfg>& range, const At& at, int row0,
                           int col0) {
    // Of a tile that is there: its scales, those of the one before are kept.
    const auto read_scales = [&](int tile) {
      before = now;
      if constexpr (has_block_scales<Cfg>) tiles.read_scales(now, tile, row0, col0, at);
    };
    const unsigned long long first_a = wgmma_operand_of<A>(tiles.a_at(), at.row0, 0);
    const unsigned long long first_b = wgmma_operand_of<B>(tiles.b_at(), at.col0, 0);
    clear();
    if (range.tiles == 0) return;
    int tile = 0;
    if constexpr (!take_turns) {
      for (; tile < range.tiles; ++tile) {
        tiles.wait();
        const unsigned long long a = operand_after(first_a, tiles.a_after()),
                                 b = operand_after(first_b, tiles.b_after());
#pragma unroll
        for (int p = 0; p < parts; ++p) {
          start<0>(a, b, p);
          if (p == 0) tiles.started(), read_scales(tile);
          wgmma_wait<0>();
          if (p + 1 == parts) tiles.turn(), tiles.release_previous();
          add<0>(p, now, col0);
        }
      }
    } else {
      const auto begin = [&](auto turn) {
        tiles.wait();
        start<decltype(turn)::value>(operand_after(first_a, tiles.a_after()), operand_after(first_b, tiles.b_after()),
                                     0);
        tiles.started();
        read_scales(tile);
      };
      // The sums of the tile before, while the products of this one go on.
      const auto add_previous = [&](auto turn) {
        wgmma_wait<1>();
        tiles.release_previous();
        add<decltype(turn)::value>(0, before, col0);
        tiles.turn(), ++tile;
      };
      // The first tile is apart: the compiler then knows that one group is under way whenever a tile begins, and does
      // not wait for each.
      begin(Turn<0>());
      tiles.turn(), ++tile;
      while (tile + 1 < range.tiles) {
        begin(Turn<1>());
        add_previous(Turn<0>());
        begin(Turn<0>());
        add_previous(Turn<1>());
      }
      const auto add_last = [&](auto turn) {
        wgmma_wait<0>();
        tiles.release_previous();
        add<decltype(turn)::value>(0, now, col0);
      };
      if (tile < range.tiles) {
        begin(Turn<1>());
        add_previous(Turn<0>());
        add_last(Turn<1>());
      } else {
        add_last(Turn<0>());
      }
    }
  }
};
