#pragma once
// Which tiles a cluster of blocks walks, and which of them are this block's. A cluster makes cluster_m x cluster_n
// tiles at a time; its blocks lie in them as their numbers say:
//
//     cluster_m = 2     0          cluster_n = 2     0 1
//                       1
//
// With Cfg::walks_batch the tiles of all products of a batch are one row, product after product: a block that has
// stored a tile goes on to the next product's. Else the grid's second axis counts the products.

#include "gemm/args.cuh"
#include "ptx/cluster.cuh"

/// gemm/rung.py packs it.
struct WalkArgs {
  unsigned entries;  // products whose tiles are walked as one row
};

struct TilePlace {
  TileOrigin origin;
  unsigned entry;  // of the batch
};

template <class Cfg>
struct ClusterTiles {
  static constexpr int blocks = Cfg::cluster_m * Cfg::cluster_n;
  static_assert(blocks <= 2, "all blocks of a cluster copy into one another");

  /// What a cluster makes, as the walk over tiles sees it.
  struct Whole {
    static constexpr int tile_m = Cfg::cluster_m * Cfg::tile_m, tile_n = Cfg::cluster_n * Cfg::tile_n;
    static constexpr int group_m = Cfg::group_m;
  };

  const GemmArgs& args;
  unsigned count, first, step;  // of clusters' tiles: all; this one's first, and from one of its tiles to the next
  unsigned each;                // of one product
  unsigned down, across;        // of this block in its cluster

  __device__ explicit ClusterTiles(const GemmArgs& args, WalkArgs walk = {1})
      : args(args), first(blockIdx.x / blocks), step(gridDim.x / blocks), each(tiles_of<Whole>(args.m, args.n)) {
    count = Cfg::walks_batch ? each * walk.entries : each;
    const unsigned rank = blocks > 1 ? cluster_rank() : 0;
    down = rank / Cfg::cluster_n, across = rank % Cfg::cluster_n;
  }

  /// Of this block's tile in the cluster's tile number `tile`. It may lie outside the result.
  __device__ TileOrigin origin_of(unsigned tile) const {
    const TileOrigin origin = tile_origin<Whole>(tile, args.m, args.n);
    return {origin.row + int(down) * Cfg::tile_m, origin.col + int(across) * Cfg::tile_n};
  }

  /// The same with the product that it is of.
  __device__ TilePlace place_of(unsigned tile) const {
    if constexpr (Cfg::walks_batch) return {origin_of(tile % each), tile / each};
    return {origin_of(tile), blockIdx.y};
  }

  /// The number of its matrix in the result: with split_k, one for each part of k.
  static __device__ unsigned out_entry(const TilePlace& place) {
    return Cfg::split_k > 1 ? blockIdx.z * gridDim.y + place.entry : place.entry;
  }

  /// All threads of the cluster come.
  static __device__ void sync() {
    __syncwarp();  // lanes may have parted
    if constexpr (blocks > 1)
      cluster_sync();
    else
      __syncthreads();
  }
};
