#pragma once
// An fp32 operand that was split once, for all blocks that read it: a workspace of one record an entry of the batch,
//
//     origin      where the operand itself is, for what parts cannot give
//     extremes    of each tile the largest magnitude, and the least that is not 0
//     tiles       [block of `extent` lines][tile of k][part][line][k], as they will lie in shared memory
//
// so that the copy of a tile is one run of bytes. gemm/rungs/tensor32.py reckons the same sizes.

#include "tile/format32.cuh"
#include "tile/mend.cuh"

template <int extent, int tile_k>
struct SplitOperand {
  using Tile = typename Bf16x3::Tile<extent, tile_k, true>;
  static constexpr int bytes = Bf16x3::planes * Tile::bytes;  // of one tile

  unsigned char* record;
  int blocks, tiles;

  __device__ SplitOperand(const void* base, long long batch_stride, int lines, int k)
      : record(const_cast<unsigned char*>(static_cast<const unsigned char*>(base)) + blockIdx.y * batch_stride * 4),
        blocks((lines + extent - 1) / extent), tiles((k + tile_k - 1) / tile_k) {}

  __device__ Lines& origin() const { return *reinterpret_cast<Lines*>(record); }
  __device__ float2* extremes(int block) const {
    return reinterpret_cast<float2*>(record + Cfg::record_head) + (long long)block * tiles;
  }
  __device__ unsigned char* tile(int block, int tile) const {
    const long long all = (long long)blocks * tiles;
    const long long head = (Cfg::record_head + 8 * all + Cfg::record_slot - 1) / Cfg::record_slot * Cfg::record_slot;
    return record + head + ((long long)block * tiles + tile) * bytes;
  }
};
