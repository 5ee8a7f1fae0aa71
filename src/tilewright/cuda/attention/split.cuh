#pragma once
// Attention of few queries on many keys. The keys of a head are shared by `parts` blocks; within a block they are
// shared by `key_warps` groups of warps. Nobody waits for another until the end: each group copies tiles of its own
// keys into its own ring, and keeps a maximum, a sum and a result of its own. Those are added in a fixed order, first
// in the block, then over blocks by attention/merge.cuh.
//
// The rows of a block's tile are pairs of a query and one of the `packed` heads that share a head of keys, so that keys
// and values are read once for all of them: row r is query r / packed, head r % packed of the group.
//
//     shared memory     Q                          b_r x d_head
//                       ring of key group 0        stages x (K b_c x d_head, V b_c x d_head)
//                       ring of key group 1 ...
//     at the end        results of key group 0     b_r x (d_head + 8) fp32, in place of all of that
//                       results of key group 1 ...
//                       maximum and sum            key_warps x b_r x 2 fp32

#include "attention/split_args.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/shared.cuh"
#include "tile/group_copy.cuh"
#include "tile/pieces.cuh"
#include "tile/score.cuh"
#include "tile/softmax.cuh"

template <class Cfg>
struct SplitBlock {
  using T = typename Cfg::in_type;
  static constexpr int d_head = Cfg::d_head, slice = d_head % 64 == 0 ? 64 : 32;
  static constexpr int warp_rows = Cfg::b_r / Cfg::row_warps, group_threads = 32 * Cfg::row_warps;
  static constexpr int pieces = warp_rows / 16, keys = Cfg::b_c / 16, depth = d_head / 16;
  static_assert(warp_rows % 16 == 0 && Cfg::b_c % 16 == 0, "a warp's tiles are whole 16 x 16 pieces");

  using TileQ = HeadTile<Cfg::b_r, d_head, slice, true>;
  using Tile = HeadTile<Cfg::b_c, d_head, slice, true>;
  using ReaderQ = StridedReader<TileQ, down>;
  using ReaderK = StridedReader<Tile, across>;
  using ReaderV = StridedReader<Tile, down>;
  using Scores = Score<Cfg>;
  using Copy = GroupCopy<Tile, group_threads, Cfg::edge_k>;
  static constexpr int pair_bytes = 2 * Tile::bytes, ring_bytes = Cfg::stages * pair_bytes;
  static constexpr int row_floats = d_head + 8;  // eight floats more: neighbouring rows fall on other banks

  const SplitArgs& args;
  const SplitTile<Cfg> place;
  const Scores score;
  const unsigned shared;
  const int warp, group, warp_row;  // the warp's group of keys, and its first row in the tile

  Softmax<pieces, !Scores::rewrites, true, Scores::may_hide_rows, true> softmax;
  float out[pieces][2 * depth][4];

  __device__ SplitBlock(const SplitArgs& args, unsigned shared)
      : args(args), place(args, blockIdx.x, false), score(args, place, Cfg::b_r), shared(shared),
        warp(threadIdx.x / 32), group(warp / Cfg::row_warps), warp_row(warp % Cfg::row_warps * warp_rows) {}

  /// The tiles of keys of this part: first, and past the last.
  __device__ int first() const { return bound(place.part); }
  __device__ int end() const { return bound(place.part + 1); }

  __device__ void copy_q() const {
    constexpr int chunks = d_head / 8;
    for (int i = threadIdx.x; i < Cfg::b_r * chunks; i += Cfg::threads) {
      const int row = i / chunks, col = i % chunks * 8;
      const bool exists = place.row0 + row < place.rows();
      cp_async_16_or_zero<false>(shared + TileQ::place(row, col),
                                 exists ? place.q(args, place.row0 + row) + col : args.q, exists);
    }
  }

  /// The group's tiles: every key_warps-th of the part's.
  __device__ void walk(int first_tile, int end_tile) {
    const unsigned ring = shared + TileQ::bytes + group * ring_bytes;
    const int count = max(end_tile - first_tile - group + Cfg::key_warps - 1, 0) / Cfg::key_warps;
    const int key0 = (first_tile + group) * Cfg::b_c;
    Copy copy_k(ring, place.k(args), key0), copy_v(ring + Tile::bytes, place.v(args), key0);
    constexpr int step = Cfg::key_warps * Cfg::b_c;  // keys from one of the group's tiles to the next
    int next = 0, coming = 0;                        // of the ring: the tile to multiply, and the place to fill
    int page = Cfg::page && count > 0 ? place.page(args, key0) : 0;  // of the next tile: asked for one tile ahead
    auto bring = [&](int n) {
      if (n < count) {
        if constexpr (Cfg::page > 0) {
          const int in_page = (key0 + n * step) % Cfg::page;
          copy_k.move_to(page * args.k_batch + in_page * copy_k.source.row_stride);
          copy_v.move_to(page * args.v_batch + in_page * copy_v.source.row_stride);
          if (n + 1 < count) page = place.page(args, key0 + (n + 1) * step);
        }
        copy_k.start(coming * pair_bytes, key0 + n * step);
        copy_v.start(coming * pair_bytes, key0 + n * step);
        copy_k.advance(step), copy_v.advance(step);
      }
      cp_async_commit();
      coming = coming + 1 == Cfg::stages ? 0 : coming + 1;
    };

    copy_q();
#pragma unroll
    for (int n = 0; n < Cfg::stages - 1; ++n) bring(n);
    clear();
    cp_async_wait<Cfg::stages - 2>();
    __syncthreads();  // Q has landed for all
    using SharedQ = RowPieces<ReaderQ, pieces>;
    using HeldQ = Held<pieces, depth>;
    const SharedQ shared_q{ReaderQ(shared, warp_row)};
    HeldQ held_q;
    if constexpr (Cfg::load_q == 0) held_q.fill(shared_q);

    const ReaderK first_k(ring, 0);
    const ReaderV first_v(ring + Tile::bytes, 0);
    for (int n = 0; n < count; ++n) {
      cp_async_wait<Cfg::stages - 2>();
      group_sync<Cfg::row_warps, Cfg::key_warps>(group);  // the tile has landed for all; all have read the one before
      bring(n + Cfg::stages - 1);
      RowPieces<ReaderK, keys> k{first_k};
      ColumnPieces<ReaderV, depth> v{first_v};
      k.reader.at += next * pair_bytes, v.reader.at += next * pair_bytes;
      next = next + 1 == Cfg::stages ? 0 : next + 1;

      float s[pieces][2 * keys][4] = {};
      Held<pieces, keys> p;
      if constexpr (Cfg::load_q == 0)
        Steps<false>::run<T, true, depth>(s, held_q, k);
      else
        Steps<false>::run<T, true, depth>(s, shared_q, k);
      const int lane = threadIdx.x % 32, tile = first_tile + group + n * Cfg::key_warps;
      score.apply(s, place.row0 + warp_row + lane / 4, tile * Cfg::b_c + lane % 4 * 2, tile);
      softmax.template update<T, false>(s, p.piece, out, args.factor);
      Steps<false>::run<T, true, keys>(out, p, v);
    }
    softmax.finish();
    cp_async_wait<0>();
  }

