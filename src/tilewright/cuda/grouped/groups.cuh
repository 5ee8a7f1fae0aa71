#pragma once
// Products in groups: which tile of which group is whose turn. The groups' sizes are on the device alone.
//
// One extent of the product, Cfg::axis, is cut into groups by the numbers in `ends`; what the other arrays have besides
// is one matrix per group:
//
//     axis_m     rows of A and out           B[group]
//     axis_n     columns of B and out        A[group]
//     axis_k     columns of A, rows of B     out[group]
//
// Tiles are numbered through all groups, one group after the other. A warp looks at 32 groups at once, one per lane:
//
//     lane       0   1   2   3
//     ends       5   5   9   7      as they are given; one that falls counts as the largest before it
//     begin      0   5   5   9
//     end        5   5   9   9
//     upto       2   2   3   3      tiles up to the group's last, where a tile is 4 rows high
//
// With Cfg::fills what follows the last end is one group more, with no k: its part of the result is 0.
// The group of a tile is the first whose `upto` is above its number. The tiles of a block only rise, so it never looks
// back; every warp finds them by itself, with no barrier.

#include "gemm/args.cuh"
#include "ptx/number16.cuh"

constexpr int axis_m = 0, axis_n = 1, axis_k = 2;

/// grouped/params.py packs it.
struct GroupedArgs {
  GemmArgs product;  // m, n or k is of all groups together; batch strides lead from one group to the next
  const int* ends;   // where each group ends along the axis
  int groups;
  unsigned* drawn;  // tiles that blocks have come for besides their first ones, where they draw them (tile/turns.cuh)
};

/// A tile of one group's product.
struct GroupTile {
  GemmArgs product;
  TileOrigin origin;
  int group, begin;  // its number, and where it begins along the axis
};

template <class Cfg>
class Groups {
  static constexpr unsigned all = ~0u;

  const GroupedArgs& args;
  int window = 0, reached = 0;  // the first group looked at; the end of those before it
  unsigned before = 0;          // tiles of those
  int begin, end;               // of this lane's group
  unsigned upto;

  __device__ int count() const { return args.groups + Cfg::fills; }
  __device__ int extent() const {
    return Cfg::axis == axis_m ? args.product.m : Cfg::axis == axis_n ? args.product.n : args.product.k;
  }

  __device__ unsigned tiles(int size) const {
    if constexpr (Cfg::axis == axis_m) return tiles_of<Cfg>(size, args.product.n);
    if constexpr (Cfg::axis == axis_n) return tiles_of<Cfg>(args.product.m, size);
    return tiles_of<Cfg>(args.product.m, args.product.n);  // of a group with no k too: its result is 0
  }

  __device__ void look() {
    const int lane = threadIdx.x % 32, group = window + lane;
    end = group < args.groups ? min(max(args.ends[group], reached), extent()) : group < count() ? extent() : reached;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(all, end, step);
      if (lane >= step) end = max(end, other);
    }
    begin = __shfl_up_sync(all, end, 1);
    if (lane == 0) begin = reached;
    upto = group < count() ? tiles(end - begin) : 0;
    if (lane == 0) upto += before;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(all, upto, step);
      if (lane >= step) upto += other;
    }
  }

 public:
  /// Reads the first ends.
  __device__ explicit Groups(const GroupedArgs& args) : args(args) { look(); }

  /// Tile number `tile`, which must not fall from call to call; false where there are no more. By whole warps.
  __device__ bool find(unsigned tile, GroupTile& found) {
    unsigned above = __ballot_sync(all, upto > tile);
    while (above == 0) {
      if (window + 32 >= count()) return false;
      window += 32, reached = __shfl_sync(all, end, 31), before = __shfl_sync(all, upto, 31);
      look();
      above = __ballot_sync(all, upto > tile);
    }
    const int lane = __ffs(above) - 1;
    const int from = __shfl_sync(all, begin, lane), size = __shfl_sync(all, end, lane) - from;
    const unsigned earlier = __shfl_sync(all, upto, max(lane - 1, 0));  // of the groups before it
    found.group = window + lane, found.begin = from;
    set(found.product, found.group, from, size);
    found.origin = tile_origin<Cfg>(tile - (lane > 0 ? earlier : before), found.product.m, found.product.n);
    return true;
  }

 private:
  /// The product of a group that is `size` long along the axis, from `from` on.
  __device__ void set(GemmArgs& product, int group, int from, int size) const {
    product = args.product;
    using In = typename Cfg::element;
    using Out = typename Cfg::out_type;
    const auto* a = static_cast<const In*>(product.a);
    const auto* b = static_cast<const In*>(product.b);
    auto* out = static_cast<Out*>(product.out);
    if constexpr (Cfg::axis == axis_m) {
      a += from * product.a_row, b += group * product.b_batch, out += from * product.out_row, product.m = size;
    } else if constexpr (Cfg::axis == axis_n) {
      a += group * product.a_batch, b += from * product.b_col, out += from * product.out_col, product.n = size;
    } else {
      a += from * product.a_col, b += from * product.b_row, out += group * product.out_batch, product.k = size;
    }
    if (Cfg::fills && group == args.groups) product.k = 0;
    product.a = a, product.b = b, product.out = out;
    product.a_batch = product.b_batch = product.out_batch = 0;
    move_scales(product, min(group, max(args.groups - 1, 0)), from);
  }

  /// The same of what is fused: scales of fp8 operands. Those of B's blocks have rows along k, those of A's columns.
  template <class Args>
  static __device__ void move_scales(Args& product, int group, int from) {
    if constexpr (Cfg::scales > 0) {
#pragma unroll
      for (int i = 0; i < Cfg::scales; ++i) {
        auto& scale = product.fused.operand[i];
        long long away = group * scale.batch;
        if (Cfg::axis == axis_m && i != Cfg::b_blocks) away += from * scale.row;
        if (Cfg::axis == axis_n && i != Cfg::a_blocks) away += from * scale.col;
        scale.base = static_cast<const float*>(scale.base) + away;
      }
    }
  }
};

/// Sets a tile that belongs to no group to 0, by `threads` threads; whether it was one. Others' sums without k are 0
/// too, but here there may be no scale, or any, to multiply them by.
template <class Cfg>
__device__ inline bool clear_rest(const GroupedArgs& args, const GroupTile& at, int threads) {
  if (!Cfg::fills || Cfg::scales == 0 || at.group < args.groups) return false;
  using Out = typename Cfg::out_type;
  const int rows = min(Cfg::tile_m, at.product.m - at.origin.row),
            cols = min(Cfg::tile_n, at.product.n - at.origin.col);
  auto* out = static_cast<Out*>(at.product.out);
  for (int i = threadIdx.x; i < rows * cols; i += threads)
    out[(at.origin.row + i / cols) * at.product.out_row + (at.origin.col + i % cols) * at.product.out_col] =
        from_float<Out>(0);
  return true;
}
