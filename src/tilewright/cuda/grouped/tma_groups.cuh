#pragma once
// What the kernels of groups by TMA share: how a tile is copied where groups cut an operand, and what a step along k is
// cleared of.

#include "grouped/groups.cuh"
#include "ptx/named_barrier.cuh"
#include "tile/store_staged.cuh"
#include "tile/tma_product.cuh"

/// Rows of a box of A where groups cut them (cut_box in grouped/stages.py).
constexpr int box_of(int extent) { return extent % 64 ? extent % 32 ? extent : 32 : 64; }

/// The producer: everything along k for a tile. Its copies may run over the end of its group into the next one, since a
/// row of a product depends on no other row. Where groups cut rows, only boxes in which the tile has some are copied:
/// the last tile of a group may have few.
template <class Product, class Maps>
__device__ inline void load(Product& product, const Maps& maps, const GroupTile& at) {
  using A = typename Product::A;
  using B = typename Product::B;
  using RowsOfA = TmaTileInBoxes<A, Cfg::axis == axis_m ? box_of(A::extent) : A::extent>;
  const int row = at.origin.row + (Cfg::axis == axis_m ? at.begin : 0);
  const int col = at.origin.col + (Cfg::axis == axis_n ? at.begin : 0);
  const int rows = Cfg::axis == axis_m ? at.product.m - at.origin.row : A::extent;
  const unsigned bytes = RowsOfA::bytes(rows) + B::bytes;
  for (int tile = 0; tile < product.range.tiles; ++tile, product.buffers.turn()) {
    const unsigned to = product.tiles + product.buffers.stage * product.stage_bytes;
    const int k = (Cfg::axis == axis_k ? at.begin : 0) + tile * Cfg::tile_k;
    product.buffers.begin(bytes);
    RowsOfA::template load<Cfg::a_batched>(to, maps.a, row, k, at.group, product.buffers.full(), rows);
    product.b.template load<Cfg::b_batched>(to + A::bytes, maps.b, col, k, at.group, product.buffers.full());
  }
}

/// Starts the products of the first `steps` x 16 of a stage's k, as one group.
template <int steps, class Product>
__device__ inline void start_steps(typename Product::Sums& sums, unsigned stage, const WarpgroupTiling<Cfg>& mine) {
  using A = typename Product::A;
  using B = typename Product::B;
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < steps; ++step)
#pragma unroll
    for (int i = 0; i < WarpgroupTiling<Cfg>::products; ++i)
      Wgmma<typename Cfg::in_type, !A::k_inner, !B::k_inner, WarpgroupTiling<Cfg>::columns>::multiply(
          sums.value[i], wgmma_operand_of<A>(stage, mine.row0 + 64 * i, step),
          wgmma_operand_of<B>(stage + A::bytes, mine.col0, step));
  wgmma_commit();
}

/// The same of the fewest steps that hold `left` of k, which is less than a stage's.
template <int steps, class Product>
__device__ inline void start_last_steps(typename Product::Sums& sums, unsigned stage, const WarpgroupTiling<Cfg>& mine,
                                        int left) {
  if constexpr (steps > 1) {
    if (left <= 16 * (steps - 1)) return start_last_steps<steps - 1, Product>(sums, stage, mine, left);
  }
  start_steps<steps, Product>(sums, stage, mine);
}

/// A consumer: TmaProduct::multiply where groups cut k. Of a group's last stage it multiplies what the group has.
template <class Product, class Landed>
__device__ inline void multiply_to_end(Product& product, typename Product::Sums& sums,
                                       typename Product::Sums::Rows& rows, const GroupTile& at,
                                       const WarpgroupTiling<Cfg>& mine, const Landed& landed) {
  __syncwarp();  // lanes may have parted while they stored
  sums.clear();
  const int last = product.range.tiles - 1;
  const auto stage = [&] { return product.tiles + product.buffers.stage * product.stage_bytes; };
  for (int tile = 0; tile < last; ++tile, product.buffers.turn()) {
    product.buffers.wait();
    landed(tile, stage());
    start_steps<Cfg::tile_k / 16, Product>(sums, stage(), mine);
    wgmma_wait<1>();
    if (tile > 0) product.release_previous();
  }
  if (last >= 0) {
    product.buffers.wait();
    landed(last, stage());
    start_last_steps<Cfg::tile_k / 16, Product>(sums, stage(), mine, at.product.k - last * Cfg::tile_k);
    wgmma_wait<1>();
    if (last > 0) product.release_previous();
    product.buffers.turn();
  }
  sums.read_ahead(rows, product.args, at.origin.row + mine.row0, at.origin.col + mine.col0);
  sums.finish();
  if (last >= 0) product.release_previous();
}

