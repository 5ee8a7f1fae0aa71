// q02: new over q01: Hopper's wgmma multiplies fp8 itself, at twice the rate of 16 bits, but keeps 14 bits of a sum. So
// the sums of a tile, 128 along k, go to fp32 sums while the next tile's are made (tile/promoted.cuh). The ring and the
// blocks that stay are h13's.
#include "ptx/grid_dependency.cuh"
#include "tile/promoted.cuh"
#include "tile/wgmma_ring.cuh"

template <class Cfg>
struct PromotedRing : WgmmaRing<Cfg> {
  using typename WgmmaRing<Cfg>::A;
  using typename WgmmaRing<Cfg>::B;
  using Sums = PromotedSums<Cfg, A, B>;
  static constexpr int ahead = Cfg::stages - 1 - Sums::take_turns;  // tiles that are being copied
  Ring<Cfg::stages, ahead> buffers;
  int tile;

  using WgmmaRing<Cfg>::WgmmaRing;

  __device__ void fill() {
#pragma unroll(Cfg::edge ? 1 : ahead)
    for (int buffer = 0; buffer < ahead; ++buffer) this->start(buffer, buffer);
    buffers = {}, tile = 0;
  }

  // The tiles, as PromotedSums takes them.
  __device__ void wait() const {
    cp_async_wait<ahead - 1>();
    fence_proxy_async();
    __syncthreads();
  }
  __device__ unsigned a_at() const { return this->a_tiles; }
  __device__ unsigned b_at() const { return this->b_tiles; }
  __device__ unsigned a_after() const { return buffers.read * A::bytes; }
  __device__ unsigned b_after() const { return buffers.read * B::bytes; }
  __device__ void started() { this->start(tile + ahead, buffers.write); }
  template <class Scales>
  __device__ void read_scales(Scales& to, int tile, int row0, int col0, const WarpgroupTiling<Cfg>&) const {
    to.read(this->args, (this->range.first + tile) * 2 * Cfg::tile_k, col0,
            [&](int i) { return Sums::row_of(row0, i / 2) + i % 2 * 8 + threadIdx.x % 32 / 4; });
  }
  __device__ void turn() { buffers.turn(), ++tile; }
  __device__ void release_previous() const {}  // the next barrier says so
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const auto origin_of = [&](unsigned tile) { return tile_origin<Cfg>(tile, args.m, args.n); };
  const unsigned all = tiles_of<Cfg>(args.m, args.n);
  TileOrigin origin = origin_of(blockIdx.x);
  PromotedRing<Cfg> ring(args, shared_address(shared), origin);
  start_after_earlier_grids<Cfg::alone>();
  ring.fill();
  for (unsigned tile = blockIdx.x; tile < all; tile += gridDim.x) {
    typename PromotedRing<Cfg>::Sums sums;
    typename PromotedRing<Cfg>::Sums::Rows rows;
    const int row = origin.row + ring.at.row0, col = origin.col + ring.at.col0;
    sums.multiply(ring, args, ring.range, ring.at, row, col);
    cp_async_wait<0>();
    sums.read_ahead(rows, args, row, col);
    if (tile + gridDim.x < all) {
      __syncthreads();  // all have read the last tiles
      origin = origin_of(tile + gridDim.x);
      ring.move_to(origin);
      ring.fill();
    }
    sums.store(rows, args, row, col);
  }
}
