#pragma once
// Accesses of shared memory whose width must not be the compiler's choice.

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// Four floats from a 16-byte aligned address in one access. SASS: LDS.128.
__device__ inline void load_shared_128(float (&to)[4], unsigned address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(address)
               : "memory");
}

/// Two words to an 8-byte aligned address in one access. SASS: STS.64.
__device__ inline void store_shared_64(unsigned address, unsigned first, unsigned second) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

/// Four floats to a 16-byte aligned address in one access. SASS: STS.128.
__device__ inline void store_shared_128(unsigned address, const float (&from)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(from[0]), "f"(from[1]), "f"(from[2]),
               "f"(from[3])
               : "memory");
}

/// Sixteen bytes of zeros to a 16-byte aligned address in one access. SASS: STS.128.
__device__ inline void store_shared_zero_128(unsigned address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}
