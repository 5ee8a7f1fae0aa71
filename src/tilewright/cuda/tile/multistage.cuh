#pragma once
// The main loop of h11: a tile of the result from a ring of buffers, by mma.sync (gemm/h11_mma_multistage.cuh says
// how).

#include "tile/copy16.cuh"
#include "tile/mma_tile.cuh"
#include "tile/ring.cuh"

/// The tile of the result at `origin`, through buffers from the shared address `shared` on. `before_copies` is called
/// once addresses are ready, before anything of the operands is touched.
template <class Cfg, class Before>
__device__ inline void multistage(const GemmArgs& args, unsigned shared, TileOrigin origin,
                                  const Before& before_copies) {
  constexpr int steps = Cfg::tile_k / 16 / Cfg::slices_k;  // of one slice
  static_assert(steps % 2 == 0, "an even number of steps: which fragments are next is known when compiling");
  using A = TileA<Cfg, ConflictFree<TileA<Cfg>::inner>>;
  using B = TileB<Cfg, ConflictFree<TileB<Cfg>::inner>>;
  const unsigned a_tiles = shared, b_tiles = a_tiles + Cfg::stages * A::bytes;
  const KRange<Cfg> range(args.k);
  auto copy_a = copy_of_a<Cfg, A>(args, a_tiles, origin.row, range.first * Cfg::tile_k);
  auto copy_b = copy_of_b<Cfg, B>(args, b_tiles, range.first * Cfg::tile_k, origin.col);
  // One of `parts` equal parts of the copy of the next tile.
  const auto start_part = [&](int stage, int part, int parts) {
    copy_a.start_part(stage * A::bytes, part, parts);
    copy_b.start_part(stage * B::bytes, part, parts);
    if (part + 1 == parts) copy_a.advance(), copy_b.advance();
  };

  const MmaTiling<Cfg> at;
  const FragmentReader<A, true> a(a_tiles, at.row0, at.slice * steps * 16);
  const FragmentReader<B, false> b(b_tiles, at.col0, at.slice * steps * 16);
  Accumulators<Cfg> acc;
  Fragments<Cfg> held[2];
  before_copies();
  Ring<Cfg::stages> ring;
  ring.fill(range.tiles, [&](int stage) { start_part(stage, 0, 1); });
  ring.wait();
  if (range.tiles > 0) {
    a.load(held[0].a, 0, 0);
    b.load(held[0].b, 0, 0);
  }

  // One tile's products; `copying` while there are tiles whose copy has not been started.
  const auto multiply_tile = [&](bool copying, bool last) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (copying) start_part(ring.write, step, steps);
      if (step + 1 == steps) ring.advance();
      const int next = (step + 1) % steps;
      if (next != 0 || !last) {
        a.load(held[(step + 1) % 2].a, ring.read * A::bytes, next);
        b.load(held[(step + 1) % 2].b, ring.read * B::bytes, next);
      }
      acc.multiply(held[step % 2]);
    }
  };
  int tile = 0;
  for (; tile < range.tiles - (Cfg::stages - 1); ++tile) multiply_tile(true, false);
  fetch_fused<Cfg>(args.fused, origin.row, origin.col, args.m, args.n);
  for (; tile < range.tiles; ++tile) multiply_tile(false, tile + 1 == range.tiles);
  cp_async_wait<0>();
  if constexpr (Cfg::slices_k > 1) {
    __syncthreads();  // the sums pass where the tiles were
    acc.add_slices(a_tiles, at.slice);
    if (at.slice > 0) return;
  }
  acc.store(args, origin.row + at.row0, origin.col + at.col0);
}
