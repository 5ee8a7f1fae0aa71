#pragma once
// Tiles handed out as blocks come for them: a thread of the block draws numbers from a counter in global memory and
// passes them to the warps that multiply.
//
// Blocks whose tiles take different times part under a fixed order, and with them the tiles that share operands, so
// that L2 reads these again and again. Drawn in order, neighbouring tiles start at about the same time.
//
//     given[s]   1 arrival, the drawing thread's: number[s] is there
//     taken[s]   an arrival from each reading warp: it may be written again

#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

/// `readers`: warps that read each number.
template <int readers>
struct Turns {
  static constexpr int bytes = 48;

  unsigned at;  // shared address: given, taken, number, two of each
  unsigned turn = 0;

  __device__ explicit Turns(unsigned at) : at(at) {}

  /// By one thread, before a barrier of all.
  __device__ void init() const {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(at + 8 * s, 1);
      mbarrier_init(at + 16 + 8 * s, readers);
    }
    mbarrier_init_fence();
  }

  /// The drawing thread: passes a number on.
  __device__ void give(unsigned number) {
    const unsigned slot = turn % 2, round = turn / 2 % 2;
    mbarrier_wait(at + 16 + 8 * slot, round ^ 1);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 32 + 4 * slot), "r"(number) : "memory");
    mbarrier_arrive(at + 8 * slot);
    ++turn;
  }

  /// A reading warp: the next number.
  __device__ unsigned take() {
    const unsigned slot = turn % 2, round = turn / 2 % 2;
    mbarrier_wait(at + 8 * slot, round);
    unsigned number;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(number) : "r"(at + 32 + 4 * slot) : "memory");
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(at + 16 + 8 * slot);
    ++turn;
    return number;
  }
};
