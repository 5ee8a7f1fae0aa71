// Finer points: messages of relaxed words, words of which bytes are missing, registers of wgmma, proxies that write over.
#include <cuda/atomic>
using Word = cuda::atomic_ref<int, cuda::thread_scope_device>;
constexpr auto relaxed = cuda::std::memory_order_relaxed;
constexpr auto release = cuda::std::memory_order_release;
constexpr auto acquire = cuda::std::memory_order_acquire;

__device__ __forceinline__ unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// A value and its flag, both volatile: each is seen, but in no order.
template <bool FENCE>
__device__ void a_pair_of_volatiles(volatile int *value, volatile int *flag, int *y) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        *value = 42; // BUG
        if (FENCE) __threadfence();
        *flag = 1;
    } else {
        while (!*flag) {}
        if (FENCE) __threadfence();
        *y = *value; // BUG
    }
}

//! fence_missing | grid 2 | block 32 | i32[1]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void volatile_is_no_order(int *v, int *f, int *y) { a_pair_of_volatiles<false>(v, f, y); } // BUG

//! right | grid 2 | block 32 | i32[1]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void volatiles_with_fences(int *v, int *f, int *y) { a_pair_of_volatiles<true>(v, f, y); }

template <bool ORDERED>
__device__ void a_pair_of_atomics(int *value, int *flag, int *y) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        Word(*value).store(42, relaxed); // BUG
        Word(*flag).store(1, ORDERED ? release : relaxed);
    } else {
        while (!Word(*flag).load(ORDERED ? acquire : relaxed)) {}
        *y = Word(*value).load(relaxed); // BUG
    }
}

//! fence_missing | grid 2 | block 32 | i32[1]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void relaxed_is_no_order(int *v, int *f, int *y) { a_pair_of_atomics<false>(v, f, y); } // BUG

//! right | grid 2 | block 32 | i32[1]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void relaxed_under_a_release(int *v, int *f, int *y) { a_pair_of_atomics<true>(v, f, y); }

// Each block leaves a part; block 0 adds them up past its first-level cache, with a fence before the poll or after it.
template <bool AFTER>
__device__ void add_up(int *part, int *flag, int *y) {
    if (threadIdx.x) return;
    if (blockIdx.x) {
        part[blockIdx.x] = blockIdx.x; // BUG
        __threadfence();
        atomicExch(flag + blockIdx.x, 1);
        return;
    }
    int sum = 0;
    for (int b = 1; b < gridDim.x; ++b) {
        if (!AFTER) __threadfence();
        while (atomicAdd(flag + b, 0) == 0) {}
        if (AFTER) __threadfence();
        sum += __ldcg(part + b); // BUG
    }
    *y = sum;
}

//! acquire_missing | grid 4 | block 32 | i32[4]=zeros i32[4]=zeros i32[1]=zeros
extern "C" __global__ void a_fence_before_the_poll(int *part, int *flag, int *y) { add_up<false>(part, flag, y); } // BUG

//! right | grid 4 | block 32 | i32[4]=zeros i32[4]=zeros i32[1]=zeros
extern "C" __global__ void a_fence_after_the_poll(int *part, int *flag, int *y) { add_up<true>(part, flag, y); }

// A hash by words of bytes: the last word has bytes that nobody wrote.
template <bool WHOLE>
__device__ void hash_of_words(const unsigned char *x, unsigned *y, int n) {
    __align__(4) unsigned char bytes[16];
    for (int i = 0; i < n; ++i) bytes[i] = x[i];
    for (int i = n; WHOLE && i < 16; ++i) bytes[i] = 0;
    unsigned hash = 0;
    for (int i = 0; i < (n + 3) / 4; ++i) hash = hash * 31 + ((unsigned *)bytes)[i]; // BUG
    y[threadIdx.x] = hash;
}

//! uninitialised_read | u8[16]=arange u32[32]=zeros 14
extern "C" __global__ void a_word_of_two_bytes(const unsigned char *x, unsigned *y, int n) { hash_of_words<false>(x, y, n); } // BUG

//! right | u8[16]=arange u32[32]=zeros 14
extern "C" __global__ void a_word_filled_up(const unsigned char *x, unsigned *y, int n) { hash_of_words<true>(x, y, n); }

template <bool WHOLE>
__device__ void bits_of_words(const unsigned char *x, unsigned char *bytes, unsigned *y, int n) {
    const int t = threadIdx.x;
    if (t < n) bytes[t] = x[t];
    else if (WHOLE) bytes[t] = 0;
    __syncwarp();
    if (t < 8) y[t] = __popc(((unsigned *)bytes)[t]); // BUG
}

