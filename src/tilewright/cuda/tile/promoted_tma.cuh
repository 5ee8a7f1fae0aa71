#pragma once
// The consumers of h14 to h16 with partial sums (tile/promoted.cuh), for q03 and q04. Warpgroups meet at no barrier, so
// that one adds up while another's products run.

#include "tile/promoted.cuh"
#include "tile/tma_product.cuh"

template <class Cfg>
struct PromotedTiles : TmaProduct<Cfg> {
  using typename TmaProduct<Cfg>::A;
  using typename TmaProduct<Cfg>::B;
  using Sums = PromotedSums<Cfg, A, B>;

  using TmaProduct<Cfg>::TmaProduct;

  // The tiles, as PromotedSums takes them.
  __device__ void wait() const { this->buffers.wait(); }
  __device__ unsigned a_at() const { return this->tiles + this->buffers.stage * this->stage_bytes; }
  __device__ unsigned b_at() const { return a_at() + A::bytes; }
  __device__ void started() const {}
  __device__ void turn() { this->buffers.turn(); }

  /// As TmaProduct's.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at) {
    const int row = origin.row + at.row0, col = origin.col + at.col0;
    __syncwarp();  // lanes may have parted while they stored
    sums.multiply(*this, this->args, this->range, at, row, col);
    sums.read_ahead(rows, this->args, row, col);
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
