#pragma once
// The main loop of h12 and h13: a ring of tiles that cp.async fills and wgmma reads.
//
//     tile t      wait until it has landed, and for the products of tile t - 1 - lag; barrier;
//                 start its products; start the copy of tile t + ahead
//
// lag 1: the products of two tiles are in flight, so that the tensor cores do not run dry at the barrier. The copy goes
// to the buffer of tile t - 2, since after the barrier all warpgroups have waited for that. lag 0: to that of tile
// t - 1, so that one buffer more is on its way; where blocks share an SM, the others keep the tensor cores busy.
//
#include "tile/copy16.cuh"
#include "tile/ring.cuh"
#include "tile/wgmma_sums.cuh"

template <class Cfg>
struct WgmmaRing {
  static constexpr int lag = Cfg::min_blocks > 1 ? 0 : 1;
  static constexpr int ahead = Cfg::stages - 1 - lag;  // tiles that are being copied while one is multiplied
  using Buffers = Ring<Cfg::stages, ahead>;
  using A = WgmmaTile<TileA<Cfg>>;
  // Lines of B that lie along k may lie in any order: in the one that results are stored by.
  using B = WgmmaTile<TileB<Cfg>, TileB<Cfg>::k_inner && Cfg::whole_eights>;
  using Sums = WarpgroupAccumulators<Cfg, A, B>;

  const GemmArgs& args;
  unsigned a_tiles, b_tiles;  // shared addresses of the buffers
  KRange<Cfg> range;
  WarpgroupTiling<Cfg> at;
  CopyA16<Cfg, A> copy_a;
  CopyB16<Cfg, B> copy_b;

  __device__ WgmmaRing(const GemmArgs& args, unsigned shared, TileOrigin origin)
      : args(args), a_tiles(shared), b_tiles(shared + Cfg::stages * A::bytes), range(args.k),
        copy_a(copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k)),
        copy_b(copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col)) {}

  /// Goes on to another tile of the result. The buffers must be free.
  __device__ void move_to(TileOrigin origin) {
    copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k);
    copy_b = copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col);
  }

  /// Starts the copy of tile number `tile`, the next along k, if there is one.
  __device__ void start(int tile, int buffer) {
    if (tile < range.tiles) {
      copy_a.start(buffer * A::bytes);
      copy_b.start(buffer * B::bytes);
    }
    cp_async_commit();
  }

  /// Starts the copies of the first tiles. With edges in a loop, which is a third less code and no slower.
  __device__ void fill() {
#pragma unroll(Cfg::edge ? 1 : ahead)
    for (int buffer = 0; buffer < ahead; ++buffer) start(buffer, buffer);
  }

  /// Everything along k of the tile of the result at `origin`, after `fill`. No copy and no product of this warpgroup
  /// is under way afterwards; what the epilogue reads first is. Its operands come to L2 a part at a time, warp after
  /// warp, so that memory serves them between the copies.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin) {
    const int turn = threadIdx.x / 32 * unsigned(range.tiles) / (Cfg::threads / 32);
    Buffers buffers;
    sums.clear();
    for (int tile = 0; tile < range.tiles; ++tile) {
      cp_async_wait<ahead - 1>();
      wgmma_wait<lag>();
      fence_proxy_async();
      __syncthreads();
      sums.multiply(a_tiles + buffers.read * A::bytes, b_tiles + buffers.read * B::bytes, at);
      start(tile + ahead, buffers.write);
      fetch_fused<Cfg, false>(args.fused, origin.row, origin.col, args.m, args.n, tile == turn);
      buffers.turn();
    }
    cp_async_wait<0>();
    sums.read_ahead(rows, args, origin.row + at.row0, origin.col + at.col0);
    sums.finish();
  }
};
