#pragma once
// The layout of fp32 operands in shared memory for tensor cores: `planes` tiles of 16-bit units, `units` of them an
// element.
//
//     Tf32      1 plane, 2 units an element: rounded to tf32
//     Bf16x3    3 planes of bf16, which add up to the element: 24 bits = 8 + 8 + 8

#include "ptx/bf16x2.cuh"
#include "ptx/tf32.cuh"
#include "tile/meta.cuh"
#include "tile/mma_tile.cuh"

/// Fragments of m16n8k8 from 32-bit elements whose m or n is the inner index: ldmatrix transposes 16-bit elements only,
/// so these are loads of single elements. Lane (g, t) = (lane / 4, lane % 4) reads m or n = g, k = t.
template <class Tile, bool is_a>
struct ElementReader {
  unsigned at;  // shared address of this lane's element at k = 0, in buffer 0

  __device__ ElementReader(unsigned tile, int warp_start) {
    const int lane = threadIdx.x % 32;
    at = tile + 2 * Tile::Swz::apply(lane % 4 * Tile::inner + 2 * (warp_start + lane / 4));
  }

  /// Like FragmentReader::load. Registers 1 and 2 of A, 2 and 1 of B, lie 8 further along m or n and 4 further along k.
  template <int pieces>
  __device__ void load(unsigned (&to)[pieces][4], unsigned buffer_bytes, int step, int first = 0) const {
#pragma unroll
    for (int i = 0; i < pieces; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int along = is_a ? r % 2 : r / 2, deeper = is_a ? r / 2 : r % 2;
        const unsigned element = (8 * step + 4 * deeper) * Tile::inner + 2 * (16 * (first + i) + 8 * along);
        asm volatile("ld.shared.b32 %0, [%1];"
                     : "=r"(to[i][r])
                     : "r"(Tile::step(at + buffer_bytes, element))
                     : "memory");
      }
  }
};

struct Tf32 {
  static constexpr int planes = 1, units = 2, step_k = 8;
  // k inner: as ldmatrix wants it. m or n inner: a lane's line k % 4 moves it by 8 banks, so that 4 lines of 8
  // neighbouring elements are 32 banks.
  template <int extent, int tile_k, bool k_inner>
  using Tile = typename Select<k_inner, SharedTile<extent, 2 * tile_k, true, ConflictFree<2 * tile_k>>,
                               SharedTile<2 * extent, tile_k, false, Swizzle<2, 4, log2_of(2 * extent) - 4>>>::type;
  template <class Tile, bool is_a>
  using Reader = typename Select<Tile::k_inner, FragmentReader<Tile, is_a>, ElementReader<Tile, is_a>>::type;

  template <class Tile>
  __device__ void put(unsigned address, const float (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(to_tf32(x[0])), "r"(to_tf32(x[1])),
                 "r"(to_tf32(x[2])), "r"(to_tf32(x[3]))
                 : "memory");
  }
};

/// x = p0 + p1 + p2, each what the one before leaves rounded to bf16: exactly, down to |x| = 2^-109, below which bf16
/// has no numbers for the last bits, and up to (2 - 2^-8) 2^127, from where on p0 is infinite.
struct Bf16x3 {
  static constexpr int planes = 3, units = 1, step_k = 16;
  template <int extent, int tile_k, bool k_inner>
  using Tile = SharedTile<extent, tile_k, k_inner, ConflictFree<(k_inner ? tile_k : extent)>>;
  template <class Tile, bool is_a>
  using Reader = FragmentReader<Tile, is_a>;

  unsigned most[2] = {};  // four running maxima of |p0|, in pairs

  template <class Tile>
  __device__ void put(unsigned address, const float (&x)[4]) {
    unsigned part[planes][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) split(x[2 * i], x[2 * i + 1], part[0][i], part[1][i], part[2][i]);
#pragma unroll
    for (int p = 0; p < planes; ++p)
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address + p * Tile::bytes), "r"(part[p][0]), "r"(part[p][1])
                   : "memory");
#pragma unroll
    for (int i = 0; i < 2; ++i) most[i] = most_bf16x2(most[i], part[0][i]);
  }

  /// The largest magnitude that this thread has put, rounded to bf16.
  __device__ float largest() const {
    const unsigned both = most_bf16x2(most[0], most[1]);
    return fmaxf(fabsf(half_of<bf16>(both, 0)), fabsf(half_of<bf16>(both, 1)));
  }

  static __device__ void split(float x, float y, unsigned& p0, unsigned& p1, unsigned& p2) {
    p0 = pack<bf16>(x, y);
    const float x1 = x - half_of<bf16>(p0, 0), y1 = y - half_of<bf16>(p0, 1);
    p1 = pack<bf16>(x1, y1);
    p2 = pack<bf16>(x1 - half_of<bf16>(p1, 0), y1 - half_of<bf16>(p1, 1));
  }
};
