#pragma once

/// Four floats to a 16-byte aligned shared address in one access. SASS: STS.128.
__device__ inline void store_shared_quad(unsigned address, const float (&value)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
}
