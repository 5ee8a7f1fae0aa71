// split: an fp32 operand as three bf16 numbers per element, tile by tile as the blocks of t03 will read them.
//
// A block makes one tile, a thread patches of 4 lines x 4 of k: whichever index is contiguous, it loads 16 bytes at a
// time, and stores 8. Four neighbouring threads fill a sector of 32 bytes.
#include "ptx/grid_dependency.cuh"
#include "tile/mend.cuh"
#include "tile/split_operand.cuh"

/// gemm/params.py packs it. Strides in elements: element (line, i) is at from[line * line_stride + i * k_stride].
struct SplitArgs {
  const float* from;
  void* records;  // tile/split_operand.cuh
  long long from_batch, record_batch, line_stride, k_stride;
  int lines, k;
};

/// The place in a tile where a thread's patch number `at` starts: four neighbours take 16 of k, eight such groups 32
/// lines.
struct Patch {
  static constexpr int runs = Cfg::tile_k / 16;  // of four patches along k
  int line, k;

  __device__ explicit Patch(int at)
      : line(4 * (at % 32 / 4 + at / 32 / runs * 8)), k(4 * (at % 4 + at / 32 % runs * 4)) {}
};

/// Up to four elements from `from` on, `step` apart; `left` exist, the others are 0.
__device__ inline void load_four(float (&to)[4], const float* from, long long step, int left) {
  if (Cfg::wide && left >= 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = i < left ? from[i * step] : 0.f;
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) split(const __grid_constant__ SplitArgs args) {
  using Operand = SplitOperand<Cfg::extent, Cfg::tile_k>;
  using Tile = Operand::Tile;
  constexpr int patches = Cfg::extent * Cfg::tile_k / 16, each = patches / Cfg::threads;
  static_assert(Cfg::tile_k % 16 == 0 && Cfg::extent % 32 == 0 && each * Cfg::threads == patches, "all of a tile");
  __shared__ float scratch[2 * Cfg::threads / 32];
  const Operand operand(args.records, args.record_batch, args.lines, args.k);
  const Lines origin{args.from + blockIdx.y * args.from_batch, args.line_stride, args.k_stride};
  wait_for_earlier_grids();  // also where there is nothing to split: who waits for this grid waits for those before it
  let_later_grids_start();
  if (operand.tiles == 0) return;
  const int block = blockIdx.x / operand.tiles, tile = blockIdx.x % operand.tiles;
  unsigned char* const to = operand.tile(block, tile);
  float value[each][4][4];  // [line][k]
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const Patch patch(e * Cfg::threads + threadIdx.x);
    const int line = block * Cfg::extent + patch.line, k = tile * Cfg::tile_k + patch.k;
    const float* from = origin.base + line * origin.stride + k * origin.k_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if constexpr (Cfg::k_inner) {
        load_four(value[e][i], from + i * origin.stride, origin.k_stride, line + i < args.lines ? args.k - k : 0);
      } else {
        float column[4];
        load_four(column, from + i * origin.k_stride, origin.stride, k + i < args.k ? args.lines - line : 0);
#pragma unroll
        for (int j = 0; j < 4; ++j) value[e][j][i] = column[j];
      }
  }
  float most = 0, least = __uint_as_float(0x7f800000);
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const Patch patch(e * Cfg::threads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned part[Bf16x3::planes][2];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float size = fabsf(value[e][i][j]);
        most = fmaxf(most, size);
        if (size > 0) least = fminf(least, size);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        Bf16x3::split(value[e][i][2 * j], value[e][i][2 * j + 1], part[0][j], part[1][j], part[2][j]);
      unsigned char* const place = to + 2 * Tile::Swz::apply(Tile::offset(patch.line + i, patch.k));
#pragma unroll
      for (int p = 0; p < Bf16x3::planes; ++p)
        *reinterpret_cast<uint2*>(place + p * Tile::bytes) = make_uint2(part[p][0], part[p][1]);
    }
  }
  most = join_block<Cfg::threads / 32>(most, scratch, [](float a, float b) { return fmaxf(a, b); });
  least =
      join_block<Cfg::threads / 32>(least, scratch + Cfg::threads / 32, [](float a, float b) { return fminf(a, b); });
  if (threadIdx.x == 0) operand.extremes(block)[tile] = make_float2(most, least);
  if (blockIdx.x == 0 && threadIdx.x == 0) operand.origin() = origin;
}
