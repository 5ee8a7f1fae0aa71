#pragma once
// wgmma: a warpgroup (four warps, the first a multiple of four) multiplies m64 x n x k16 straight from shared memory,
// asynchronously. sm_90a only. SASS: HGMMA.
//
// D (64 x n, fp32) += A (64 x 16) * B (16 x n). Warp w of the warpgroup holds rows 16 w to 16 w + 15 of D; of each 8
// columns j its lanes hold what mma_m16n8k16 gives them: with g = lane / 4 and t = lane % 4 * 2
//
//     d[j][0..1]  (g, 8 j + t..t+1)        d[j][2..3]  (g + 8, 8 j + t..t+1)
//
// wgmma_fence comes before the first product that touches registers which something else wrote; then products, one
// wgmma_commit after each group of them, and wgmma_wait before registers or shared memory are touched again.

#include "ptx/number16.cuh"

/// Orders this thread's earlier writes of shared memory (cp.async's that were waited for, too) before reads by the
/// async proxy, which wgmma is. Each thread that wrote calls it, before the barrier that the product comes after.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `pending` of the newest groups are still under way.
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Says that products wrote `d`: the compiler takes it for unchanged between them and the wait, and may read ahead.
template <int columns>
__device__ inline void wgmma_arrived(float (&d)[columns][4]) {
#pragma unroll
  for (int j = 0; j < columns; ++j)
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}

/// Where an operand lies: rows of `row_bytes` (32, 64 or 128), swizzled within themselves as ConflictFree does
/// (tile/tile16.cuh). `at`: shared address, a multiple of 16 whose rows of eight start at multiples of 8 * row_bytes.
/// `next_panel`: bytes from one panel of row_bytes to the next, where rows run along m or n.
template <int row_bytes>
__device__ inline unsigned long long wgmma_operand(unsigned at, unsigned next_panel) {
  static_assert(row_bytes == 32 || row_bytes == 64 || row_bytes == 128, "as wide as one of the three swizzles");
  constexpr unsigned long long swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  constexpr unsigned eight_rows = 8 * row_bytes;
  return swizzle << 62 | (unsigned long long)(eight_rows >> 4) << 32 | (next_panel >> 4) << 16 | at >> 4;
}

/// One product of the type and width, for the widths below. `a_across`, `b_across`: whether rows run along m or n.
template <class T, bool a_across, bool b_across, int columns>
struct Wgmma;

#define TW_ONE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TW_FOUR(j) TW_ONE(j), TW_ONE(j + 1), TW_ONE(j + 2), TW_ONE(j + 3)
#define TW_SIXTEEN(j) TW_FOUR(j), TW_FOUR(j + 4), TW_FOUR(j + 8), TW_FOUR(j + 12)
#define TW_WGMMA(T, n, registers, a, b, a_flag, b_flag, ...)                                                           \
  template <bool a_across, bool b_across>                                                                              \
  struct Wgmma<T, a_across, b_across, n / 8> {                                                                         \
    static __device__ void multiply(float (&d)[n / 8][4], unsigned long long a_at, unsigned long long b_at) {          \
      asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #T "." #T \
                   " {" registers "}, " a ", " b ", add, 1, 1, " a_flag ", " b_flag ";}"                               \
                   : __VA_ARGS__                                                                                       \
                   : "l"(a_at), "l"(b_at), "n"(int(a_across)), "n"(int(b_across))                                      \
                   : "memory");                                                                                        \
    }                                                                                                                  \
  };

#define TW_D64                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
TW_WGMMA(bf16, 64, TW_D64, "%32", "%33", "%34", "%35", TW_FOUR(0), TW_FOUR(4))
TW_WGMMA(f16, 64, TW_D64, "%32", "%33", "%34", "%35", TW_FOUR(0), TW_FOUR(4))
#define TW_D128                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
TW_WGMMA(bf16, 128, TW_D128, "%64", "%65", "%66", "%67", TW_SIXTEEN(0))
TW_WGMMA(f16, 128, TW_D128, "%64", "%65", "%66", "%67", TW_SIXTEEN(0))
#define TW_D192                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
TW_WGMMA(bf16, 192, TW_D192, "%96", "%97", "%98", "%99", TW_SIXTEEN(0), TW_FOUR(16), TW_FOUR(20))
TW_WGMMA(f16, 192, TW_D192, "%96", "%97", "%98", "%99", TW_SIXTEEN(0), TW_FOUR(16), TW_FOUR(20))
#define TW_D256                                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
TW_WGMMA(bf16, 256, TW_D256, "%128", "%129", "%130", "%131", TW_SIXTEEN(0), TW_SIXTEEN(16))
TW_WGMMA(f16, 256, TW_D256, "%128", "%129", "%130", "%131", TW_SIXTEEN(0), TW_SIXTEEN(16))
#undef TW_D64
#undef TW_D128
#undef TW_D192
#undef TW_D256
#undef TW_WGMMA
#undef TW_SIXTEEN
#undef TW_FOUR
#undef TW_ONE
