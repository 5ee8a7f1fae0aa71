// t05: new over t03: two fp16 numbers per element, not three of bf16, so that three products do, not six; and wgmma.
// Rows of A and columns of B are scaled to fp16's range first (gemm/halve.cuh). With a = a0 + 2^-11 a1,
//
//     a b  ~  a0 b0  +  2^-11 (a1 b0 + a0 b1)
//
// What is omitted, a1 b1, and what two parts lack of an element are each about fp32's rounding of the product.
//
// Tensor cores cut sums where fp32 rounds them, and a long chain of cuts drifts towards zero. The sum of a0 b0 is
// therefore moved on after every Cfg::stretch of k; the other one, 2^-11 of it, may be cut:
//
//     high     a0 b0 of a stretch, which starts from what its predecessor left over
//     total    total + high, rounded; the rounding's error, which is known exactly, stays in `high`
//     low      a1 b0 + a0 b1, all along k: made while `high` is added
//
// Errors of rounding do not add up this way, however long k is (Kahan). Roles, barriers, stores, clusters: h16's.
#include "tile/restore.cuh"
#include "tile/tma_product.cuh"

template <class Cfg>
struct PairsProduct : TmaProduct<Cfg> {
  using Base = TmaProduct<Cfg>;
  using typename Base::A;
  using typename Base::B;
  using typename Base::Sums;
  using At = WarpgroupTiling<Cfg>;
  static constexpr int columns = At::columns;
  static constexpr int stage_bytes = 2 * (A::bytes + B::bytes), tile_bytes = Cfg::stages * stage_bytes;
  static_assert(At::products == 1, "registers hold three sums of 64 rows");
  using Base::Base;

  /// As TmaProduct's, both parts of each operand.
  template <class Maps>
  __device__ void load(const Maps& maps, TileOrigin origin, int entry = blockIdx.y) {
    const int entry_a = Cfg::a_batched ? 2 * entry : 0, entry_b = Cfg::b_batched ? 2 * entry : 0;
    for (int tile = 0; tile < this->range.tiles; ++tile, this->buffers.turn()) {
      const unsigned to = this->tiles + this->buffers.stage * stage_bytes, full = this->buffers.full();
      const int k = tile * Cfg::tile_k;
      this->buffers.begin(stage_bytes);
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        this->a.template load<true>(to + p * A::bytes, maps.a, origin.row, k, entry_a + p, full);
        this->b.template load<true>(to + 2 * A::bytes + p * B::bytes, maps.b, origin.col, k, entry_b + p, full);
      }
    }
  }

  /// As TmaProduct's.
  __device__ void multiply(Sums& sums, typename Sums::Rows& rows, TileOrigin origin, const At& at) {
    using Product = Wgmma<f16, false, false, columns>;
    constexpr int steps = Cfg::stretch / 16;
    float high[columns][4], low[columns][4];
    float (&total)[columns][4] = sums.value[0];
    const int turn = threadIdx.x / 32 * unsigned(this->range.tiles) / (Cfg::threads / 32);
    __syncwarp();  // lanes may have parted while they stored
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) total[j][e] = high[j][e] = low[j][e] = 0;
    wgmma_arrived(high), wgmma_arrived(low);
    for (int tile = 0; tile < this->range.tiles; ++tile, this->buffers.turn()) {
      const unsigned a = this->tiles + this->buffers.stage * stage_bytes, b = a + 2 * A::bytes;
      this->buffers.wait();
#pragma unroll
      for (int stretch = 0; stretch < Cfg::tile_k / Cfg::stretch; ++stretch) {
        const auto left = [&](int part, int step) {
          return wgmma_operand_of<A>(a + part * A::bytes, at.row0, stretch * steps + step);
        };
        const auto right = [&](int part, int step) {
          return wgmma_operand_of<B>(b + part * B::bytes, at.col0, stretch * steps + step);
        };
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < steps; ++step) Product::multiply(high, left(0, step), right(0, step));
        wgmma_commit();
#pragma unroll
        for (int step = 0; step < steps; ++step) {
          Product::multiply(low, left(1, step), right(0, step));
          Product::multiply(low, left(0, step), right(1, step));
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (stretch == 0 && tile > 0) this->release_previous();
        wgmma_arrived(high);
#pragma unroll
        for (int j = 0; j < columns; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float sum = total[j][e] + high[j][e];
            high[j][e] -= sum - total[j][e];
            total[j][e] = sum;
          }
      }
      fetch_fused<Cfg, false>(this->args.fused, origin.row, origin.col, this->args.m, this->args.n, tile == turn);
    }
    const int row = origin.row + at.row0, col = origin.col + at.col0;
    sums.read_ahead(rows, this->args, row, col);
    wgmma_wait<0>();
    wgmma_arrived(low);
    if (this->range.tiles > 0) this->release_previous();
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) total[j][e] += fmaf(low[j][e], 0x1p-11f, high[j][e]);
    Restorer<Cfg, 2, columns>(this->args, Sums::row_of(row, 0), col).restore(total);
  }
};

template <class Cfg>
struct ProductOf<Cfg, f16> {
  using Product = PairsProduct<Cfg>;
};

#include "gemm/h16_cluster.cuh"
