#pragma once
// Stream-k: the steps along k of all tiles as one long row, of which each block (or cluster of blocks) takes an equal
// part, wherever tiles begin and end. Only the last tiles are shared out so, one to two for each block; those before
// are whole tiles, in turns.
//
//     4 steps a tile, 3 blocks       tile      0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3 4 4 4 4
//     5 tiles                        block     0 0 0 0 0 0 1 1 1 1 1 1 1 2 2 2 2 2 2 2
//
// A block starts with its last piece. Where that does not end its tile, the sums go to memory for who ends it: a block
// that ends a tile adds what the blocks before it have left of it. That piece comes last, so it hardly ever waits. It
// waits for blocks with lower numbers only, which start no later, so whatever else runs on the GPU, none waits for
// ever.

#include "gemm/args.cuh"
#include "ptx/warpgroup.cuh"

/// gemm/params.py packs it.
struct StreamArgs {
  float* sums;      // of each block, as its threads hold them
  unsigned* flags;  // of each block, one per warpgroup: 1 once its sums are there. 0 before the launch
};

/// Steps [first, first + count) of a tile.
struct Piece {
  unsigned tile;
  int first, count;
};

struct StreamPieces {
  static constexpr unsigned least = 4;  // steps: no tile is cut nearer to its ends

  unsigned blocks, block;  // or clusters of blocks
  unsigned whole, shared;  // tiles that one block each makes, and those that are shared out after them
  unsigned depth;          // steps of a tile
  unsigned begin, end;     // of this block's steps of the shared tiles
  unsigned last, pieces;   // of those: the tile that it ends in, and in how many it is

  __device__ StreamPieces(unsigned tiles, unsigned depth, unsigned block, unsigned blocks)
      : blocks(blocks), block(block), depth(depth) {
    const unsigned waves = tiles / blocks;
    whole = tiles % blocks == 0 ? tiles : waves > 1 ? (waves - 1) * blocks : 0;
    shared = tiles - whole;
    begin = begin_of(block), end = begin_of(block + 1);
    last = end > begin ? (end - 1) / depth : 0;
    pieces = end > begin ? last - begin / depth + 1 : 0;
  }

  __device__ unsigned begin_of(unsigned number) const {
    const unsigned all = shared * depth, at = all / blocks * number + min(number, all % blocks), into = at % depth;
    if (into < least) return at - into;
    return depth - into < least ? at + (depth - into) : at;
  }

  __device__ unsigned count() const { return pieces + whole / blocks; }

  /// This block's piece number `number`, of count(): the last of the shared ones, whole tiles, the others backwards.
  __device__ Piece operator[](unsigned number) const {
    const unsigned turns = whole / blocks, ahead = pieces > 0 ? 1 : 0;
    if (number >= ahead && number - ahead < turns) return {block + (number - ahead) * blocks, 0, int(depth)};
    const unsigned tile = last - (number == 0 ? 0 : number - turns);
    const unsigned start = tile * depth, stop = start + depth;
    const unsigned from = begin > start ? begin : start, to = end < stop ? end : stop;
    return {whole + tile, int(from - start), int(to - from)};
  }

  /// Calls add(block) for each block before this one that has steps of the tile before `piece`, the nearest first.
  template <class Add>
  __device__ void before(const Piece& piece, const Add& add) const {
    const unsigned start = (piece.tile - whole) * depth;
    unsigned from = start + piece.first;
    for (unsigned other = block; from > start;) {
      const unsigned earlier = begin_of(--other);
      if (earlier < from) add(other);
      from = earlier;
    }
  }
};

/// A warpgroup's sums on their way from one block to another, `values` of them a thread.
template <int threads, int values>
struct PassedSums {
  static_assert(values % 4 == 0, "whole 16-byte accesses");

  const StreamArgs& args;

  /// Leaves this block's, in slot `slot`.
  __device__ void leave(const float (&value)[values], unsigned slot) const {
    float4* to = place(slot);
#pragma unroll
    for (int i = 0; i < values; i += 4)
      __stcg(to + i / 4 * threads, make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]));
    __threadfence();
    meet();
    if (threadIdx.x % 128 == 0) asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(flag(slot)), "r"(1) : "memory");
  }

  /// Adds those in slot `slot`, once they are there.
  __device__ void add(float (&value)[values], unsigned slot) const {
    if (threadIdx.x % 128 == 0) {
      unsigned there;
      do {
        asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(there) : "l"(flag(slot)) : "memory");
      } while (!there);
    }
    meet();
    const float4* from = place(slot);
#pragma unroll
    for (int i = 0; i < values; i += 4) {
      const float4 sum = __ldcg(from + i / 4 * threads);
      value[i] += sum.x, value[i + 1] += sum.y, value[i + 2] += sum.z, value[i + 3] += sum.w;
    }
  }

 private:
  __device__ float4* place(unsigned slot) const {
    return reinterpret_cast<float4*>(args.sums) + slot * (unsigned long long)(threads * values / 4) + threadIdx.x;
  }
  __device__ unsigned* flag(unsigned slot) const { return args.flags + slot * (threads / 128) + threadIdx.x / 128; }
  __device__ static void meet() {
    __syncwarp();
    named_barrier_sync(1 + threadIdx.x / 128, 128);
  }
};
