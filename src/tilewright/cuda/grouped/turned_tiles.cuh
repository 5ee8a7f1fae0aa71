#pragma once
// The tiles of g08: as wide as their columns ask, and stored column by column.

#include "grouped/tma_groups.cuh"
#include "ptx/global.cuh"
#include "ptx/movmatrix.cuh"
#include "tile/store_by_quad.cuh"

/// Columns in a box of B (TURNED_BOX in grouped/stages.py).
constexpr int turned_box = 32;

/// The columns of a tile: a group's are shared out among as many tiles as hold them, 16 at a time.
template <class Cfg>
struct TurnedTile {
  int first, columns;  // of the group's

  __device__ explicit TurnedTile(const GroupTile& at) {
    const int size = at.product.n, number = at.origin.col / Cfg::tile_n, count = (size + Cfg::tile_n - 1) / Cfg::tile_n;
    const int width = ((size + count - 1) / count + 15) / 16 * 16;
    first = number * width;
    columns = min(width, size - first);
  }
};

/// The producer: everything along k for a tile.
template <class Product, class Maps>
__device__ inline void load_turned(Product& product, const Maps& maps, const GroupTile& at) {
  using A = typename Product::A;
  using B = typename Product::B;
  using Columns = TmaTileInBoxes<B, turned_box>;
  const TurnedTile<Cfg> tile(at);
  const unsigned bytes = A::bytes + Columns::bytes(tile.columns);
  for (int step = 0; step < product.range.tiles; ++step, product.buffers.turn()) {
    const unsigned to = product.tiles + product.buffers.stage * product.stage_bytes;
    product.buffers.begin(bytes);
    product.a.template load<Cfg::a_batched>(to, maps.a, at.origin.row, step * Cfg::tile_k, at.group,
                                            product.buffers.full());
    Columns::template load<Cfg::b_batched>(to + A::bytes, maps.b, at.begin + tile.first, step * Cfg::tile_k, at.group,
                                           product.buffers.full(), tile.columns);
  }
}

/// A number, as a type.
template <int number>
struct Eights {
  static constexpr int value = number;
};

/// Calls `multiply` with the fewest pairs of eight columns that hold `columns` of them.
template <int most, class Multiply>
__device__ inline void with_columns(int columns, const Multiply& multiply) {
  if constexpr (most > 2) {
    if (columns <= 8 * (most - 2)) return with_columns<most - 2>(columns, multiply);
  }
  multiply(Eights<most>());
}

/// A consumer: TmaProduct::multiply of the first `eights` x 8 columns.
template <int eights, class Product>
__device__ inline void multiply_columns(Product& product, typename Product::Sums& sums,
                                        const WarpgroupTiling<Cfg>& mine) {
  using A = typename Product::A;
  using B = typename Product::B;
  using Value = float (&)[eights][4];
  constexpr int products = WarpgroupTiling<Cfg>::products;
  for (int tile = 0; tile < product.range.tiles; ++tile, product.buffers.turn()) {
    const unsigned from = product.tiles + product.buffers.stage * product.stage_bytes;
    product.buffers.wait();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step)
#pragma unroll
      for (int i = 0; i < products; ++i)
        Wgmma<typename Cfg::in_type, !A::k_inner, !B::k_inner, eights>::multiply(
            reinterpret_cast<Value>(sums.value[i]), wgmma_operand_of<A>(from, mine.row0 + 64 * i, step),
            wgmma_operand_of<B>(from + A::bytes, 0, step));
    wgmma_commit();
    wgmma_wait<1>();
    if (tile > 0) product.release_previous();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < products; ++i) wgmma_arrived(reinterpret_cast<Value>(sums.value[i]));
  if (product.range.tiles > 0) product.release_previous();
}

/// A warp's 16 rows of a tile, from `row0` of the warpgroup on, to columns that lie contiguous. What movmatrix turns
/// is eight rows x eight columns; the lanes of a quad then gather a column's eight rows each, and pairs of them both
/// eights of a column, a sector.
template <class Cfg, int eights>
__device__ inline void store_turned(const float (&value)[eights][4], const GemmArgs& args, int row0,
                                    const TurnedTile<Cfg>& tile) {
  using Out = typename Cfg::out_type;
  const int lane = threadIdx.x % 32, odd = lane % 2;
  const int row = row0 + threadIdx.x / 32 % 4 * 16 + 8 * odd;
  auto* out = static_cast<Out*>(args.out) + row;
#pragma unroll
  for (int j = 0; j < eights; j += 4) {
    if (8 * j >= tile.columns) break;
    unsigned word[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &value[j + i < eights ? j + i : j][2 * half];
        word[half][i] = movmatrix_transposed(pack<Out>(pair[0], pair[1]));
      }
      InQuad::transpose(word[half]);
    }
    // of a pair of lanes the even one has a column's first eight rows and the odd one's next eight
    unsigned now[4], next[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned got = __shfl_xor_sync(~0u, odd ? word[0][i] : word[1][i], 1);
      now[i] = odd ? got : word[0][i], next[i] = odd ? word[1][i] : got;
    }
    const int column = 8 * (j + lane % 4 / 2 * 2) + lane / 4;
    if (row < args.m && column < tile.columns) store_global_16(out + (tile.first + column) * args.out_col, now);
    if (row < args.m && column + 8 < tile.columns)
      store_global_16(out + (tile.first + column + 8) * args.out_col, next);
  }
}
