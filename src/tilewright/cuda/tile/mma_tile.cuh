#pragma once
// The multiply stage of h08 to h11: ldmatrix brings fragments from swizzled or plain tiles, mma.sync multiplies them.
//
// A warp makes warp_m x warp_n of the block's tile as (warp_m / 16) x (warp_n / 8) products m16n8k16. One ldmatrix.x4
// brings a 16 x 16 piece of either operand: of A one fragment, of B two (columns 0..7: registers 0, 1; 8..15: 2, 3).
// Which of the four 8 x 8 matrices lane i gives a row of, and whether they are transposed on the way:
//
//     A, k_inner     (m = i % 16, k = i / 16 * 8)               plain
//     A, m inner     (m = i / 8 % 2 * 8, k = i % 8 + i / 16 * 8)  .trans
//     B, k_inner     (n = i % 8 + i / 16 * 8, k = i / 8 % 2 * 8)  plain
//     B, n inner     (n = i / 16 * 8, k = i % 16)               .trans

#include "ptx/mma.cuh"
#include "tile/store_rows.cuh"
#include "tile/tile16.cuh"

/// One warp's reader of one operand.
template <class Tile, bool is_a>
struct FragmentReader {
  unsigned at;  // shared address of this lane's row at k = 0, in buffer 0

  /// `warp_start`: the warp's first row of A or column of B; `k_start`: its first k.
  __device__ FragmentReader(unsigned tile, int warp_start, int k_start = 0) {
    const int lane = threadIdx.x % 32;
    constexpr bool tall = is_a == Tile::k_inner;  // lanes 0..15 take 16 lines of the tile, else 0..7 take 8
    const int line = lane % 8 + (tall ? lane / 8 % 2 : lane / 16) * 8;
    const int along = (tall ? lane / 16 : lane / 8 % 2) * 8;
    at = Tile::address(tile, Tile::k_inner ? Tile::offset(warp_start + line, k_start + along)
                                           : Tile::offset(warp_start + along, k_start + line));
  }

  /// `pieces` pieces of 16 along m or n from piece `first` on, at k = 16 * step, from the buffer `buffer_bytes` after
  /// buffer 0.
  template <int pieces>
  __device__ void load(unsigned (&to)[pieces][4], unsigned buffer_bytes, int step, int first = 0) const {
#pragma unroll
    for (int i = 0; i < pieces; ++i)
      ldmatrix_x4<!Tile::k_inner>(to[i], Tile::step(at + buffer_bytes, Tile::offset(16 * (first + i), 16 * step)));
  }
};

template <class Cfg>
struct MmaTiling {
  static constexpr int rows = Cfg::warp_m / 16, cols = Cfg::warp_n / 16;  // 16 x 16 pieces
  static_assert(Cfg::warp_m % 16 == 0 && Cfg::warp_n % 16 == 0, "a warp tile is whole 16 x 16 pieces");
  static constexpr int warps_n = Cfg::tile_n / Cfg::warp_n, warps = Cfg::tile_m / Cfg::warp_m * warps_n;
  int row0, col0;  // of the warp's tile within the block's
  int slice;       // which of slices_k groups of warps this one belongs to

  __device__ MmaTiling() {
    const int warp = threadIdx.x / 32 % warps;
    slice = threadIdx.x / 32 / warps;
    row0 = warp / warps_n * Cfg::warp_m;
    col0 = warp % warps_n * Cfg::warp_n;
  }
};

/// The fragments of one step of 16 along k.
template <class Cfg>
struct Fragments {
  unsigned a[MmaTiling<Cfg>::rows][4], b[MmaTiling<Cfg>::cols][4];
};

template <class Cfg>
struct Accumulators {
  float value[MmaTiling<Cfg>::rows][2 * MmaTiling<Cfg>::cols][4] = {};

  /// Rows to and fro: of two neighbouring products one operand is the same.
  __device__ void multiply(const Fragments<Cfg>& f) {
#pragma unroll
    for (int i = 0; i < MmaTiling<Cfg>::rows; ++i)
#pragma unroll
      for (int step = 0; step < 2 * MmaTiling<Cfg>::cols; ++step) {
        const int j = i % 2 ? 2 * MmaTiling<Cfg>::cols - 1 - step : step;
        mma_m16n8k16<typename Cfg::in_type>(value[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
      }
  }

  /// The sums of slices_k groups of warps, added up in those of slice 0 through shared memory at `at`: of every other
  /// slice each thread's accumulators, four at a time, neighbours side by side. All threads of the block must be here.
  __device__ void add_slices(unsigned at, int slice) {
    constexpr int group = 32 * MmaTiling<Cfg>::warps, runs = MmaTiling<Cfg>::rows * 2 * MmaTiling<Cfg>::cols;
    const unsigned mine = at + threadIdx.x % group * 16;
    float (*run)[4] = &value[0][0];
    if (slice > 0) {
#pragma unroll
      for (int i = 0; i < runs; ++i)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + ((slice - 1) * runs + i) * group * 16),
                     "f"(run[i][0]), "f"(run[i][1]), "f"(run[i][2]), "f"(run[i][3])
                     : "memory");
    }
    __syncthreads();
    if (slice > 0) return;
#pragma unroll
    for (int other = 0; other < Cfg::slices_k - 1; ++other)
#pragma unroll
      for (int i = 0; i < runs; ++i) {
        float v[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                     : "r"(mine + (other * runs + i) * group * 16)
                     : "memory");
#pragma unroll
        for (int j = 0; j < 4; ++j) run[i][j] += v[j];
      }
  }

  /// To global memory (tile/store_rows.cuh).
  __device__ void store(const GemmArgs& args, int row0, int col0) const {
#pragma unroll
    for (int i = 0; i < MmaTiling<Cfg>::rows; ++i) store_sixteen_rows<Cfg>(args, row0 + 16 * i, col0, value[i]);
  }
};
