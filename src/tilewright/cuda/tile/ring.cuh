#pragma once
// A ring of buffers in shared memory that cp.async fills ahead of the products.

#include "ptx/cp_async.cuh"

/// `stages` buffers, `ahead` of which are being filled while one is read:
///
///     stages = 4, ahead = 3      tile          0    1    2    3    4    5
///                                its buffer    0    1    2    3    0    1
///     while tile 1 is read       read = 1, write = 0: tile 4 goes where tile 0 was
///
/// Each turn commits one group of copies, also where there is nothing left to copy: waiting counts groups.
template <int stages, int ahead = stages - 1>
struct Ring {
  static_assert(ahead >= 1 && ahead < stages, "one buffer is read, at least one filled");
  int read = 0, write = ahead;

  /// Starts the copies of the first tiles: start(buffer) for each that exists.
  template <class Start>
  __device__ void fill(int tiles, const Start& start) const {
#pragma unroll
    for (int buffer = 0; buffer < ahead; ++buffer) {
      if (buffer < tiles) start(buffer);
      cp_async_commit();
    }
  }

  /// Waits until the oldest tile under way is there for all threads. After the barrier all have left
  /// what they read before.
  __device__ void wait() const {
    cp_async_wait<ahead - 1>();
    __syncthreads();
  }

  /// On to the next tile.
  __device__ void turn() {
    if constexpr (ahead == stages - 1)
      write = read;
    else
      write = write + 1 == stages ? 0 : write + 1;
    read = read + 1 == stages ? 0 : read + 1;
  }

  /// Ends the copies of a turn and goes on to the next tile: it has landed for all, and all have read this one.
  __device__ void advance() {
    cp_async_commit();
    wait();
    turn();
  }
};
