#pragma once
// What t02 and t03 multiply and add: the six products of parts that make one fp32 product (gemm/t02_fp32x3.cuh says why
// these), and sums that accumulators leave when they start anew.

#include "ptx/shared.cuh"
#include "tile/format32.cuh"

/// Multiplies one pair of parts of a 16 x 16 piece of A with all of B's columns: number `product` of the six, the
/// smallest first. Product 0 starts the sums, the others add to them. `left`, `right`: fragments by part.
template <int cols>
__device__ inline void multiply_parts(int product, float (&sum)[2 * cols][4], const unsigned (&left)[3][1][4],
                                      const unsigned (&right)[3][cols][4]) {
  constexpr int of_a[6] = {2, 0, 1, 1, 0, 0}, of_b[6] = {0, 2, 1, 0, 1, 0};
#pragma unroll
  for (int j = 0; j < 2 * cols; ++j) {
    const unsigned (&l)[4] = left[of_a[product]][0];
    const unsigned (&r)[4] = right[of_b[product]][j / 2];
    if (product == 0)
      mma_m16n8k16_bf16_start(sum[j], l, r[j % 2 * 2], r[j % 2 * 2 + 1]);
    else
      mma_m16n8k16<bf16>(sum[j], l, r[j % 2 * 2], r[j % 2 * 2 + 1]);
  }
}

/// Adds the sums to a row of accumulators: this addition rounds, where tensor cores cut.
template <int cols>
__device__ inline void add_to(float (&row)[cols][4], const float (&sum)[cols][4]) {
#pragma unroll
  for (int j = 0; j < cols; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) row[j][e] += sum[j][e];
}

/// Each thread's accumulators in shared memory, four at a time, neighbours side by side.
template <class Cfg>
struct SharedSums {
  static constexpr int runs = MmaTiling<Cfg>::rows * 2 * MmaTiling<Cfg>::cols;
  unsigned at;

  __device__ explicit SharedSums(unsigned address) : at(address + threadIdx.x * 16) {}

  __device__ void load(float (&to)[4], int run) const { load_shared_128(to, at + run * Cfg::threads * 16); }

  /// Adds the accumulators to the sums, or starts these with them; the accumulators are 0 then.
  __device__ void take(Accumulators<Cfg>& acc, bool first) {
    float (*value)[4] = &acc.value[0][0];
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
    float (*value)[4] = &acc.value[0][0];
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      float sum[4];
      load(sum, run);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[run][i] += sum[i];
    }
  }
};
