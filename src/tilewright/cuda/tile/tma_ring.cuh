#pragma once
// A ring of stages in shared memory that a producer fills by TMA and consumers empty.
//
//     full[s]    1 arrival (the producer's) and the bytes of a stage: it has landed
//     empty[s]   one arrival from each consumer: it may be filled again
//
// Producer and consumers each walk the stages with a ring of their own, and turn it after each one. `phase` is the
// parity of the stage's fill: consumers wait for it at full, the producer waits at empty for the one before, which of a
// fresh barrier passes at once.
//
// With `also`, so many lanes bring more to each stage, by cp.async: each arrives at full too. Consumers read that by
// ordinary loads, which wgmma's end says nothing of, so each of their warps arrives at empty.
//
// In a cluster whose blocks copy into one another, a stage is free once the consumers of all of them have read theirs:
// each arrives at every block's barrier.

#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

template <int stages, int cluster = 1, int also = 0>
struct TmaRing {
  static constexpr int barrier_bytes = 16 * stages;

  unsigned barriers;  // shared address: full, then empty
  int stage = 0;
  unsigned phase = 0;

  __device__ explicit TmaRing(unsigned barriers) : barriers(barriers) {}

  __device__ unsigned full() const { return barriers + 8 * stage; }
  __device__ unsigned empty() const { return barriers + 8 * (stages + stage); }

  /// By one thread, before a barrier of all. `consumers`: of a block, one arrival each.
  __device__ void init(unsigned consumers) const {
#pragma unroll
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(barriers + 8 * s, 1 + also);
      mbarrier_init(barriers + 8 * (stages + s), cluster * consumers * (also > 0 ? 4 : 1));
    }
    mbarrier_init_fence();
  }

  /// Who fills a stage: waits until it is free.
  __device__ void wait_free() const { mbarrier_wait(empty(), phase ^ 1); }

  /// The producer: waits until the stage is free, and expects `bytes` there.
  __device__ void begin(unsigned bytes) const {
    wait_free();
    mbarrier_arrive_expect(full(), bytes);
  }

  /// Of `also`: an arrival once this lane's copies by cp.async have landed.
  __device__ void arrive_when_copied() const { mbarrier_arrive_after_copies(full()); }

  /// A consumer: waits until the stage has landed.
  __device__ void wait() const { mbarrier_wait(full(), phase); }

  /// A consumer's arrival at the stage before this one: its reads are done. By thread `lane` of a warpgroup.
  __device__ void release_previous(unsigned lane) const {
    if constexpr (also > 0) lane %= 32;
    const unsigned barrier = barriers + 8 * (stages + (stage == 0 ? stages : stage) - 1);
    if constexpr (cluster > 1) {
      if (lane < cluster) mbarrier_arrive_at(barrier, lane);
    } else {
      if (lane == 0) mbarrier_arrive(barrier);
    }
  }

  __device__ void turn() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }

  /// Past `count` stages that are others' to read.
  __device__ void skip(unsigned count) {
    const unsigned to = stage + count;
    stage = to % stages, phase ^= to / stages % 2;
  }
};

/// Loads of a tile (SharedTile in tile/tile16.cuh: any struct with its constants) whose panels are as wide as the
/// swizzle: one box for each panel, side by side along the contiguous index. The map's boxes are panel x lines; or,
/// where `parts` blocks of a cluster need the same tile, that part of the lines, which each block has copied to all of
/// them.
template <class Tile, int parts = 1>
struct TmaTile {
  static constexpr int lines = Tile::lines / parts, line_bytes = Tile::panel_bytes / Tile::lines;
  static_assert(Tile::lines % (8 * parts) == 0, "parts begin where the swizzle does");

  unsigned part = 0;          // this block's
  unsigned short blocks = 0;  // bits of those that need the tile, this one among them

  /// The tile whose first element is (mn, k) of the matrix, or of its entry `batch` where the map has three dimensions.
  template <bool batched>
  __device__ void load(unsigned to, const TensorMap& map, int mn, int k, int batch, unsigned barrier) const {
    const int x = Tile::k_inner ? k : mn, y = (Tile::k_inner ? mn : k) + part * lines;
#pragma unroll
    for (int i = 0; i < Tile::inner; i += Tile::panel) {
      const unsigned panel = to + i / Tile::panel * Tile::panel_bytes + part * lines * line_bytes;
      if constexpr (batched && parts > 1)
        tma_load_multicast(panel, map, x + i, y, batch, barrier, blocks);
      else if constexpr (parts > 1)
        tma_load_multicast(panel, map, x + i, y, barrier, blocks);
      else if constexpr (batched)
        tma_load(panel, map, x + i, y, batch, barrier);
      else
        tma_load(panel, map, x + i, y, barrier);
    }
  }
};

/// Loads of a tile whose first `needed` elements along m or n are all that is read, in boxes of `box` of them.
template <class Tile, int box>
struct TmaTileInBoxes {
  static constexpr int line_bytes = Tile::panel_bytes / Tile::lines;
  static_assert(!Tile::k_inner || (box % 8 == 0 && Tile::lines % box == 0), "boxes begin where the swizzle does");
  static_assert(Tile::k_inner || box % Tile::panel == 0, "boxes are whole panels");

  /// Bytes that load() brings.
  static __device__ unsigned bytes(int needed) {
    return min((needed + box - 1) / box * box, Tile::extent) * Tile::tile_k * 2;
  }

  /// As TmaTile's.
  template <bool batched>
  static __device__ void load(unsigned to, const TensorMap& map, int mn, int k, int batch, unsigned barrier,
                              int needed) {
    const auto panel = [&](unsigned at, int x, int y) {
      if constexpr (batched)
        tma_load(at, map, x, y, batch, barrier);
      else
        tma_load(at, map, x, y, barrier);
    };
    if constexpr (Tile::k_inner) {
#pragma unroll
      for (int i = 0; i < Tile::inner; i += Tile::panel)
#pragma unroll
        for (int line = 0; line < Tile::lines; line += box)
          if (line < needed) panel(to + i / Tile::panel * Tile::panel_bytes + line * line_bytes, k + i, mn + line);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::inner; i += Tile::panel)
        if (i / box * box < needed) panel(to + i / Tile::panel * Tile::panel_bytes, mn + i, k);
    }
  }
};
