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

struct Phase {
    unsigned long long word;
    __device__ void init() {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&word)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __device__ void bring(void *to, const void *from, int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&word)), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(&word)) : "memory"); // BUG
    }
    __device__ void wait(int parity) {
        asm volatile("{ .reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W; }" ::"r"(at(&word)), "r"(parity) : "memory");
    }
};
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What threads store before a bulk copy brings a tile to the same place: zeros for a ragged rest, counts, the sums of
// the tile before, or its last elements set to zero; fenced, not fenced, or fenced for global memory alone.
enum Before { ZEROS, COUNTS, SUMS, TAIL };
template <Before WHAT, bool FENCE>
__device__ void stores_under_a_copy(const float *x, float *y) {
    __shared__ __align__(128) float s[64];
    __shared__ Phase bar;
    const int t = threadIdx.x;
    float sum = 0;
    if (t == 0) bar.init();
    if (WHAT == ZEROS) s[t] = 0;
    if (WHAT == COUNTS) {
        ((int *)s)[t] = 0;
        __syncthreads();
        atomicAdd((int *)s + t % 8, 1);
    }
    if (FENCE) fence_proxy();
    __syncthreads();
    for (int tile = 0; tile < 2; ++tile) {
        if (WHAT == COUNTS) sum += ((int *)s)[t % 8];
        if (WHAT == COUNTS) __syncthreads();
        if (t == 0) bar.bring(s, x + 64 * tile, 256); // BUG
        bar.wait(tile);
        sum += s[63 - t];
        __syncthreads();
        if (WHAT == SUMS) s[t] = sum;
        if (WHAT == TAIL && t == 63) *(char *)(s + t) = 0;
        if (FENCE) fence_proxy();
        else asm volatile("fence.proxy.async.global;" ::: "memory");
        __syncthreads();
    }
    y[t] = sum + s[t];
}

//! overwrite_fence_missing | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fresh_zeros(const float *x, float *y) { stores_under_a_copy<ZEROS, false>(x, y); } // BUG

//! right | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fenced_fresh_zeros(const float *x, float *y) { stores_under_a_copy<ZEROS, true>(x, y); }

//! overwrite_fence_missing | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_counts_of_atomics(const float *x, float *y) { stores_under_a_copy<COUNTS, false>(x, y); } // BUG

//! right | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fenced_counts_of_atomics(const float *x, float *y) { stores_under_a_copy<COUNTS, true>(x, y); }

//! overwrite_fence_missing | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_sums_of_the_tile_before(const float *x, float *y) { stores_under_a_copy<SUMS, false>(x, y); } // BUG

//! right | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fenced_sums_of_the_tile_before(const float *x, float *y) { stores_under_a_copy<SUMS, true>(x, y); }

//! overwrite_fence_missing | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_a_byte_of_the_tail(const float *x, float *y) { stores_under_a_copy<TAIL, false>(x, y); } // BUG

//! right | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_copy_over_fenced_a_byte_of_the_tail(const float *x, float *y) { stores_under_a_copy<TAIL, true>(x, y); }

// A helper clears a tile for its peer in the cluster, which then loads into it.
template <bool FENCE>
__device__ void cleared_by_a_peer(const float *x, float *y) {
    __shared__ __align__(128) float s[64];
    __shared__ Phase bar;
    const int t = threadIdx.x;
    unsigned rank, peer;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(at(s + t)), "r"(rank ^ 1));
    if (t == 0) bar.init();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("st.shared::cluster.f32 [%0], 0f00000000;" ::"r"(peer) : "memory");
    if (FENCE) asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (t == 0) bar.bring(s, x, 128); // BUG
    bar.wait(0);
    y[blockIdx.x * 64 + t] = s[t];
}

//! overwrite_fence_missing | grid 2 | cluster 2 | block 64 | f32[32]=random f32[128]=zeros
extern "C" __global__ void a_copy_over_zeros_of_a_peer(const float *x, float *y) { cleared_by_a_peer<false>(x, y); } // BUG

