#pragma once
// The gradients of attention: one walk, by keys or by queries.
//
// A block keeps `rows` rows of two operands, and tiles of `cols` rows of two others pass. Its warps share the rows.
//
//                   kept         passing      products a tile                          stays in registers
//     by keys       K, V         Q, grad      S^T = K Q^T   dP^T = V grad^T            dV += P^T grad   dK += dS^T Q
//     by queries    Q, grad      K, V         S   = Q K^T   dP   = grad V^T            dQ += dS K
//
// P and dS need no shared memory there: the accumulators of S, packed in pairs, are the left operand's registers
// (ptx/mma.cuh). Keys walk over the query heads of their group, one after the other, so that sums have a fixed order.
// Cfg::sums (by keys): the walk also makes dQ, so that dS is made once. dS goes through shared memory, since it is
// multiplied with all of the block's keys; it is multiplied under the next tile, whose barrier it shares.
// Cfg::alone: those are all keys there are, so that a tile's dQ is whole and stored at once. The walk passes all
// queries, seen or not, and makes their statistics itself.
//
//     shared memory     kept_1, kept_2          rows x d_head each (later what is stored)
//                       passing_1, passing_2    Cfg::stages buffers of cols x d_head each
//                       dS                      2 buffers of rows x cols (Cfg::sums)
//                       statistics              Cfg::stages buffers of cols pairs of floats (by keys)

#include "attention/backward_args.cuh"
#include "attention/backward_pairs.cuh"
#include "attention/backward_sums.cuh"
#include "attention/query_rows.cuh"
#include "ptx/red.cuh"
#include "ptx/shared.cuh"
#include "ptx/turns.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/head_copy.cuh"
#include "tile/head_store.cuh"
#include "tile/pieces.cuh"

/// A reader whose columns begin at `col`, a multiple of what its warp reads.
template <class Tile, int order>
__device__ inline StridedReader<Tile, order> reader_at(unsigned tile, int row, int col) {
  StridedReader<Tile, order> reader(tile, row);
  reader.at = tile + Tile::place(row + piece_row<order>(), piece_col<order>() + col);
  return reader;
}

/// The first columns of a tile's rows, a multiple of 32, as store_rows takes them.
template <class Tile, int columns>
struct ThereOf : Tile {
  static constexpr int cols = columns, span = cols % 64 == 0 ? Tile::span : 4;
};

/// The statistics of columns, from shared memory: two neighbouring queries at a time.
template <bool wide>
struct ColumnStats {
  struct Two {
    float4 first, second;
  };
  const float4* at;
  __device__ Two column(int j) const {
    if constexpr (wide) return {at[8 * j], at[8 * j + 1]};
    const float4 both = at[4 * j];
    return {float4{both.x, both.y, 1, 0}, float4{both.z, both.w, 1, 0}};
  }
  __device__ QueryStats of(const Two& two, int, int, int e) const {
    const float4& one = e ? two.second : two.first;
    return {one.x, one.y, one.z};
  }
};
/// The statistics of this thread's rows.
template <int m>
struct RowStats {
  QueryStats row[m][2];
  __device__ int column(int) const { return 0; }
  __device__ QueryStats of(int, int i, int half, int) const { return row[i][half]; }
};

/// Where a walk is: tiles of one head, then of the next.
struct Cursor {
  int head, tile;
  __device__ Cursor next(int first, int end) const {
    return tile + 1 == end ? Cursor{head + 1, first} : Cursor{head, tile + 1};
  }
};

/// Blocks run in sections of gridDim.x heads, all tiles of each: what their heads share stays in the L2 meanwhile.
/// Where Cfg::parts blocks share what passes by a tile of keys, they stand next to one another.
__device__ inline int head_of_block() { return (blockIdx.z * gridDim.x + blockIdx.x) / Cfg::parts; }
__device__ inline int part_of_block() { return (blockIdx.z * gridDim.x + blockIdx.x) % Cfg::parts; }
__device__ inline int tile_of_block() { return Cfg::backwards ? gridDim.y - 1 - blockIdx.y : blockIdx.y; }