  /// The groups' results together: to out, or where Cfg::parts says so to args.results.
  __device__ void store() {
    float* const results = shared_floats();
    float* const sums = results + Cfg::key_warps * Cfg::b_r * row_floats;
    const int lane = threadIdx.x % 32;
    __syncthreads();  // nothing of the ring is read any more
#pragma unroll
    for (int i = 0; i < 2 * pieces; ++i) {
      const int row = group * Cfg::b_r + warp_row + 8 * i + lane / 4;
#pragma unroll
      for (int n = 0; n < 2 * depth; ++n)
        *reinterpret_cast<float2*>(results + row * row_floats + 8 * n + lane % 4 * 2) =
            make_float2(out[i / 2][n][i % 2 * 2], out[i / 2][n][i % 2 * 2 + 1]);
      if (lane % 4 == 0) sums[2 * row] = softmax.max[i / 2][i % 2], sums[2 * row + 1] = softmax.sum[i / 2][i % 2];
    }
    __syncthreads();
    constexpr int chunks = d_head / 8;
    for (int i = threadIdx.x; i < Cfg::b_r * chunks; i += Cfg::threads) {
      const int row = i / chunks, col = i % chunks * 8;
      if (place.row0 + row >= place.rows()) return;
      float largest = minus_infinity(), sum = 0, value[8] = {};
#pragma unroll
      for (int g = 0; g < Cfg::key_warps; ++g) largest = fmaxf(largest, sums[2 * (g * Cfg::b_r + row)]);
#pragma unroll
      for (int g = 0; g < Cfg::key_warps; ++g) {
        const int at = g * Cfg::b_r + row;
        if (sums[2 * at + 1] == 0) continue;
        const float share = exp2_approx((sums[2 * at] - largest) * args.factor);
        sum += share * sums[2 * at + 1];
#pragma unroll
        for (int e = 0; e < 8; ++e) value[e] += share * results[at * row_floats + col + e];
      }
      put(row, col, largest, sum, value);
    }
  }

  /// Where no row of the block sees a key of the part.
  __device__ void store_nothing() const {
    constexpr int chunks = d_head / 8;
    for (int i = threadIdx.x; i < Cfg::b_r * chunks; i += Cfg::threads) {
      const int row = i / chunks;
      if (place.row0 + row >= place.rows()) return;
      float value[8] = {};
      put(row, i % chunks * 8, minus_infinity(), 0, value);
    }
  }

 private:
  __device__ int bound(int part) const {
    const int tiles = max(score.end - score.first, 0);
    if (Cfg::varlen || args.part_keys == 0) return score.first + int((long long)tiles * part / place.parts);
    return score.first + int(min((long long)part * (args.part_keys / Cfg::b_c), (long long)tiles));
  }
  __device__ float* shared_floats() const {
    extern __shared__ __align__(1024) unsigned char bytes[];
    return reinterpret_cast<float*>(bytes);
  }
  __device__ void clear() {
    softmax.clear();
#pragma unroll
    for (int i = 0; i < pieces; ++i)
#pragma unroll
      for (int j = 0; j < 2 * depth; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) out[i][j][e] = 0;
  }
  /// Eight columns of a row. Those of column 0 put its maximum and sum too.
  __device__ void put(int row, int col, float largest, float sum, float (&value)[8]) const {
    if constexpr (Cfg::split) {
      const long long at = place.slot(args, place.part) + row;
      if (col == 0) args.sums[at] = make_float2(largest, sum);
      if (sum == 0) return;
      float4* to = reinterpret_cast<float4*>(args.results + at * d_head + col);
      to[0] = make_float4(value[0], value[1], value[2], value[3]);
      to[1] = make_float4(value[4], value[5], value[6], value[7]);
    } else {
      place.put(args, place.row0 + row, col, largest, sum, value);
    }
  }
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    attention(const __grid_constant__ SplitArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if constexpr (Cfg::split) let_later_grids_start();
  SplitBlock<Cfg> block(args, shared_address(shared));
  if (Cfg::varlen && block.place.parts == 0) return;
  const int first = block.first(), end = block.end();
  if (first >= end) return block.store_nothing();
  block.walk(first, end);
  block.store();
}
