#pragma once
// What a block of an attention kernel has and can do; a rung's walk puts it in order, and its choices fill it in.
//
// A block makes b_r rows of out of one head: Q's tile stays, tiles of b_c keys and values pass. Its warps share the
// rows evenly: each makes S = Q K^T for its rows, turns it to weights P in its registers, and adds P V to out. P needs
// no shared memory: the accumulators of S are, packed in pairs, the left operand's registers (ptx/mma.cuh).
//
//     shared memory     Q (later out)   b_r x d_head        bytes 0 ..
//                       K               b_c x d_head        after Q
//                       V               b_c x d_head        after K

#include "attention/entries.cuh"
#include "ptx/shared.cuh"
#include "tile/head_copy.cuh"
#include "tile/head_store.cuh"
#include "tile/pieces.cuh"
#include "tile/score.cuh"
#include "tile/softmax.cuh"

/// A block's batch entry, heads and first row.
template <class Cfg, class Rung>
struct Place {
  int batch, head, kv_head, row0, seq_q, seq_k;
  int start_q = 0, start_k = 0;  // Cfg::varlen: the entry's first rows

  __device__ Place(const AttentionArgs& args) : head(blockIdx.y), seq_q(args.seq_q), seq_k(args.seq_k) {
    int tile = Cfg::many ? blockIdx.z : blockIdx.x, tiles = Cfg::many ? gridDim.z : gridDim.x;
    if constexpr (Cfg::varlen) {
      const auto first_of = [&](int entry) { return first_tile_of(args, entry, Cfg::b_r, 1); };
      batch = entry_of(tile, args.entries, first_of);
      const Entry entry(args, batch);
      tile -= first_of(batch);
      start_q = entry.start_q, seq_q = entry.seq_q, start_k = entry.start_k, seq_k = entry.seq_k;
      tiles = (seq_q + Cfg::b_r - 1) / Cfg::b_r;  // the block past them has no rows
      if (tile < 0) tile = max(tiles, 0);         // starts that do not begin with 0
    } else {
      batch = Cfg::many ? blockIdx.x : blockIdx.z;
    }
    // Under a causal mask the last rows see most keys: walked first, they do not end the grid alone.
    if (Rung::heavy_first && Cfg::is_causal && tile < tiles) tile = tiles - 1 - tile;
    row0 = tile * Cfg::b_r;
    kv_head = Rung::static_strides ? head / Cfg::group : head / args.group;
  }

  __device__ HeadSource q(const AttentionArgs& args) const {
    const long long row = stride(Cfg::q_stride, args.q_row);
    return {of(args.q, args.q_batch, args.q_head, head, start_q * row), row, seq_q};
  }
  __device__ HeadSource k(const AttentionArgs& args) const {
    const long long row = stride(Cfg::k_stride, args.k_row);
    return {of(args.k, args.k_batch, args.k_head, kv_head, start_k * row), row, seq_k};
  }
  __device__ HeadSource v(const AttentionArgs& args) const {
    const long long row = stride(Cfg::v_stride, args.v_row);
    return {of(args.v, args.v_batch, args.v_head, kv_head, start_k * row), row, seq_k};
  }
  /// Row row0 of out, and its row stride.
  __device__ unsigned short* out(const AttentionArgs& args) const {
    const long long row = out_stride(args);
    return const_cast<unsigned short*>(of(args.out, args.out_batch, args.out_head, head, start_q * row)) + row0 * row;
  }
  __device__ long long out_stride(const AttentionArgs& args) const { return stride(Cfg::out_stride, args.out_row); }
  /// The row's place in lse.
  __device__ float* lse(const AttentionArgs& args, int row) const {
    if constexpr (Cfg::varlen) return args.lse + (long long)head * args.seq_q + start_q + row;
    return args.lse + ((long long)batch * gridDim.y + head) * seq_q + row;
  }

 private:
  __device__ const unsigned short* of(const void* base, long long batch_stride, long long head_stride, int h,
                                      long long start) const {
    return static_cast<const unsigned short*>(base) + (Cfg::varlen ? start : batch * batch_stride) + h * head_stride;
  }
  static __device__ long long stride(int known, long long given) {
    return Rung::static_strides && known > 0 ? known : given;
  }
};