//! uninitialised_read | u8[32]=arange u8[32]=empty u32[8]=zeros 29
extern "C" __global__ void the_bits_of_a_byte(const unsigned char *x, unsigned char *b, unsigned *y, int n) { bits_of_words<false>(x, b, y, n); } // BUG

//! right | u8[32]=arange u8[32]=empty u32[8]=zeros 29
extern "C" __global__ void the_bits_of_a_word(const unsigned char *x, unsigned char *b, unsigned *y, int n) { bits_of_words<true>(x, b, y, n); }

struct Mixed {
    char tag;
    short length;
    int key;
};

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void fields_beside_padding(const int *x, int *y) {
    Mixed many[4];
    for (int i = 0; i < 4; ++i) {
        many[i].tag = (char)(x[i] + 1);
        many[i].key = x[i];
    }
    Mixed one = many[x[threadIdx.x] & 3];
    y[threadIdx.x] = one.tag * 3 + (one.key == 2);
}

// A part of a warp at a barrier that counts threads: the others read before it.
template <bool ALL>
__device__ void a_counted_barrier(int *y) {
    __shared__ int s[64];
    const int t = threadIdx.x;
    s[t] = t; // BUG
    if (ALL || t < 32 || t >= 48) asm volatile("bar.sync 1, 64;" ::: "memory");
    y[t] = s[63 - t]; // BUG
}

//! shared_race | block 64 | i32[64]=zeros
extern "C" __global__ void half_a_warp_at_a_barrier(int *y) { a_counted_barrier<false>(y); } // BUG

//! right | block 64 | i32[64]=zeros
extern "C" __global__ void whole_warps_at_a_barrier(int *y) { a_counted_barrier<true>(y); }

// Zeros for the ragged rest of a tile, before a bulk copy brings the tile.
template <bool FENCE>
__device__ void zeros_under_a_copy(const float *x, float *y) {
    __shared__ __align__(128) float s[64];
    __shared__ unsigned long long bar;
    const int t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&bar)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    s[t] = 0;
    if (FENCE) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(at(&bar)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(at(s)), "l"(x), "r"(at(&bar)) : "memory"); // BUG
    }
    asm volatile("{ .reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra W; }" ::"r"(at(&bar)) : "memory");
    y[t] = s[63 - t];
}

//! overwrite_fence_missing | block 64 | f32[32]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fresh_zeros(const float *x, float *y) { zeros_under_a_copy<false>(x, y); } // BUG

//! right | block 64 | f32[32]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fenced_zeros(const float *x, float *y) { zeros_under_a_copy<true>(x, y); }

// Accumulators that are scaled between two products.
template <bool FENCE>
__device__ void scaled_products(float *y, float scale) {
    __shared__ __align__(128) unsigned short a[1024], b[128];
    float d[4] = {};
    for (int i = threadIdx.x; i < 1024; i += 128) a[i] = 0x3f80;
    b[threadIdx.x] = 0x3f80;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const unsigned long long to_a = at(a) >> 4 | 1ull << 16 | 16ull << 32, to_b = at(b) >> 4 | 1ull << 16 | 16ull << 32;
    for (int i = 0; i < 2; ++i) {
        if (FENCE || i == 0) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(to_a), "l"(to_b)); // BUG
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        for (int j = 0; j < 4; ++j) d[j] *= scale;
    }
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void scaled_and_not_fenced(float *y, float scale) { scaled_products<false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void scaled_and_fenced(float *y, float scale) { scaled_products<true>(y, scale); }

// A butterfly in a block of 24 threads: what a lane that does not exist would give is dropped, or added.
template <bool DROPPED>
__device__ void butterfly_of_24(const int *x, int *y) {
    int v = x[threadIdx.x];
    for (int o = 16; o > 0; o /= 2) {
        const int u = __shfl_xor_sync(0xffffffu, v, o); // BUG
        v += !DROPPED || (threadIdx.x ^ o) < 24 ? u : 0;
    }
    y[threadIdx.x] = v;
}

//! shuffle_source | block 24 | i32[24]=ones i32[24]=zeros
extern "C" __global__ void lanes_past_24_are_added(const int *x, int *y) { butterfly_of_24<false>(x, y); } // BUG

//! right | block 24 | i32[24]=ones i32[24]=zeros
extern "C" __global__ void lanes_past_24_are_dropped(const int *x, int *y) { butterfly_of_24<true>(x, y); }