template <class Cfg>
struct Walk {
  using T = typename Cfg::in_type;
  static constexpr bool by_keys = Cfg::by_keys;
  static constexpr int warps = Cfg::n_warps, threads = 32 * warps, along = Cfg::along;
  static constexpr int warp_rows = Cfg::rows / (warps / along), warp_cols = Cfg::cols / along;
  static constexpr int d_head = Cfg::d_head, slice = Cfg::slice, warp_d = d_head / along;
  static constexpr int d_there = Cfg::d_there;  // the columns of a row; those of a tile after them are zeros
  static constexpr int v_there = Cfg::d_v;      // the same of V and grad, which only walks of one gradient let differ
  static constexpr int pieces = warp_rows / 16, across_pieces = warp_cols / 16, depth = d_there / 16;
  static_assert(warp_rows % 16 == 0 && warp_cols % 16 == 0 && warp_d % 16 == 0, "parts are whole 16 x 16 pieces");
  static constexpr bool makes_1 = Cfg::makes_1, makes_2 = Cfg::makes_2;  // dK or dQ; dV

  using Kept = HeadTile<Cfg::rows, d_head, slice, true>;
  using Passing = HeadTile<Cfg::cols, d_head, slice, true>;
  static constexpr int d_v = v_there == d_there ? d_head : v_there;
  using KeptV = HeadTile<Cfg::rows, d_v, slice, true>;
  using PassingV = HeadTile<Cfg::cols, d_v, slice, true>;
  using Left = StridedReader<Kept, down>;
  using Right = StridedReader<Passing, across>;
  using Down = StridedReader<Passing, down>;
  using Product = Steps<Cfg::buffer>;
  static constexpr int stat_floats = Cfg::wide ? 4 : 2, stats_bytes = by_keys ? 4 * stat_floats * Cfg::cols : 0;
  static constexpr bool edge_rows = by_keys ? Cfg::edge_k : Cfg::edge_q,
                        edge_cols = by_keys ? Cfg::edge_q : Cfg::edge_k;

  // dS as it is written, a row a key, and its product with K
  using Sums = SumsTile<Cfg>;
  using Scores = HeadTile<Cfg::rows, Cfg::cols, Cfg::cols % 64 == 0 ? 64 : 32, true>;
  static constexpr int scores_bytes = Cfg::sums || along > 1 ? Scores::bytes : 0;

  static constexpr int stages = Cfg::stages;
  static constexpr int shared_bytes = 2 * Kept::bytes + stages * (2 * Passing::bytes + stats_bytes) + 2 * scores_bytes;

  const BackwardArgs& args;
  const RowPlace<Cfg, !by_keys, Cfg::rows> place;
  const Pairs<Cfg> pairs;
  const unsigned kept_1, kept_2, passing_1, passing_2, scores, stats;
  unsigned char* stats_pointer;
  const int warp_row, warp_col, part, lane;  // part: which of `along` warps that share rows this one is
  int head_0, heads;                         // the query heads that are walked
  int first, end;                            // the tiles of columns

  static constexpr int acc_cols = (along == 1 ? d_there : warp_d) / 8, v_cols = (along == 1 ? v_there : warp_d) / 8;
  float acc_1[makes_1 ? pieces : 1][acc_cols][4], acc_2[makes_2 ? pieces : 1][v_cols][4];