template <class Cfg, class Rung>
struct Block {
  using T = typename Cfg::in_type;
  static constexpr int warps = Cfg::n_warps, threads = 32 * warps, warp_rows = Cfg::b_r / warps;
  static constexpr int d_head = Cfg::d_head, slice = Rung::slice(d_head);
  static constexpr int pieces = warp_rows / 16, keys = Cfg::b_c / 16, depth = d_head / 16;  // of 16 rows, keys, columns
  static_assert(warp_rows % 16 == 0 && Cfg::b_c % 16 == 0, "a warp's tiles are whole 16 x 16 pieces");

  using TileQ = HeadTile<Cfg::b_r, d_head, slice, Rung::swizzled>;
  using TileKV = HeadTile<Cfg::b_c, d_head, slice, Rung::swizzled>;
  using ReaderQ = typename Rung::template Reader<TileQ, down>;
  using ReaderK = typename Rung::template Reader<TileKV, Rung::k_order>;
  using ReaderV = typename Rung::template Reader<TileKV, down>;
  using SharedQ = RowPieces<ReaderQ, pieces>;
  using SharedK = RowPieces<ReaderK, keys>;
  using SharedV = ColumnPieces<ReaderV, depth>;
  static constexpr bool held_q = Cfg::load_q == 0, held_k = Cfg::load_k == 0, held_v = Cfg::load_v == 0;
  using HeldQ = Held<pieces, depth>;
  using Product = typename Rung::template Product<Cfg>;
  using Scores = Score<Cfg>;

  const AttentionArgs& args;
  const Place<Cfg, Rung> place;
  const Scores score;
  const unsigned tile_q, tile_k, tile_v;
  const int warp_row;  // of the warp's first row in the tile

  typename Rung::template CopyQ<TileQ, threads, Cfg::edge_q> copy_q;
  typename Rung::template CopyKV<TileKV, threads, Cfg::edge_k> copy_k, copy_v;
  SharedQ shared_q;
  SharedK shared_k;
  SharedV shared_v;
  HeldQ q;

  Softmax<pieces, Rung::fused && !Scores::rewrites, Rung::lazy, Scores::may_hide_rows> softmax;
  float s[pieces][2 * keys][4];
  Held<pieces, keys> p;
  float out[pieces][2 * depth][4];

  __device__ Block(const AttentionArgs& args, unsigned shared)
      : args(args), place(args), score(args, place, Cfg::b_r), tile_q(shared), tile_k(shared + TileQ::bytes),
        tile_v(shared + TileQ::bytes + TileKV::bytes), warp_row(threadIdx.x / 32 * warp_rows),
        copy_q(tile_q, place.q(args), place.row0), copy_k(tile_k, place.k(args), tile(0) * Cfg::b_c),
        copy_v(tile_v, place.v(args), tile(0) * Cfg::b_c), shared_q{ReaderQ(tile_q, warp_row)},
        shared_k{ReaderK(tile_k, 0)}, shared_v{ReaderV(tile_v, 0)} {}

  /// The number of tiles of keys that the block walks, and the n-th of them.
  __device__ int tiles() const { return score.end - score.first; }
  __device__ int tile(int n) const { return Rung::backwards ? score.end - 1 - n : score.first + n; }

  __device__ void start_q() { copy_q.start(place.row0); }
  __device__ void start_k(int n) { copy_k.start(tile(n) * Cfg::b_c); }
  __device__ void start_v(int n) { copy_v.start(tile(n) * Cfg::b_c); }

