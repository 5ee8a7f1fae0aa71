#pragma once
// Accumulators that start anew now and then, and what they have held.

#include "tile/mma_tile.cuh"

/// Each thread's accumulators in shared memory, four at a time, neighbours side by side.
template <class Cfg>
struct SharedSums {
  static constexpr int runs = MmaTiling<Cfg>::rows * 2 * MmaTiling<Cfg>::cols;
  unsigned at;

  __device__ explicit SharedSums(unsigned address) : at(address + threadIdx.x * 16) {}

  __device__ void load(float (&to)[4], int run) const { load_shared_128(to, at + run * Cfg::threads * 16); }

  /// Adds the accumulators to the sums, or starts these with them; the accumulators are 0 then.
  __device__ void take(Accumulators<Cfg>& acc, bool first) {
    float(*value)[4] = &acc.value[0][0];
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      float sum[4] = {};
      if (!first) load(sum, run);
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + run * Cfg::threads * 16),
                   "f"(sum[0] + value[run][0]), "f"(sum[1] + value[run][1]), "f"(sum[2] + value[run][2]),
                   "f"(sum[3] + value[run][3])
                   : "memory");
#pragma unroll
      for (int i = 0; i < 4; ++i) value[run][i] = 0;
    }
  }

  /// Adds the sums to the accumulators.
  __device__ void give(Accumulators<Cfg>& acc) const {
    float(*value)[4] = &acc.value[0][0];
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      float sum[4];
      load(sum, run);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[run][i] += sum[i];
    }
  }
};
