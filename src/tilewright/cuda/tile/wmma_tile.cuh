#pragma once
// The multiply stage and the epilogue of h02 to h07: whole fragments by wmma.
//
// A warp makes warp_m x warp_n of the block's tile as subtiles_m x subtiles_n products of one of wmma's shapes.

#include "ptx/wmma.cuh"
#include "tile/store_rows.cuh"
#include "tile/tile16.cuh"

template <class Cfg, class A, class B>
struct WmmaTile {
  static constexpr int rows = Cfg::subtiles_m, cols = Cfg::subtiles_n;
  static constexpr int m = Cfg::warp_m / rows, n = Cfg::warp_n / cols;  // of one product
  using Shape = Wmma<typename Cfg::in_type, m, n>;

  /// Fragments of one step of 16 along k.
  struct Fragments {
    unsigned a[rows][Shape::a_registers], b[cols][Shape::b_registers];
  };

  int row0, col0;  // of the warp's tile within the block's
  float acc[rows][cols][8] = {};

  __device__ WmmaTile() {
    const int warp = threadIdx.x / 32;
    constexpr int warps_n = Cfg::tile_n / Cfg::warp_n;
    row0 = warp / warps_n * Cfg::warp_m;
    col0 = warp % warps_n * Cfg::warp_n;
  }

  /// From the tiles at shared addresses `a_tile` and `b_tile`, at k = 16 * step.
  __device__ void load(Fragments& f, unsigned a_tile, unsigned b_tile, int step) const {
#pragma unroll
    for (int i = 0; i < rows; ++i)
      Shape::template load_a<A::k_inner>(f.a[i], a_tile + 2 * A::offset(row0 + m * i, 16 * step), A::inner);
#pragma unroll
    for (int j = 0; j < cols; ++j)
      Shape::template load_b<!B::k_inner>(f.b[j], b_tile + 2 * B::offset(col0 + n * j, 16 * step), B::inner);
  }

  __device__ void multiply(const Fragments& f) {
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < cols; ++j) Shape::template multiply<A::k_inner, !B::k_inner>(acc[i][j], f.a[i], f.b[j]);
  }

  /// All products of one pair of tiles.
  __device__ void multiply_tiles(unsigned a_tile, unsigned b_tile) {
#pragma unroll
    for (int step = 0; step < Cfg::tile_k / 16; ++step) {
      Fragments f;
      load(f, a_tile, b_tile, step);
      multiply(f);
    }
  }

  /// Stores the sums, one product after the other through `staging`, 1 KiB of shared memory per warp. wmma does not say
  /// which lane holds which element, so rows take shape there. A lane then moves eight elements of a row.
  __device__ void store(const GemmArgs& args, int tile_row, int tile_col, unsigned staging) const {
    const int lane = threadIdx.x % 32;
    const unsigned mine = staging + threadIdx.x / 32 * 1024;
    constexpr int run = 16 / int(sizeof(typename Cfg::out_type));
    const int row = lane * 8 / n, col = lane * 8 % n;
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < cols; ++j) {
        Shape::store(mine, acc[i][j], n);
        __syncwarp();
        float value[8];
#pragma unroll
        for (int v = 0; v < 8; v += 4)
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(value[v]), "=f"(value[v + 1]), "=f"(value[v + 2]), "=f"(value[v + 3])
                       : "r"(mine + (lane * 8 + v) * 4)
                       : "memory");
        __syncwarp();
#pragma unroll
        for (int v = 0; v < 8; v += run)
          store_run<Cfg, run>(args, tile_row + row0 + m * i + row, tile_col + col0 + n * j + col + v,
                              *reinterpret_cast<const float (*)[run]>(value + v));
      }
  }
};