//! right | grid 2 | cluster 2 | block 64 | f32[32]=random f32[128]=zeros
extern "C" __global__ void a_copy_over_fenced_zeros_of_a_peer(const float *x, float *y) { cleared_by_a_peer<true>(x, y); }

// Registers of wgmma that other instructions write between two products: all accumulators, or one; A's, loaded anew or
// rounded; and a fence that comes with every second product.
enum Writes { SCALE, BIAS, LOAD_A, ROUND_A, EVERY_SECOND };
template <Writes WHAT, bool FENCE>
__device__ void products_in_turns(float *y, float scale) {
    __shared__ __align__(128) unsigned short b[128];
    float d[4] = {};
    unsigned a[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
    b[threadIdx.x] = 0x3f80;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    const unsigned long long to_b = at(b) >> 4 | 1ull << 16 | 16ull << 32;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
        if (FENCE || i == 0 || (WHAT == EVERY_SECOND && i % 2)) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(to_b)); // BUG
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (WHAT == SCALE || WHAT == EVERY_SECOND) for (int j = 0; j < 4; ++j) d[j] *= scale;
        if (WHAT == BIAS && threadIdx.x == 5) d[2] += 1;
        if (WHAT == LOAD_A) a[1] = ((volatile unsigned *)b)[threadIdx.x % 64];
        if (WHAT == ROUND_A) asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(a[3]) : "f"(d[0]), "f"(d[1]));
    }
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void scaled_accumulators(float *y, float scale) { products_in_turns<SCALE, false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void scaled_accumulators_and_fences(float *y, float scale) { products_in_turns<SCALE, true>(y, scale); }

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void one_accumulator_of_a_thread(float *y, float scale) { products_in_turns<BIAS, false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void one_accumulator_of_a_thread_and_fences(float *y, float scale) { products_in_turns<BIAS, true>(y, scale); }

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_loaded_anew(float *y, float scale) { products_in_turns<LOAD_A, false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_loaded_anew_and_fences(float *y, float scale) { products_in_turns<LOAD_A, true>(y, scale); }

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_of_the_results(float *y, float scale) { products_in_turns<ROUND_A, false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_of_the_results_and_fences(float *y, float scale) { products_in_turns<ROUND_A, true>(y, scale); }

//! wgmma_fence_missing | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_fence_every_second_time(float *y, float scale) { products_in_turns<EVERY_SECOND, false>(y, scale); } // BUG

//! right | block 128 | f32[512]=zeros 2
extern "C" __global__ void a_fence_every_second_time_and_fences(float *y, float scale) { products_in_turns<EVERY_SECOND, true>(y, scale); }

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

// Addresses of local arrays that reach other threads: by shared memory, by a shuffle, in a struct in global memory.
enum Way { BOX, SHUFFLE, RECORD, POINTER_TO_POINTER };
struct Record {
    int *values;
    int count;
};
template <Way WAY, bool SHARED>
__device__ void an_array_for_others(int *y, Record *records) {
    __shared__ int room[64][4];
    __shared__ int *box;
    const int t = threadIdx.x;
    int own[4];
    int *mine = SHARED ? room[t] : own;
    for (int i = 0; i < 4; ++i) mine[i] = 10 * t + i;
    if (WAY == BOX && t == 0) box = mine;
    if (WAY == RECORD) records[t] = {mine, 4};
    int *theirs = (int *)__shfl_sync(0xffffffffu, (unsigned long long)mine, t ^ 1);
    __syncthreads();
    if (WAY == BOX) theirs = box;
    if (WAY == RECORD) theirs = records[63 - t].values;
    if (WAY == POINTER_TO_POINTER) {
        int **at = &theirs;
        theirs = *at + 1;
    }
    y[t] = theirs[t & 1]; // BUG
    __syncthreads();
}

//! dead_local | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void own_array_by_a_box(int *y, Record *r) { an_array_for_others<BOX, false>(y, r); } // BUG

//! right | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void shared_array_by_a_box(int *y, Record *r) { an_array_for_others<BOX, true>(y, r); }

//! dead_local | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void own_array_by_a_shuffle(int *y, Record *r) { an_array_for_others<SHUFFLE, false>(y, r); } // BUG

//! right | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void shared_array_by_a_shuffle(int *y, Record *r) { an_array_for_others<SHUFFLE, true>(y, r); }

//! dead_local | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void own_array_by_a_record(int *y, Record *r) { an_array_for_others<RECORD, false>(y, r); } // BUG

//! right | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void shared_array_by_a_record(int *y, Record *r) { an_array_for_others<RECORD, true>(y, r); }

//! dead_local | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void own_array_by_a_pointer_to_it(int *y, Record *r) { an_array_for_others<POINTER_TO_POINTER, false>(y, r); } // BUG

//! right | block 64 | i32[64]=zeros u8[1024]=zeros
extern "C" __global__ void shared_array_by_a_pointer_to_it(int *y, Record *r) { an_array_for_others<POINTER_TO_POINTER, true>(y, r); }

// A counter in another block's shared memory, by atomics of one scope or another.
template <cuda::thread_scope SCOPE>
__device__ void count_in_the_first_block(int *y) {
    __shared__ int n;
    unsigned rank, far;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(far) : "r"(at(&n)));
    if (threadIdx.x == 0) n = 0;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (SCOPE == cuda::thread_scope_block) asm volatile("red.relaxed.cta.shared::cluster.add.u32 [%0], 1;" ::"r"(far) : "memory"); // BUG
    else asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(far) : "memory");
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 0 && threadIdx.x == 0) *y = n;
}

//! shared_race | grid 2 | cluster 2 | block 64 | i32[1]=zeros
extern "C" __global__ void counted_in_the_scope_of_a_block(int *y) { count_in_the_first_block<cuda::thread_scope_block>(y); } // BUG

//! right | grid 2 | cluster 2 | block 64 | i32[1]=zeros
extern "C" __global__ void counted_in_the_scope_of_a_cluster(int *y) { count_in_the_first_block<cuda::thread_scope_device>(y); }

// Lanes of one warp that store to one place in one step: different values, one value, or different ones of which none
// is looked at.
template <bool ATOMIC>
__device__ void last_of_each_key(const int *key, int *last) {
    if (ATOMIC) atomicMax(&last[key[threadIdx.x] % 8], threadIdx.x);
    else last[key[threadIdx.x] % 8] = threadIdx.x; // BUG
}

//! lane_race | i32[32]=arange i32[8]=zeros
extern "C" __global__ void whoever_stores_last(const int *key, int *last) { last_of_each_key<false>(key, last); } // BUG

//! right | i32[32]=arange i32[8]=zeros
extern "C" __global__ void the_greatest_lane(const int *key, int *last) { last_of_each_key<true>(key, last); }

template <bool SAME>
__device__ void a_winner_in_shared_memory(const int *x, int *y) {
    __shared__ int seen[4], who;
    if (threadIdx.x < 4) seen[threadIdx.x] = 0;
    __syncwarp();
    seen[x[threadIdx.x] & 3] = 1;
    if (x[threadIdx.x] & 1) who = SAME ? 7 : threadIdx.x; // BUG
    __syncwarp();
    y[threadIdx.x] = seen[threadIdx.x & 3] + who;
}

//! lane_race | i32[32]=arange i32[32]=zeros
extern "C" __global__ void the_winner_s_number(const int *x, int *y) { a_winner_in_shared_memory<false>(x, y); } // BUG

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_value_of_all_winners(const int *x, int *y) { a_winner_in_shared_memory<true>(x, y); }

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_leader_whoever_it_is(const int *x, int *y) {
    __shared__ int leader[4], sum[4];
    const int k = x[threadIdx.x] & 3;
    leader[k] = threadIdx.x;
    if (threadIdx.x < 4) sum[threadIdx.x] = 0;
    __syncwarp();
    atomicAdd(&sum[k], x[threadIdx.x]);
    __syncwarp();
    if (leader[k] == threadIdx.x) y[k] = sum[k];
}
