#pragma once
// The main loop of h12 and h13: a ring of tiles that cp.async fills and wgmma reads.
//
//     tile t      wait until it has landed, and for the products of tile t - 1 - lag; barrier; start its products; start the
//                 copy of tile t + ahead
//
// lag 1: the products of two tiles are in flight, so that the tensor cores do not run dry at the barrier. The copy goes
// to the buffer of tile t - 2, since behind the barrier all warpgroups have waited for that. lag 0: to that of tile
// t - 1, so that one buffer more is on its way; where blocks share an SM, the others keep the tensor cores busy.

#include "gemm/operands16.cuh"
#include "tile/wgmma_tile.cuh"

template <class Cfg>
struct WgmmaRing {
  static constexpr int lag = Cfg::min_blocks > 1 ? 0 : 1;
  static constexpr int ahead = Cfg::stages - 1 - lag;  // tiles that are being copied while one is multiplied
  static_assert(ahead >= 1, "too few stages");
  using A = WgmmaTile<TileA<Cfg>>;
  // Lines of B that lie along k may lie in any order: in the one that results are stored by.
  using B = WgmmaTile<TileB<Cfg>, TileB<Cfg>::k_inner && Cfg::whole_eights>;
  using Sums = WarpgroupAccumulators<Cfg, A, B>;

  const GemmArgs& args;
  unsigned a_tiles, b_tiles;  // shared addresses of the buffers
  int first, tiles;           // this block's tiles along k: [first, first + tiles)
  WarpgroupTiling<Cfg> at;
  CopyA16<Cfg, A> copy_a;
  CopyB16<Cfg, B> copy_b;

  __device__ WgmmaRing(const GemmArgs& args, unsigned shared, TileOrigin origin)
      : args(args), a_tiles(shared), b_tiles(shared + Cfg::stages * A::bytes), first(first_tile(args, blockIdx.z)),
        tiles(first_tile(args, blockIdx.z + 1) - first),
        copy_a(copy_of_a<Cfg, A>(args, a_tiles, origin.row, first * Cfg::tile_k)),
        copy_b(copy_of_b<Cfg, B>(args, b_tiles, first * Cfg::tile_k, origin.col)) {}

  /// Where part `part` of k begins.
  static __device__ int first_tile(const GemmArgs& args, int part) {
    const int all = (args.k + Cfg::tile_k - 1) / Cfg::tile_k;
    return Cfg::split_k > 1 ? (long long)all * part / Cfg::split_k : part * all;
  }

  /// Turns to another tile of the result. The buffers are free.
  __device__ void move_to(TileOrigin origin) {
    copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, first * Cfg::tile_k);
    copy_b = copy_of_b<Cfg, B>(args, b_tiles, first * Cfg::tile_k, origin.col);
  }

  __device__ void start(int tile, int stage) {
    if (tile < tiles) {
      copy_a.start(stage * A::bytes);
      copy_b.start(stage * B::bytes);
    }
    cp_async_commit();  // also when empty: the wait counts groups
  }

  /// Starts the copies of the first tiles. With edges in a loop, which is a third less code and no slower.
  __device__ void fill() {
#pragma unroll (Cfg::edge ? 1 : ahead)
    for (int stage = 0; stage < ahead; ++stage) start(stage, stage);
  }

  /// Everything along k of the tile of the result at `origin`, after `fill`. No copy and no product of this warpgroup is
  /// under way afterwards; what the epilogue reads first is. Its operands come to L2 a part at a time, warp after warp,
  /// so that memory serves them between the copies.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin) {
    const int turn = threadIdx.x / 32 * unsigned(tiles) / (Cfg::threads / 32);
    int read = 0, write = ahead;
    sums.clear();
    for (int tile = 0; tile < tiles; ++tile) {
      cp_async_wait<ahead - 1>();
      wgmma_wait<lag>();
      fence_proxy_async();
      __syncthreads();
      sums.multiply(a_tiles + read * A::bytes, b_tiles + read * B::bytes, at);
      start(tile + ahead, write);
      fetch_fused<Cfg, false>(args.fused, origin.row, origin.col, args.m, args.n, tile == turn);
      read = read + 1 == Cfg::stages ? 0 : read + 1;
      write = write + 1 == Cfg::stages ? 0 : write + 1;
    }
    cp_async_wait<0>();
    sums.read_ahead(rows, args, origin.row + at.row0, origin.col + at.col0);
    sums.finish();
  }
};
