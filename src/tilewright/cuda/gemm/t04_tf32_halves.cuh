// t04: new over t01: tf32 by wgmma, at twice tf32's rate. tf32 has fp16's 11 bits, and what fp16 lacks are exponents:
// so each row of A and column of B is scaled to fp16's range first (gemm/halve.cuh), and every element is rounded to
// the bits that tf32 would have. Then h16's kernel multiplies, alone or in clusters, and its sums get their exponents
// back (tile/restore.cuh).
#include "tile/restore.cuh"
#include "tile/tma_product.cuh"

template <class Cfg>
struct HalvesProduct : TmaProduct<Cfg> {
  using typename TmaProduct<Cfg>::Sums;
  using TmaProduct<Cfg>::TmaProduct;

  /// As TmaProduct's.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const WarpgroupTiling<Cfg>& at) {
    TmaProduct<Cfg>::multiply(sums, rows, origin, at);
#pragma unroll
    for (int i = 0; i < WarpgroupTiling<Cfg>::products; ++i)
      Restorer<Cfg, 1, WarpgroupTiling<Cfg>::columns>(this->args, Sums::row_of(origin.row + at.row0, i),
                                                      origin.col + at.col0)
          .restore(sums.value[i]);
  }
};

template <class Cfg>
struct ProductOf<Cfg, f16> {
  using Product = HalvesProduct<Cfg>;
};

#include "gemm/h16_cluster.cuh"
