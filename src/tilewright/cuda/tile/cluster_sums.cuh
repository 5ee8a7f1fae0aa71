#pragma once
// How the blocks of a cluster add up the sums that each has of the same tile. A warpgroup's groups of 32 columns are
// shared out: a block finishes and stores its own, and leaves its sums of all others in its shared memory, as its
// threads hold them.
//
//     6 groups, 4 blocks       group      0 1 2 3 4 5
//                              block      0 0 1 2 2 3
//
// Every element is the sum over blocks 0, 1, 2, .. in this order, whoever adds it up.

#include "ptx/cluster.cuh"
#include "ptx/shared.cuh"
#include "tile/wgmma_sums.cuh"

template <class Cfg, class Sums>
struct ClusterSums {
  using At = WarpgroupTiling<Cfg>;
  static constexpr int of_a_product = (At::columns + 3) / 4, groups = At::products * of_a_product;
  static constexpr int bytes = 4 * Cfg::tile_m * Cfg::tile_n;

  unsigned shared, rank;

  static constexpr __device__ unsigned owner(int group) { return group * Cfg::cluster_k / groups; }

  __device__ void leave(const float (&value)[At::products][At::columns][4]) const {
#pragma unroll
    for (int g = 0; g < groups; ++g)
      if (owner(g) != rank) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (column(g, j) < At::columns) store_shared_128(place(g, j), value[g / of_a_product][column(g, j)]);
      }
  }

  /// After a barrier of the cluster. `row0`, `col0`: of the warpgroup's tile.
  __device__ void finish(const float (&value)[At::products][At::columns][4], const GemmArgs& args, int row0,
                         int col0) const {
#pragma unroll
    for (int g = 0; g < groups; ++g)
      if (owner(g) == rank) {
        const int row = Sums::row_of(row0, g / of_a_product), first = g % of_a_product, col = col0 + 32 * first;
        GroupOut<Cfg, Sums::by_lane> group;
        group.read(args, row, col, width_of<At::columns>(first));
        float sum[4][4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (column(g, j) < At::columns) {
#pragma unroll
            for (unsigned other = 0; other < Cfg::cluster_k; ++other) {
              float part[4];
              if (other != rank) load_cluster_128(part, place(g, j), other);
#pragma unroll
              for (int e = 0; e < 4; ++e)
                sum[j][e] += other == rank ? value[g / of_a_product][column(g, j)][e] : part[e];
            }
          }
        if (col < args.n) group.store(args, row, col, sum, width_of<At::columns>(first));
      }
  }

 private:
  /// Of the product that is number `j` of a group.
  static constexpr __device__ int column(int group, int j) { return group % of_a_product * 4 + j; }

  /// 16 bytes of each thread side by side.
  __device__ unsigned place(int group, int j) const {
    return shared + ((group / of_a_product * At::columns + column(group, j)) * Cfg::threads + threadIdx.x) * 16;
  }
};