/// A consumer: Product::multiply of those 64 rows and their like in which the tile has some.
template <class Product, class Landed>
__device__ inline void multiply_rows(Product& product, typename Product::Sums& sums, typename Product::Sums::Rows& rows,
                                     const GroupTile& at, const WarpgroupTiling<Cfg>& mine, const Landed& landed) {
  constexpr int all = WarpgroupTiling<Cfg>::products;
  static_assert(all <= 2, "128 rows at most of a warpgroup");
  if constexpr (Cfg::axis == axis_k)
    multiply_to_end(product, sums, rows, at, mine, landed);
  else if (Cfg::axis == axis_m && all == 2 && at.product.m - at.origin.row - mine.row0 <= 64)
    product.template multiply<1>(sums, rows, at.origin, mine, landed);
  else
    product.multiply(sums, rows, at.origin, mine, landed);
}

/// Results by way of shared memory where groups cut their rows.
struct GroupRows : StagedRows<Cfg> {
  int from = 0;  // where the group begins

  using StagedRows<Cfg>::StagedRows;
  __device__ void end(int row, int col, int entry) { StagedRows<Cfg>::end(from + row, col, entry); }
};

/// A consumer: how its sums leave. TMA stores 16 rows of a warp at once; where the group ends within them, they leave
/// by the warp's lanes.
template <class Sums>
__device__ inline void leave(const Sums& sums, typename Sums::Rows& rows, const GroupTile& at,
                             const WarpgroupTiling<Cfg>& mine, GroupRows& staged) {
  const int row0 = at.origin.row + mine.row0, col0 = at.origin.col + mine.col0;
  if constexpr (Cfg::staged == 0 || Cfg::axis == axis_k) {
    sums.leave(rows, at.product, row0, col0, staged, at.group);
  } else {
    staged.from = at.begin;
#pragma unroll
    for (int i = 0; i < WarpgroupTiling<Cfg>::products; ++i) {
      const int row = Sums::row_of(row0, i);
      if (i > 0) rows.read(at.product, row, col0);
      if (__all_sync(~0u, row + 16 <= at.product.m))  // that is the same for a warp, which the compiler is to know
        rows.stage(at.product, row, col0, sums.value[i], staged, 0);
      else
        rows.store(at.product, row, col0, sums.value[i]);
    }
  }
}

/// Sets a tile's k from `left` to the next multiple of 16 to 0, by `threads` threads. Its lines lie along m or n: TMA
/// could not start anywhere in one along k.
template <class Tile, int threads>
__device__ inline void clear_from(unsigned tile, int left) {
  static_assert(!Tile::k_inner, "lines along m or n");
  constexpr int chunks = Tile::inner / 8;  // of a line
  const int lines = (left + 15) / 16 * 16 - left;
  for (int i = threadIdx.x % threads; i < lines * chunks; i += threads) {
    const unsigned at = Tile::address(tile, Tile::place(left + i / chunks, i % chunks * 8));
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

/// The consumers, `threads` of them, before the products of a stage: clears what they multiply after the group's end,
/// in both operands, since what is there may be infinite. `barrier`: a named one of theirs.
template <class Product, int threads>
__device__ inline void clear_after_group(unsigned stage, int left, unsigned barrier) {
  if (left >= Cfg::tile_k || left % 16 == 0) return;
  clear_from<typename Product::A, threads>(stage, left);
  clear_from<typename Product::B, threads>(stage + Product::A::bytes, left);
  fence_proxy_async();
  __syncwarp();
  named_barrier_sync(barrier, threads);
}

/// The warp that copies: it finds the tiles, and a thread of it draws them and passes them on. `copy` is called by all
/// of its lanes.
template <class Drawn, class Copy>
__device__ inline void draw_tiles(const GroupedArgs& args, GroupTile& at, Drawn& turns, const Copy& copy) {
  const bool first = threadIdx.x == Cfg::threads;
  Groups<Cfg> groups(args);
  unsigned tile = blockIdx.x;
  for (bool more = true; more;) {
    unsigned next = 0;
    if (first) turns.give(tile), next = gridDim.x + atomicAdd(args.drawn, 1);
    more = groups.find(tile, at);
    if (more) {
      copy();
      tile = __shfl_sync(~0u, next, 0);
    }
  }
}

/// The same, with the copies of load().
template <class Product, class Maps, class Drawn>
__device__ inline void copy_drawn_tiles(Product& product, const Maps& maps, const GroupedArgs& args, GroupTile& at,
                                        Drawn& turns) {
  const bool first = threadIdx.x == Cfg::threads;
  draw_tiles(args, at, turns, [&] {
    product.range = KRange<Cfg>(at.product.k);
    if (first) load(product, maps, at);
  });
}
