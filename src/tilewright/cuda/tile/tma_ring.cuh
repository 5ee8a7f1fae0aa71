#pragma once
// A ring of stages in shared memory that a producer fills by TMA and consumers empty.
//
//     full[s]    1 arrival (the producer's) and the bytes of a stage: it has landed
//     empty[s]   one arrival from each consumer: it may be filled again
//
// Producer and consumers each walk the stages with a ring of their own, and turn it after each one. `phase` is the
// parity of the stage's fill: consumers wait for it at full, the producer waits at empty for the one before, which of a
// fresh barrier passes at once.

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

template <int stages>
struct TmaRing {
  static constexpr int barrier_bytes = 16 * stages;

  unsigned barriers;  // shared address: full, then empty
  int stage = 0;
  unsigned phase = 0;

  __device__ explicit TmaRing(unsigned barriers) : barriers(barriers) {}

  __device__ unsigned full() const { return barriers + 8 * stage; }
  __device__ unsigned empty() const { return barriers + 8 * (stages + stage); }

  /// By one thread, before a barrier of all. `consumers`: arrivals that empty a stage.
  __device__ void init(unsigned consumers) const {
#pragma unroll
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(barriers + 8 * s, 1);
      mbarrier_init(barriers + 8 * (stages + s), consumers);
    }
    mbarrier_init_fence();
  }

  /// The producer: waits until the stage is free, and expects `bytes` there.
  __device__ void begin(unsigned bytes) const {
    mbarrier_wait(empty(), phase ^ 1);
    mbarrier_arrive_expect(full(), bytes);
  }

  /// A consumer: waits until the stage has landed.
  __device__ void wait() const { mbarrier_wait(full(), phase); }

  /// One arrival at the stage before this one: its reads are done.
  __device__ void release_previous() const {
    mbarrier_arrive(barriers + 8 * (stages + (stage == 0 ? stages : stage) - 1));
  }

  __device__ void turn() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

/// Loads of a tile (SharedTile in tile/tile16.cuh: any struct with its constants) whose panels are as wide as the
/// swizzle: one box for each panel, side by side along the contiguous index. The map's boxes are panel x lines.
template <class Tile>
struct TmaTile {
  /// The tile whose first element is (mn, k) of the matrix, or of its entry `batch` where the map has three dimensions.
  template <bool batched>
  static __device__ void load(unsigned to, const TensorMap& map, int mn, int k, int batch, unsigned barrier) {
    const int x = Tile::k_inner ? k : mn, y = Tile::k_inner ? mn : k;
#pragma unroll
    for (int i = 0; i < Tile::inner; i += Tile::panel) {
      const unsigned panel = to + i / Tile::panel * Tile::panel_bytes;
      if constexpr (batched)
        tma_load(panel, map, x + i, y, batch, barrier);
      else
        tma_load(panel, map, x + i, y, barrier);
    }
  }
};