  __device__ Walk(const BackwardArgs& args, unsigned char* shared)
      : args(args), place(args, head_of_block(), tile_of_block()), pairs(args, place), kept_1(shared_address(shared)),
        kept_2(kept_1 + Kept::bytes), passing_1(kept_2 + Kept::bytes), passing_2(passing_1 + stages * Passing::bytes),
        scores(passing_2 + stages * Passing::bytes), stats(scores + 2 * scores_bytes),
        stats_pointer(shared + 2 * Kept::bytes + 2 * stages * Passing::bytes + 2 * scores_bytes),
        warp_row(threadIdx.x / 32 % (warps / along) * warp_rows),
        warp_col(threadIdx.x / 32 / (warps / along) * warp_cols), part(threadIdx.x / 32 / (warps / along)),
        lane(threadIdx.x % 32), head_0(by_keys ? place.head * args.group : place.head),
        heads(by_keys ? args.group : 1) {
    pairs.range(place.row0, first, end);
    if (place.is_rest(args)) end = first;
    if constexpr (Cfg::alone) first = 0, end = (place.seq_q + Cfg::cols - 1) / Cfg::cols;
  }

  // ---- what lies where

  __device__ const unsigned short* q(int head) const { return of(args.q) + place.at_q(args.q_at, head); }
  __device__ const unsigned short* grad(int head) const { return of(args.grad) + place.at_q(args.grad_at, head); }
  __device__ const unsigned short* k(int head) const { return of(args.k) + place.at_k(args.k_at, head); }
  __device__ const unsigned short* v(int head) const { return of(args.v) + place.at_k(args.v_at, head); }

  template <class Tile, bool edge>
  __device__ void copy(unsigned tile, const unsigned short* base, long long row_stride, int row0, int rows) const {
    using Map = CopyMap<Tile, threads, threads>;
    const HeadSource source{base, row_stride, rows};
    copy_rows<Tile, threads, edge>(tile + Tile::place(Map::row(), Map::col()),
                                   base + (row0 + Map::row()) * row_stride + Map::col(), source, row0);
  }
  __device__ void start_kept() const {
    if constexpr (by_keys) {
      copy<Kept, edge_rows>(kept_1, k(place.head), args.k_at[2], place.row0, place.seq_k);
      if constexpr (makes_1) copy<Kept, edge_rows>(kept_2, v(place.head), args.v_at[2], place.row0, place.seq_k);
    } else {
      copy<Kept, edge_rows>(kept_1, q(place.head), args.q_at[2], place.row0, place.seq_q);
      copy<Kept, edge_rows>(kept_2, grad(place.head), args.grad_at[2], place.row0, place.seq_q);
    }
  }
  __device__ void start(int head, int tile, int buffer) const {
    const unsigned to_1 = passing_1 + buffer * Passing::bytes, to_2 = passing_2 + buffer * Passing::bytes;
    const int row0 = tile * Cfg::cols;
    if constexpr (by_keys) {
      copy<Passing, edge_cols>(to_1, q(head), args.q_at[2], row0, place.seq_q);
      copy<Passing, edge_cols>(to_2, grad(head), args.grad_at[2], row0, place.seq_q);
      if constexpr (Cfg::alone) {
        float* to = reinterpret_cast<float*>(stats_pointer + buffer * stats_bytes);
        QueryRows<Cfg, decltype(place), threads>{args, place, head}.fill(to, row0, Cfg::cols);
        return;
      }
      const float* from = args.stats + stat_floats * (place.padded(args, head) + row0);
      for (int i = threadIdx.x; i < stats_bytes / 16; i += threads)
        cp_async_16<false>(stats + buffer * stats_bytes + i * 16, from + i * 4);
    } else {
      copy<Passing, edge_cols>(to_1, k(place.head / args.group), args.k_at[2], row0, place.seq_k);
      copy<Passing, edge_cols>(to_2, v(place.head / args.group), args.v_at[2], row0, place.seq_k);
    }
  }

  // ---- a tile

  template <int n>
  static __device__ void clear(float (&x)[n][4]) {
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = 0;
  }

