#pragma once
// Additions to global memory that return nothing; their order is the machine's.

/// Four neighbouring floats, at a multiple of 16 bytes. sm_90+ in one instruction. SASS: RED.E.ADD.F32x4 there.
__device__ inline void red_add_4(float* to, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + e), "f"(value[e]) : "memory");
#endif
}
