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
/// Of the address 18 bits count: in a cluster the upper ones are the block's number.
/// `next_panel`: bytes from one panel of row_bytes to the next, where rows run along m or n.
template <int row_bytes>
__device__ inline unsigned long long wgmma_operand(unsigned at, unsigned next_panel) {
  static_assert(row_bytes == 32 || row_bytes == 64 || row_bytes == 128, "as wide as one of the three swizzles");
  constexpr unsigned long long swizzle = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  constexpr unsigned eight_rows = 8 * row_bytes;
  return swizzle << 62 | (unsigned long long)(eight_rows >> 4) << 32 | (next_panel >> 4) << 16 | (at >> 4 & 0x3fff);
}

/// One product of the type and width, for the widths below. `a_across`, `b_across`: whether rows run along m or n.
/// `add` 0: D = A B, and what D held is not read.
template <class T, bool a_across, bool b_across, int columns>
struct Wgmma;

/// The same with A in registers: those that mma_m16n8k16 takes, of the warp's 16 rows. They must stay as they are until
/// wgmma_wait (wgmma_read says so to the compiler).
template <class T, bool b_across, int columns>
struct WgmmaHeld;

/// Says that products have read `a`, registers of A: until here the compiler keeps nothing else in them.
__device__ inline void wgmma_read(unsigned (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// The lists grow by 16 columns, which are 8 registers: their places in the text, and what stands there.
#define TW_ONE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TW_AT16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TW_IN16 TW_ONE(0), TW_ONE(1)
#define TW_AT32 TW_AT16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TW_IN32 TW_IN16, TW_ONE(2), TW_ONE(3)
#define TW_AT48 TW_AT32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TW_IN48 TW_IN32, TW_ONE(4), TW_ONE(5)
#define TW_AT64 TW_AT48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TW_IN64 TW_IN48, TW_ONE(6), TW_ONE(7)
#define TW_AT80 TW_AT64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TW_IN80 TW_IN64, TW_ONE(8), TW_ONE(9)
#define TW_AT96 TW_AT80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TW_IN96 TW_IN80, TW_ONE(10), TW_ONE(11)
#define TW_AT112 TW_AT96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TW_IN112 TW_IN96, TW_ONE(12), TW_ONE(13)
#define TW_AT128 TW_AT112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TW_IN128 TW_IN112, TW_ONE(14), TW_ONE(15)
#define TW_AT144 TW_AT128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TW_IN144 TW_IN128, TW_ONE(16), TW_ONE(17)
#define TW_AT160 TW_AT144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TW_IN160 TW_IN144, TW_ONE(18), TW_ONE(19)
#define TW_AT176 TW_AT160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TW_IN176 TW_IN160, TW_ONE(20), TW_ONE(21)
#define TW_AT192 TW_AT176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TW_IN192 TW_IN176, TW_ONE(22), TW_ONE(23)
#define TW_AT208 TW_AT192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TW_IN208 TW_IN192, TW_ONE(24), TW_ONE(25)
#define TW_AT224 TW_AT208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TW_IN224 TW_IN208, TW_ONE(26), TW_ONE(27)
#define TW_AT240 TW_AT224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TW_IN240 TW_IN224, TW_ONE(28), TW_ONE(29)
#define TW_AT256 TW_AT240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define TW_IN256 TW_IN240, TW_ONE(30), TW_ONE(31)
#define TW_WGMMA_OF(T, n, r0, r1, r2, r3, r4, r5, r6)                                                                \
  template <bool a_across, bool b_across>                                                                            \
  struct Wgmma<T, a_across, b_across, n / 8> {                                                                       \
    static __device__ void multiply(float (&d)[n / 8][4], unsigned long long a_at, unsigned long long b_at,          \
                                    int add = 1) {                                                                   \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #T \
                   "." #T " {" TW_AT##n "}, " r0 ", " r1 ", add, 1, 1, " r3 ", " r4 ";}"                             \
                   : TW_IN##n                                                                                        \
                   : "l"(a_at), "l"(b_at), "r"(add), "n"(int(a_across)), "n"(int(b_across))                          \
                   : "memory");                                                                                      \
    }                                                                                                                \
  };                                                                                                                 \
  template <bool b_across>                                                                                           \
  struct WgmmaHeld<T, b_across, n / 8> {                                                                             \
    static __device__ void multiply(float (&d)[n / 8][4], const unsigned (&a)[4], unsigned long long b_at,           \
                                    int add = 1) {                                                                   \
      asm volatile("{.reg .pred add; setp.ne.b32 add, " r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #T \
                   "." #T " {" TW_AT##n "}, {" r0 ", " r1 ", " r2 ", " r3 "}, " r4 ", add, 1, 1, " r6 ";}"           \
                   : TW_IN##n                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_at), "r"(add), "n"(int(b_across))             \
                   : "memory");                                                                                      \
    }                                                                                                                \
  };
#define TW_WGMMA(...) TW_WGMMA_OF(bf16, __VA_ARGS__) TW_WGMMA_OF(f16, __VA_ARGS__)
TW_WGMMA(16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
TW_WGMMA(32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
TW_WGMMA(48, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
TW_WGMMA(64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
TW_WGMMA(80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
TW_WGMMA(96, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
TW_WGMMA(112, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
TW_WGMMA(128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
TW_WGMMA(144, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
TW_WGMMA(160, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
TW_WGMMA(176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
TW_WGMMA(192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
TW_WGMMA(208, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
TW_WGMMA(224, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
TW_WGMMA(240, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
TW_WGMMA(256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#undef TW_WGMMA
#undef TW_WGMMA_OF
