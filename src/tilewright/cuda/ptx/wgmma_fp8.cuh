#pragma once
// wgmma of fp8: as ptx/wgmma.cuh has it, with m64 x n x k32 elements of a byte. Both operands lie along k. sm_90a only.
// SASS: QGMMA.
//
// Two neighbours along k are one element of 16 bits to everything but this instruction: k32 is 16 of them.

#include "ptx/number8.cuh"
#include "ptx/wgmma.cuh"

// The types of A and B of a product.
struct e4m3_by_e4m3;
struct e4m3_by_e5m2;
struct e5m2_by_e4m3;
struct e5m2_by_e5m2;

#define TW_WGMMA_FP8_OF(A, B, n, r0, r1, r2)                                                                         \
  template <>                                                                                                        \
  struct Wgmma<A##_by_##B, false, false, n / 8> {                                                                    \
    static __device__ void multiply(float (&d)[n / 8][4], unsigned long long a_at, unsigned long long b_at,          \
                                    int add = 1) {                                                                   \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #A \
                   "." #B " {" TW_AT##n "}, " r0 ", " r1 ", add, 1, 1;}"                                             \
                   : TW_IN##n                                                                                        \
                   : "l"(a_at), "l"(b_at), "r"(add)                                                                  \
                   : "memory");                                                                                      \
    }                                                                                                                \
  };
#define TW_WGMMA_FP8(...)                  \
  TW_WGMMA_FP8_OF(e4m3, e4m3, __VA_ARGS__) \
  TW_WGMMA_FP8_OF(e4m3, e5m2, __VA_ARGS__) \
  TW_WGMMA_FP8_OF(e5m2, e4m3, __VA_ARGS__) \
  TW_WGMMA_FP8_OF(e5m2, e5m2, __VA_ARGS__)
TW_WGMMA_FP8(32, "%16", "%17", "%18")
TW_WGMMA_FP8(64, "%32", "%33", "%34")
TW_WGMMA_FP8(96, "%48", "%49", "%50")
TW_WGMMA_FP8(128, "%64", "%65", "%66")
TW_WGMMA_FP8(160, "%80", "%81", "%82")
TW_WGMMA_FP8(192, "%96", "%97", "%98")
TW_WGMMA_FP8(224, "%112", "%113", "%114")
TW_WGMMA_FP8(256, "%128", "%129", "%130")
#undef TW_WGMMA_FP8
#undef TW_WGMMA_FP8_OF
