#pragma once
// What walks share that a warpgroup of its own feeds by TMA (attention/backward_producer.cuh, backward_apart.cuh and
// backward_halves.cuh): rings of tiles in shared memory, rows that are another entry's, arrivals, how a block begins.
// sm_90a.

#include "attention/backward_groups.cuh"
#include "ptx/bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_quads.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "tile/ring_place.cuh"

struct BackwardMaps {
  const TensorMap &q, &k, &v, &grad;
};

template <class Cfg>
struct FedWalk : GroupWalk<Cfg> {
  using Base = GroupWalk<Cfg>;
  using typename Base::Passing;
  using typename Base::T;

  __device__ FedWalk(const BackwardArgs& args, unsigned char* shared) : Base(args, shared) {}

  /// A tile of a head's rows from `row` on: its panels, or each by itself where the last is not whole.
  template <class Tile>
  __device__ void load(unsigned tile, const TensorMap& map, int row, int head, unsigned full) const {
    const int entry = Cfg::varlen ? 0 : this->place.batch;
    if constexpr (Base::d_there == Base::d_head) {
      tma_load(tile, map, 0, row, 0, head, entry, full);
    } else {
      for (int col = 0; col < Base::d_head; col += 64)
        tma_load(tile + col * 2 * Tile::rows, map, col, row, 0, head, entry, full);
    }
  }

  // Of the tiles that pass a block has all, or where Cfg::parts blocks share them its part.

  __device__ int skipped(int part) const {
    return int((long long)(this->end - this->first) * this->heads * part / Cfg::parts);
  }
  __device__ int steps() const { return skipped(part_of_block() + 1) - skipped(part_of_block()); }
  __device__ Cursor opening() const {
    const int tiles = this->end - this->first, before = skipped(part_of_block());
    if (Cfg::parts == 1 || tiles <= 0) return {this->head_0, this->first};
    return {this->head_0 + before / tiles, this->first + before % tiles};
  }

  /// A part of dK or dV, this warp's rows, to where attention/backward_parts.cuh finds it.
  template <int columns>
  __device__ void store_part(const float (&acc)[1][columns][4], float* parts) const {
    const auto& place = this->place;
    float* to = parts + part_row<Cfg>(this->args, part_of_block(), place.batch, place.head) * (8 * columns);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row0 + this->warp_row + 8 * half + this->lane / 4;
      if (row >= place.seq_k) continue;
      float* own = to + (long long)(place.start_k + row) * (8 * columns) + this->lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < columns; ++j)
        *reinterpret_cast<float2*>(own + 8 * j) = make_float2(acc[0][j][2 * half], acc[0][j][2 * half + 1]);
    }
  }

  /// dK and dV, or the one of them that the walk makes, to global memory, or as parts.
  __device__ void store_keys() const {
    const auto& place = this->place;
    const auto to = [](void* base) { return static_cast<unsigned short*>(base); };
    if constexpr (Base::makes_1 && Cfg::parts > 1)
      store_part(this->acc_1, this->args.dk_parts);
    else if constexpr (Base::makes_1)
      this->store(this->acc_1, this->kept_1, this->args.scale,
                  to(this->args.dk) + place.at_k(this->args.dk_at, place.head), this->args.dk_at[2]);
    if constexpr (Base::makes_2 && Cfg::parts > 1)
      store_part(this->acc_2, this->args.dv_parts);
    else if constexpr (Base::makes_2)
      this->template store<typename Base::KeptV, Base::v_there>(
          this->acc_2, Base::makes_1 ? this->kept_2 : this->kept_1, 1.f,
          to(this->args.dv) + place.at_k(this->args.dv_at, place.head), this->args.dv_at[2]);
  }

  /// dS of dP and of the weights as they are multiplied: rounded, which leaves S's registers free.
  template <int pieces, class Stats>
  static __device__ void grade(Held<1, pieces>& ds, const Held<1, pieces>& p, const float (&dp)[1][2 * pieces][4],
                               const Stats& stats) {
#pragma unroll
    for (int j = 0; j < 2 * pieces; ++j) {
      const auto of_column = stats.column(j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned weights = p.piece[j / 2][0][j % 2 * 2 + half];
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; ++e)
          two[e] = half_of<T>(weights, e) * (dp[0][j][2 * half + e] - stats.of(of_column, 0, half, e).delta);
        ds.piece[j / 2][0][j % 2 * 2 + half] = pack<T>(two[0], two[1]);
      }
    }
  }

  /// With packed lengths rows of a tile after the entry's last are another entry's. A weight of 0 does not stop what is
  /// infinite or NaN there, so they become 0.
  template <class Tile>
  __device__ void clear_rows(unsigned tile, int from) const {
    if (from >= Tile::rows) return;
    constexpr int chunks = 8;  // of a row of a panel
    for (unsigned panel = tile; panel < tile + Tile::bytes; panel += 128 * Tile::rows)
      for (int i = max(from, 0) * chunks + threadIdx.x; i < Tile::rows * chunks; i += Base::threads)
        store_shared_zero_128(panel + 16 * i);
    fence_proxy_async();
    Base::meet();
  }
  template <class Tile = Passing>
  __device__ void clear_passing(unsigned tile, const Cursor& now) const {
    if constexpr (Cfg::varlen)
      clear_rows<Tile>(tile, (Base::by_keys ? this->place.seq_q : this->place.seq_k) - now.tile * Cfg::cols);
  }

  /// This warp's arrival, after what all of its lanes did before.
  __device__ void tell(unsigned barrier) const {
    __syncwarp();
    if (this->lane == 0) mbarrier_arrive(barrier);
    __syncwarp();
  }
  /// Lanes that left a wait or a condition one by one are together again.
  static __device__ void begin_products() {
    __syncwarp();
    wgmma_fence();
  }
};

/// A block's work: walk.feed(w, maps) by a thread of warp w of the last warpgroup, whose registers go to the others;
/// walk.make(w) by the threads of warpgroup w, which multiplies.
template <class Walk>
__device__ inline void run_fed(const BackwardMaps& maps, const BackwardArgs& args, unsigned char* shared) {
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler knows it the same for a warp
  Walk walk(args, shared);
  if (walk.place.row0 >= walk.place.seq()) return;
  if (threadIdx.x == 0) walk.start_barriers();
  __syncthreads();
  if (warpgroup == Cfg::n_warps / 4) {
    release_registers<24>();
    if (threadIdx.x % 32 == 0 && walk.steps() > 0) walk.feed(int(threadIdx.x) / 32 - Cfg::n_warps, maps);
  } else {
    take_registers<240>();
    walk.make(warpgroup);
  }
}