  /// Once Q has landed: where the config keeps it in registers, there it goes.
  __device__ void hold_q() {
    if constexpr (held_q) q.fill(shared_q);
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

  /// S = Q K^T.
  __device__ void multiply_qk() {
#pragma unroll
    for (int i = 0; i < pieces; ++i)
#pragma unroll
      for (int j = 0; j < 2 * keys; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][j][e] = 0;
    constexpr bool paired = Rung::k_order == across;
    if constexpr (held_k) {
      Held<keys, depth> k;
      k.fill(shared_k);
      if constexpr (held_q)
        Product::template run<T, paired, depth>(s, q, k);
      else
        Product::template run<T, paired, depth>(s, shared_q, k);
    } else if constexpr (held_q) {
      Product::template run<T, paired, depth>(s, q, shared_k);
    } else {
      Product::template run<T, paired, depth>(s, shared_q, shared_k);
    }
  }

  /// S becomes P. `first`: of the first tile, which out and sums need not follow.
  template <bool first>
  __device__ void weigh(int n) {
    const int lane = threadIdx.x % 32;
    score.apply(s, place.row0 + warp_row + lane / 4, tile(n) * Cfg::b_c + lane % 4 * 2, tile(n));
    softmax.template update<T, first>(s, p.piece, out, args.factor);
  }

  /// out += P V; out = P V at first.
  template <bool first>
  __device__ void multiply_pv() {
    if constexpr (first) {
#pragma unroll
      for (int i = 0; i < pieces; ++i)
#pragma unroll
        for (int j = 0; j < 2 * depth; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) out[i][j][e] = 0;
    }
    if constexpr (held_v) {
      Held<depth, keys> v;
      v.fill(shared_v);
      Product::template run<T, true, keys>(out, p, v);
    } else {
      Product::template run<T, true, keys>(out, p, shared_v);
    }
  }

  /// out / sum to global memory, and log(sum) + max. All copies of the warp have landed.
  __device__ void store() {
    using Writer = typename Rung::template Writer<TileQ>;
    const int lane = threadIdx.x % 32;
    softmax.finish();
    const Writer writer(tile_q, warp_row);
    __syncwarp();  // every lane has read the last of Q
#pragma unroll
    for (int i = 0; i < 2 * pieces; ++i) {
      const float sum = softmax.sum[i / 2][i % 2], max = softmax.max[i / 2][i % 2];
      const bool none = Scores::may_hide_rows && sum == 0;
      const float inverse = none ? 0.f : 1.f / sum;
#pragma unroll
      for (int n = 0; n < 2 * depth; ++n) {
        const float* two = out[i / 2][n] + i % 2 * 2;
        if constexpr (Rung::multiply_inverse)
          writer.put(i, n, pack<T>(two[0] * inverse, two[1] * inverse));
        else
          writer.put(i, n, none ? 0u : pack<T>(__fdividef(two[0], sum), __fdividef(two[1], sum)));
      }
      if constexpr (Cfg::with_lse) {
        const int row = place.row0 + warp_row + 8 * i + lane / 4;
        constexpr float ln_2 = 0.6931471805599453f;
        if (lane % 4 == 0 && (!Cfg::edge_q || row < place.seq_q))
          *place.lse(args, row) =
              none ? minus_infinity() : fmaf(max, Cfg::scale_first ? 1.f : args.scale, __log2f(sum) * ln_2);
      }
    }
    __syncwarp();
    store_rows<TileQ, warp_rows, typename Rung::Store, Cfg::edge_q>(tile_q, warp_row, place.out(args),
                                                                    place.out_stride(args), place.seq_q - place.row0);
  }

  /// Writes 0, and -inf to lse, where no query of the block sees any key.
  __device__ void store_nothing() {
    unsigned short* to = place.out(args);
    const long long stride = place.out_stride(args);
    for (int i = threadIdx.x; i < Cfg::b_r * d_head / 8; i += threads) {
      const int row = i / (d_head / 8), col = i % (d_head / 8) * 8;
      if (place.row0 + row < place.seq_q) *reinterpret_cast<uint4*>(to + row * stride + col) = make_uint4(0, 0, 0, 0);
    }
    if constexpr (Cfg::with_lse) {
      for (int row = place.row0 + threadIdx.x; row < min(place.row0 + Cfg::b_r, place.seq_q); row += threads)
        *place.lse(args, row) = minus_infinity();
    }
  }
};
