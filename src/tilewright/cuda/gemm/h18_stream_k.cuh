// h18: new over h16: stream-k. Blocks take equal parts of all tiles' steps instead of whole tiles, so that the last
// tiles keep every SM busy: 160 tiles on 132 SMs take 1.21 times a tile's time instead of 2.
//
// Roles, barriers   as in h16.
// Pieces            tile/stream_pieces.cuh: what a block multiplies, and how sums get from one to another.
// Named barriers    1 + warpgroup: its sums are written, or there to be read.
#include "ptx/grid_dependency.cuh"
#include "ptx/shared.cuh"
#include "tile/cluster_tiles.cuh"
#include "tile/store_staged.cuh"
#include "tile/stream_pieces.cuh"
#include "tile/tma_product.cuh"

extern "C" __global__ void __cluster_dims__(ClusterTiles<Cfg>::blocks, 1, 1)
    __launch_bounds__(Cfg::threads + 128, Cfg::min_blocks)
        gemm(const __grid_constant__ TmaMapsAndOut maps, const __grid_constant__ GemmArgs args,
             const __grid_constant__ StreamArgs stream) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Product = TmaProduct<Cfg>;
  const unsigned stages = shared_address(shared), results = stages + Product::tile_bytes;
  Product product(args, stages, results + StagedRows<Cfg>::all_bytes);
  const ClusterTiles<Cfg> tiles(args);
  product.share(tiles.down, tiles.across);
  if (threadIdx.x == 0) product.buffers.init(Cfg::threads / 128);
  tiles.sync();
  start_after_earlier_grids<Cfg::alone>();
  const unsigned depth = max(product.range.tiles, 1);  // k = 0: zeros, of one step without products
  const auto steps_of = [&](const Piece& piece) { return args.k > 0 ? piece.count : 0; };
  if (threadIdx.x >= Cfg::threads) {
    if constexpr (Cfg::hands_over) release_registers<Cfg::producer_registers>();
    if (threadIdx.x == Cfg::threads) {
      const StreamPieces pieces(tiles.count, depth, tiles.first, tiles.step);
      if (args.k > 0) prefetch_tensor_map(maps.a), prefetch_tensor_map(maps.b);
      for (unsigned number = 0; number < pieces.count(); ++number) {
        const Piece piece = pieces[number];
        product.range.first = piece.first, product.range.tiles = steps_of(piece);
        product.load(maps, tiles.origin_of(piece.tile));
      }
    }
  } else {
    if constexpr (Cfg::hands_over) take_registers<Cfg::consumer_registers>();
    const WarpgroupTiling<Cfg> at;
    const StreamPieces pieces(tiles.count, depth, tiles.first, tiles.step);
    StagedRows<Cfg> staged(maps.out, results);
    constexpr int values = sizeof(Product::Sums::value) / 4;
    const PassedSums<Cfg::threads, values> passed{stream};
    const auto slot_of = [&](unsigned block) {
      return (blockIdx.y * tiles.step + block) * tiles.blocks + blockIdx.x % tiles.blocks;
    };
    for (unsigned number = 0; number < pieces.count(); ++number) {
      const Piece piece = pieces[number];
      const TileOrigin origin = tiles.origin_of(piece.tile);
      product.range.first = piece.first, product.range.tiles = steps_of(piece);
      typename Product::Sums sums;
      typename Product::Sums::Rows rows;
      float (&held)[values] = reinterpret_cast<float (&)[values]>(sums.value);
      product.multiply(sums, rows, origin, at);
      if (piece.first + piece.count < int(depth)) {
        passed.leave(held, slot_of(pieces.block));
      } else {
        pieces.before(piece, [&](unsigned block) { passed.add(held, slot_of(block)); });
        sums.leave(rows, args, origin.row + at.row0, origin.col + at.col0, staged);
      }
    }
    staged.finish();
  }
  tiles.sync();
}