  template <class Stats>
  __device__ void weigh(float (&s)[pieces][2 * across_pieces][4], float (&dp)[pieces][2 * across_pieces][4], int head,
                        int tile, const Stats& of) const {
    const int row = place.row0 + warp_row + lane / 4, col = tile * Cfg::cols + warp_col + lane % 4 * 2;
    if (pairs.hides(place.row0, tile * Cfg::cols))
      pairs.template apply<true>(s, dp, row, col, head, of);
    else
      pairs.template apply<false>(s, dp, row, col, head, of);
  }

  /// `before`: the tile of the turn before, if there was `any`.
  template <class Stats>
  __device__ void pass(int head, int tile, int buffer, const Stats& of, bool any, int before_head, int before_tile) {
    const unsigned from_1 = passing_1 + buffer * Passing::bytes, from_2 = passing_2 + buffer * Passing::bytes;
    float s[pieces][2 * across_pieces][4], dp[pieces][2 * across_pieces][4];
#pragma unroll
    for (int i = 0; i < pieces; ++i) clear(s[i]), clear(dp[i]);
    using Rows = RowPieces<Left, pieces>;
    using Columns = RowPieces<Right, across_pieces>;
    Product::template run<T, true, depth>(s, Rows{Left(kept_1, warp_row)}, Columns{Right(from_1, warp_col)});
    if constexpr (makes_1)
      Product::template run<T, true, depth>(dp, Rows{Left(kept_2, warp_row)}, Columns{Right(from_2, warp_col)});
    weigh(s, dp, head, tile, of);
    Held<pieces, across_pieces> p, ds;
    if constexpr (makes_2) packed(p, s);
    if constexpr (makes_1) packed(ds, dp);
    using Summed = ColumnPieces<Down, depth / along>;
    const Summed summed_1{reader_at<Passing, down>(from_1, 0, part * warp_d)};
    const Summed summed_2{reader_at<Passing, down>(from_2, 0, part * warp_d)};
    if constexpr (along == 1) {
      if constexpr (makes_2) Product::template run<T, true, across_pieces>(acc_2, p, summed_2);
      if constexpr (Cfg::sums) keep(ds, scores + buffer * scores_bytes);
      if constexpr (makes_1) Product::template run<T, true, across_pieces>(acc_1, ds, summed_1);
    } else {
      if constexpr (makes_2) keep(p, scores + scores_bytes);
      if constexpr (makes_1) keep(ds, scores);
      __syncthreads();  // P and dS are there for all
      using Weights = RowPieces<StridedReader<Scores, down>, pieces>;
      if constexpr (makes_2)
        Product::template run<T, true, Cfg::cols / 16>(
            acc_2, Weights{StridedReader<Scores, down>(scores + scores_bytes, warp_row)}, summed_2);
      if constexpr (Cfg::sums) add(head, tile, 0, any, before_head, before_tile);
      if constexpr (makes_1)
        Product::template run<T, true, Cfg::cols / 16>(acc_1, Weights{StridedReader<Scores, down>(scores, warp_row)},
                                                       summed_1);
    }
  }

