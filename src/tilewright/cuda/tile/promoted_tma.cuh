#pragma once
// The consumers of h14 to h16 with partial sums (tile/promoted.cuh), for q03 and q04. Warpgroups meet at no barrier, so
// that one adds up while another's products run.

#include "tile/promoted.cuh"
#include "tile/tma_product.cuh"

/// Lanes that copy the scales of a stage.
template <class Cfg>
constexpr int scale_lanes = has_block_scales<Cfg> ? 32 : 0;

template <class Cfg>
struct PromotedTiles : TmaProduct<Cfg, scale_lanes<Cfg>> {
  using Base = TmaProduct<Cfg, scale_lanes<Cfg>>;
  using typename Base::A;
  using typename Base::B;
  using Sums = PromotedSums<Cfg, A, B>;

  using Base::Base;

  __device__ unsigned scales_at() const {
    return this->buffers.barriers + this->buffers.barrier_bytes + this->buffers.stage * StageScales<Cfg>::bytes;
  }

  /// The warp after the producer's: the scales of what load() loads.
  __device__ void load_also(TileOrigin origin) {
    typename StageScales<Cfg>::Copies copies(this->args, origin, this->range.first);
    for (int tile = 0; tile < this->range.tiles; ++tile, this->buffers.turn()) {
      this->buffers.wait_free();
      copies.start(scales_at());
      this->buffers.arrive_when_copied();
    }
  }

  // The tiles, as PromotedSums takes them.
  __device__ void wait() const { this->buffers.wait(); }
  __device__ unsigned a_at() const { return this->tiles; }
  __device__ unsigned b_at() const { return this->tiles + A::bytes; }
  __device__ unsigned a_after() const { return this->buffers.stage * this->stage_bytes; }
  __device__ unsigned b_after() const { return a_after(); }
  __device__ void started() const {}
  template <class Scales>
  __device__ void read_scales(Scales& to, int, int, int col0, const WarpgroupTiling<Cfg>& at) const {
    StageScales<Cfg>::read(to, scales_at(), at.row0, col0 / scale_block - (col0 - at.col0) / scale_block);
  }
  __device__ void turn() { this->buffers.turn(); }

  /// As TmaProduct's.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at) {
    const int row = origin.row + at.row0, col = origin.col + at.col0;
    __syncwarp();  // lanes may have parted while they stored
    sums.multiply(*this, this->args, this->range, at, row, col);
    sums.read_ahead(rows, this->args, row, col);
  }
  /// Where rows after the first `products` x 64 lie outside, they are multiplied too; `landed` is not called.
  template <int products = WarpgroupTiling<Cfg>::products, class Landed>
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at,
                           const Landed&) {
    multiply(sums, rows, origin, at);
  }
};

#define TW_PROMOTED(type)               \
  template <class Cfg>                  \
  struct ProductOf<Cfg, type> {         \
    using Product = PromotedTiles<Cfg>; \
  };
TW_PROMOTED(e4m3_by_e4m3)
TW_PROMOTED(e4m3_by_e5m2)
TW_PROMOTED(e5m2_by_e4m3)
TW_PROMOTED(e5m2_by_e5m2)
#undef TW_PROMOTED
