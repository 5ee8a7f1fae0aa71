// h02: new over h01: tensor cores. A warp makes one 16 x 16 product a step, its fragments straight from global memory.
// Every element of A is fetched once a warp that needs it, tile_n / 16 times a block, and nothing hides the latency.
// Where wmma cannot read global memory (ragged sizes, lines that are not 32-byte aligned, or lie one before the other)
// a warp stages its own pieces in shared memory, element by element.
#include "gemm/args.cuh"
#include "tile/copy16.cuh"
#include "tile/wmma_tile.cuh"

/// One warp's 16 x 16 piece of an operand, by elements: lane l takes half of line l / 2.
__device__ inline void stage_piece(unsigned to, const Source<unsigned short>& source, int line0, int inner0) {
  const int line = threadIdx.x % 32 / 2, i = threadIdx.x % 2 * 8;
  const unsigned short* from = source.base + (line0 + line) * source.line_stride + (inner0 + i) * source.inner_stride;
  unsigned word[4];
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    const bool exists = line0 + line < source.line_limit && inner0 + i + w < source.inner_limit;
    const unsigned bits = exists ? from[w * source.inner_stride] : 0;
    word[w / 2] = w % 2 ? word[w / 2] | bits << 16 : bits;
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + (line * 16 + i) * 2), "r"(word[0]), "r"(word[1]),
               "r"(word[2]), "r"(word[3])
               : "memory");
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  static_assert(Cfg::warp_m == 16 && Cfg::warp_n == 16 && Cfg::tile_k == 16,
                "one 16 x 16 x 16 product a warp and step");
  using A = SharedTile<16, 16, Cfg::a_unit != unit_row>;
  using B = SharedTile<16, 16, Cfg::b_unit == unit_row>;
  using Tile = WmmaTile<Cfg, A, B>;
  __shared__ __align__(32) unsigned char staging[Cfg::threads / 32][1024];
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  using Lines = Source<unsigned short>;
  const Lines a = lines_of_a<unsigned short, A::k_inner>(args), b = lines_of_b<unsigned short, !B::k_inner>(args);
  const auto aligned = [](const Lines& s) {
    // wmma takes a line's distance from the next as an unsigned number of 32 bits
    return reinterpret_cast<unsigned long long>(s.base) % 32 == 0 && s.line_stride % 16 == 0 &&
           s.line_stride == unsigned(s.line_stride);
  };
  const bool direct = !Cfg::edge && aligned(a) && aligned(b);

  Tile tile;
  const int row = origin.row + tile.row0, col = origin.col + tile.col0;
  const unsigned mine = shared_address(staging[threadIdx.x / 32]);
  typename Tile::Fragments f;
  if (direct) {
    const unsigned short* a_from = a.base + (A::k_inner ? row * a.line_stride : row);
    const unsigned short* b_from = b.base + (B::k_inner ? col * b.line_stride : col);
    const long long a_step = A::k_inner ? 16 : 16 * a.line_stride, b_step = B::k_inner ? 16 : 16 * b.line_stride;
    for (int k0 = 0; k0 < args.k; k0 += 16, a_from += a_step, b_from += b_step) {
      Tile::Shape::template load_a<A::k_inner>(f.a[0], static_cast<const void*>(a_from), int(a.line_stride));
      Tile::Shape::template load_b<!B::k_inner>(f.b[0], static_cast<const void*>(b_from), int(b.line_stride));
      tile.multiply(f);
    }
  } else {
    for (int k0 = 0; k0 < args.k; k0 += 16) {
      stage_piece(mine, a, A::k_inner ? row : k0, A::k_inner ? k0 : row);
      stage_piece(mine + 512, b, B::k_inner ? col : k0, B::k_inner ? k0 : col);
      __syncwarp();
      Tile::Shape::template load_a<A::k_inner>(f.a[0], mine, 16);
      Tile::Shape::template load_b<!B::k_inner>(f.b[0], mine + 512, 16);
      __syncwarp();  // all lanes have read before the next piece is written
      tile.multiply(f);
    }
  }
  tile.store(args, origin.row, origin.col, shared_address(staging));
}