  static __device__ void packed(Held<pieces, across_pieces>& to, const float (&x)[pieces][2 * across_pieces][4]) {
#pragma unroll
    for (int j = 0; j < 2 * across_pieces; ++j)
#pragma unroll
      for (int i = 0; i < pieces; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.piece[j / 2][i][j % 2 * 2 + half] = pack<T>(x[i][j][2 * half], x[i][j][2 * half + 1]);
  }

  // ---- dQ where the walk is by keys

  /// P or dS to shared memory.
  __device__ void keep(const Held<pieces, across_pieces>& x, unsigned tile) const {
    StridedWriter<Scores> writer(tile, warp_row);
    writer.at = tile + Scores::place(warp_row + lane / 4, warp_col + lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < 2 * across_pieces; ++j)
#pragma unroll
      for (int i = 0; i < pieces; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) writer.put(2 * i + half, j, x.piece[j / 2][i][j % 2 * 2 + half]);
  }

  /// dQ of a tile += dS K, or = where this is all of it. All of dS is there for all. `before`: the tile that was added
  /// to before, if `any` was.
  __device__ void add(int head, int tile, int buffer, bool any, int before_head, int before_tile) const {
    using Turned = StridedReader<Scores, across>;
    using Keys = StridedReader<Kept, down>;
    float sum[Sums::pieces][2 * Sums::depth][4];
#pragma unroll
    for (int i = 0; i < Sums::pieces; ++i) clear(sum[i]);
    const ColumnPieces<Turned, Sums::pieces> left{
        reader_at<Scores, across>(scores + buffer * scores_bytes, 0, Sums::row())};
    const ColumnPieces<Keys, Sums::depth> right{reader_at<Kept, down>(kept_1, 0, Sums::col())};
    Product::template run<T, true, Cfg::rows / 16>(sum, left, right);
    if constexpr (Cfg::alone) return store_sum(sum, head, tile);
    take_turn(head, tile, any, before_head, before_tile);
    float* to = args.sums + (place.padded(args, head) + tile * Cfg::cols) * d_head;
#pragma unroll
    for (int i = 0; i < Sums::pieces; ++i)
#pragma unroll
      for (int j = 0; j < 2 * Sums::depth; ++j) red_add_4(to + Sums::place(i, j), sum[i][j]);
  }

  template <int m, int n>
  __device__ void store_sum(const float (&sum)[m][n][4], int head, int tile) const {
    unsigned short* to = of(args.dq) + place.at_q(args.dq_at, head) + Sums::col() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const int row = tile * Cfg::cols + Sums::row() + 8 * i + lane / 4;
      if (edge_cols && row >= place.seq_q) continue;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const float* two = sum[i / 2][j] + i % 2 * 2;
        *reinterpret_cast<unsigned*>(to + row * args.dq_at[2] + 8 * j) =
            pack<T>(two[0] * args.scale, two[1] * args.scale);
      }
    }
  }

  // ---- the order of additions, Cfg::ordered

  // Blocks of keys add to a tile of dQ in their own order, so that its sum is the same bits at every run. A block waits
  // only for one that was started before it. It gives its turn on a tile later, when what it added has long arrived.

  __device__ int* turn_of(int head, int tile) const {
    return args.turns + (place.padded(args, head) + tile * Cfg::cols) / 32;
  }
  /// Waits for the turn to add to a tile, and gives the one on the tile before, if there was one.
  __device__ void take_turn(int head, int tile, bool gives, int before_head, int before_tile) const {
    if constexpr (Cfg::ordered) {
      const int mine = place.row0 / Cfg::rows;
      __threadfence();
      if (threadIdx.x == 0 && mine > 0) {
        int their_first, their_end;
        pairs.range(place.row0 - Cfg::rows, their_first, their_end);
        if (their_first <= tile && tile < their_end)
          while (load_acquire(turn_of(head, tile)) != mine) {
          }
      }
      __syncthreads();
      if (gives && threadIdx.x == 0) store_release(turn_of(before_head, before_tile), mine + 1);
      __syncwarp();
    }
  }
  /// Gives the turn on the last tile.
  __device__ void give_turn(int head, int tile) const {
    if constexpr (Cfg::ordered) {
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) store_release(turn_of(head, tile), place.row0 / Cfg::rows + 1);
    }
  }

  // ---- all

  /// Of the queries that pass, in a buffer.
  __device__ ColumnStats<Cfg::wide> column_stats(int buffer) const {
    return {reinterpret_cast<const float4*>(stats_pointer + buffer * stats_bytes) +
            (warp_col / 2 + lane % 4) * (stat_floats / 2)};
  }
  /// Of the queries that are kept.
  __device__ RowStats<pieces> row_stats() const {
    RowStats<pieces> of{};
    if constexpr (!by_keys) {
      const float* from = args.stats + stat_floats * (place.padded(args, place.head) + place.row0);
#pragma unroll
      for (int i = 0; i < pieces; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* one = from + stat_floats * (warp_row + 16 * i + 8 * half + lane / 4);
          of.row[i][half] = {one[0], one[1], Cfg::wide ? one[2] : 1.f};
        }
    }
    return of;
  }

  __device__ void run() {
    if (place.row0 >= place.seq()) return;
#pragma unroll
    for (int i = 0; i < (makes_1 ? pieces : 1); ++i) clear(acc_1[i]);
#pragma unroll
    for (int i = 0; i < (makes_2 ? pieces : 1); ++i) clear(acc_2[i]);
    const int steps = (end - first) * heads;
    if (steps > 0) {
      start_kept();
      start(head_0, first, 0);
      cp_async_commit();
      constexpr bool delayed = Cfg::sums && along == 1;  // sums are of the tile before
      Cursor now{head_0, first}, before = now, last = now;
      const RowStats<pieces> of = row_stats();
      for (int n = 0; n < steps; ++n) {
        const Cursor next = now.next(first, end);
        cp_async_wait<0>();
        __syncthreads();  // this tile has landed for all, and dS of the one before; all have read the other buffers
        if (n + 1 < steps) start(next.head, next.tile, (n + 1) % 2);
        cp_async_commit();
        if constexpr (delayed) {
          if (n > 0) add(before.head, before.tile, (n + 1) % 2, n > 1, last.head, last.tile);
        }
        if constexpr (by_keys)
          pass(now.head, now.tile, n % 2, column_stats(n % 2), n > 0, before.head, before.tile);
        else
          pass(now.head, now.tile, n % 2, of, n > 0, before.head, before.tile);
        last = before, before = now, now = next;
      }
      if constexpr (delayed) {
        __syncthreads();
        add(before.head, before.tile, (steps + 1) % 2, steps > 1, last.head, last.tile);
      }
      if constexpr (Cfg::sums) give_turn(before.head, before.tile);
      __syncthreads();  // all have read what was kept
    }
    store_all();
  }

  /// A barrier of the warps that multiply.
  static __device__ void meet() {
    if constexpr (Cfg::threads == threads)
      __syncthreads();
    else
      named_barrier_sync(1, threads);
  }

  /// What the block made, to global memory.
  __device__ void store_all() const {
    if constexpr (by_keys) {
      if constexpr (makes_1)
        store(acc_1, kept_1, args.scale, of(args.dk) + place.at_k(args.dk_at, place.head), args.dk_at[2]);
      if constexpr (makes_2) store(acc_2, kept_2, 1.f, of(args.dv) + place.at_k(args.dv_at, place.head), args.dv_at[2]);
    } else {
      store(acc_1, kept_1, args.scale, of(args.dq) + place.at_q(args.dq_at, place.head), args.dq_at[2]);
    }
  }

  /// A warp's part, times a factor, through a tile to where row 0 of the entry lies, in rows of `there` columns.
  template <class Tile = Kept, int there = d_there, int columns>
  __device__ void store(const float (&acc)[pieces][columns][4], unsigned tile, float factor, unsigned short* to,
                        long long row_stride) const {
    StridedWriter<Tile> writer(tile, warp_row);
    writer.at = tile + Tile::place(warp_row + lane / 4, part * warp_d + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2 * pieces; ++i)
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        const float* two = acc[i / 2][n] + i % 2 * 2;
        writer.put(i, n, pack<T>(two[0] * factor, two[1] * factor));
      }
    constexpr int rows = Cfg::rows / warps;
    if constexpr (along == 1)
      __syncwarp();
    else
      meet();
    store_rows<ThereOf<Tile, there>, rows, PlainStore, edge_rows>(
        tile, threadIdx.x / 32 * rows, to + place.row0 * row_stride, row_stride, place.seq() - place.row0);
  }

 private:
  static __device__ const unsigned short* of(const void* base) { return static_cast<const unsigned short*>(base); }
  static __device__ unsigned short* of(void* base) { return static_cast<unsigned short*>(base); }
};
