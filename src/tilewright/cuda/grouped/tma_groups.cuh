#pragma once
// What the kernels of groups by TMA share: how a tile is copied where groups cut an operand, and what a step along k is
// cleared of.

#include "grouped/groups.cuh"
#include "ptx/named_barrier.cuh"
#include "tile/tma_product.cuh"

/// Of shared memory, by which a block's warps learn their tiles and whose turn it is (TURNS in grouped/rungs.py).
constexpr int turns_bytes = 64;

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

/// A consumer: Product::multiply of those 64 rows and their like in which the tile has some. `landed`: as there.
template <class Product, class Landed>
__device__ inline void multiply_rows(Product& product, typename Product::Sums& sums, typename Product::Sums::Rows& rows,
                                     const GroupTile& at, const WarpgroupTiling<Cfg>& mine, const Landed& landed) {
  constexpr int all = WarpgroupTiling<Cfg>::products;
  static_assert(all <= 2, "128 rows at most of a warpgroup");
  if (Cfg::axis == axis_m && all == 2 && at.product.m - at.origin.row - mine.row0 <= 64)
    product.template multiply<1>(sums, rows, at.origin, mine, landed);
  else
    product.multiply(sums, rows, at.origin, mine, landed);
}

/// Sets lines `left` to `end` of a tile along k to 0, by `threads` threads. They lie along m or n: TMA could not start
/// anywhere in one along k.
template <class Tile, int threads>
__device__ inline void clear_lines(unsigned tile, int left, int end) {
  static_assert(!Tile::k_inner, "lines along m or n");
  constexpr int chunks = Tile::inner / 8;  // of a line
  for (int i = threadIdx.x % threads; i < (end - left) * chunks; i += threads) {
    const unsigned at = Tile::address(tile, Tile::place(left + i / chunks, i % chunks * 8));
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
}

/// The consumers, `threads` of them, before the products of a group's last step along k, of which `left` belongs to it:
/// clears the rest of the last 16, in both operands, since what is there may be infinite. `barrier`: a named one of
/// theirs. Returns how many products of 16 along k the step is.
template <class Product, int threads>
__device__ inline int clear_after_group(unsigned stage, int left, unsigned barrier) {
  const int steps = (left + 15) / 16;
  if (left % 16) {
    clear_lines<typename Product::A, threads>(stage, left, 16 * steps);
    clear_lines<typename Product::B, threads>(stage + Product::A::bytes, left, 16 * steps);
    fence_proxy_async();
    __syncwarp();
    named_barrier_sync(barrier, threads);
  }
  return steps;
}

/// Starts the products of the first `steps` x 16 along k of a stage, as one group.
template <class Product>
__device__ inline void multiply_first(typename Product::Sums& sums, unsigned stage, const WarpgroupTiling<Cfg>& mine,
                                      int steps) {
  using A = typename Product::A;
  using B = typename Product::B;
  using At = WarpgroupTiling<Cfg>;
  const unsigned b = stage + A::bytes;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < At::products; ++i)
      Wgmma<typename Cfg::in_type, !A::k_inner, !B::k_inner, At::columns>::multiply(
          sums.value[i], wgmma_operand_of<A>(stage, mine.row0 + 64 * i, step), wgmma_operand_of<B>(b, mine.col0, step));
  }
  wgmma_commit();
}

/// A consumer, one of `threads` that read each stage: Product::multiply where groups cut k. Their last step ends with
/// the group. `landed` is called with each step's number.
template <int threads, class Product, class Landed>
__device__ inline void multiply_along_k(Product& product, typename Product::Sums& sums,
                                        typename Product::Sums::Rows& rows, const GroupTile& at,
                                        const WarpgroupTiling<Cfg>& mine, unsigned barrier, const Landed& landed) {
  const int whole = at.product.k / Cfg::tile_k, left = at.product.k % Cfg::tile_k;
  const auto stage = [&] { return product.tiles + product.buffers.stage * product.stage_bytes; };
  const auto wait = [&](int step) {
    product.buffers.wait();
    landed(step);
  };
  __syncwarp();  // lanes may have parted while they stored
  sums.clear();
  for (int step = 0; step < whole; ++step, product.buffers.turn()) {
    wait(step);
    sums.multiply(stage(), stage() + Product::A::bytes, mine);
    wgmma_wait<1>();
    if (step > 0) product.release_previous();
  }
  if (left > 0) {
    wait(whole);
    const int steps = clear_after_group<Product, threads>(stage(), left, barrier);
    multiply_first<Product>(sums, stage(), mine, steps);
    wgmma_wait<1>();
    if (whole > 0) product.release_previous();
    product.buffers.turn();
  }
  sums.read_ahead(rows, at.product, at.origin.row + mine.row0, at.origin.col + mine.col0);
  sums.finish();
  if (product.range.tiles > 0) product.release_previous();
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
