// h01: the fp32 warp tiling of f08 on 16-bit inputs.
// Half the bytes come through memory; the products stay FFMA on values widened after they left shared memory, so the
// ceiling stays that of fp32. What the tensor cores then add is theirs alone.
#include "tile/copy16.cuh"
#include "tile/simt.cuh"

/// `count` elements from `first` on along m or n, at one k, widened.
template <class Tile, class T, int count>
__device__ inline void load_widened(float* to, const T* tile, int first, int k) {
  if constexpr (Tile::k_inner) {
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = to_float(tile[Tile::offset(first + i, k)]);
  } else {
    static_assert(count % 4 == 0, "8 bytes an access");
#pragma unroll
    for (int i = 0; i < count; i += 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(tile + Tile::offset(first + i, k));
      to[i] = half_of<T>(v.x, 0), to[i + 1] = half_of<T>(v.x, 1);
      to[i + 2] = half_of<T>(v.y, 0), to[i + 3] = half_of<T>(v.y, 1);
    }
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    gemm(const __grid_constant__ GemmArgs args) {
  using T = Cfg::in_type;
  using A = TileA<Cfg>;
  using B = TileB<Cfg>;
  extern __shared__ __align__(128) unsigned char shared[];
  const T* a_tile = reinterpret_cast<const T*>(shared);
  const T* b_tile = reinterpret_cast<const T*>(shared + A::bytes);
  const TileOrigin origin = tile_origin<Cfg>(blockIdx.x, args.m, args.n);
  auto copy_a = copy_of_a<Cfg, A>(args, shared_address(a_tile), origin.row, 0);
  auto copy_b = copy_of_b<Cfg, B>(args, shared_address(b_tile), 0, origin.col);
  using Tiling = WarpTiling<Cfg>;
  const Tiling at;

  float acc[Tiling::rows][Tiling::cols] = {};
  for (int k0 = 0; k0 < args.k; k0 += Cfg::tile_k) {
    copy_a.copy(0);
    copy_b.copy(0);
    __syncthreads();
#pragma unroll(B::k_inner ? 4 : Cfg::tile_k)  // all at once hoist 16 rows of B, and spill
    for (int k = 0; k < Cfg::tile_k; ++k) {
      float a_column[Tiling::rows], b_row[Tiling::cols];
#pragma unroll
      for (int s = 0; s < Cfg::subtiles_m; ++s)
        load_widened<A, T, Cfg::thread_m>(a_column + s * Cfg::thread_m, a_tile, at.row(s), k);
#pragma unroll
      for (int s = 0; s < Cfg::subtiles_n; ++s)
        load_widened<B, T, Cfg::thread_n>(b_row + s * Cfg::thread_n, b_tile, at.col(s), k);
      outer_product(acc, a_column, b_row);
    }
    __syncthreads();
  }
  store_warp_tile<Cfg>(args, origin.row, origin.col, at, acc);
}
