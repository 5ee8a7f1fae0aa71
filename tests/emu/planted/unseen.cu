// More styles of the classes of the other files.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

// Updates lost between blocks, with atomics nearby.

struct Bin {
    unsigned hits;
    float weight;
};

//! lost_update | grid 4 | block 64 | u8[256]=random u32[32]=zeros
extern "C" __global__ void the_weight_without_the_atomic(const unsigned char *in, Bin *bins) {
    Bin &bin = bins[in[blockIdx.x * blockDim.x + threadIdx.x] % 16];
    atomicAdd(&bin.hits, 1u);
    bin.weight += 0.5f; // BUG
}

//! right | grid 4 | block 64 | u8[256]=random u32[32]=zeros
extern "C" __global__ void the_weight_with_the_atomic(const unsigned char *in, Bin *bins) {
    Bin &bin = bins[in[blockIdx.x * blockDim.x + threadIdx.x] % 16];
    atomicAdd(&bin.hits, 1u);
    atomicAdd(&bin.weight, 0.5f);
}

//! global_race,flag_race | grid 4 | block 32 | f32[128]=random f32[1]=ones
extern "C" __global__ void block_zero_clears_what_all_add_to(const float *in, float *sum) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *sum = 0; // BUG
    __syncthreads();
    atomicAdd(sum, in[blockIdx.x * 32 + threadIdx.x]); // BUG
}

//! global_race,lost_update,flag_race | grid 4 | block 32 | f32[128]=random f32[1]=zeros
extern "C" __global__ void maximum_by_comparison(const float *in, float *best) {
    const float mine = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), in[blockIdx.x * 32 + threadIdx.x], cg::greater<float>());
    if (threadIdx.x == 0 && mine > *best) // BUG
        *best = mine; // BUG
}

//! fence_missing | grid 4 | block 32 | i32[1]=zeros
extern "C" __global__ void atomics_of_the_block_for_all_blocks(int *count) {
    atomicAdd_block(count, 1); // BUG
}

//! right | grid 4 | block 32 | i32[4]=zeros
extern "C" __global__ void atomics_of_the_block_for_each_block(int *count) { atomicAdd_block(count + blockIdx.x, 1); }

//! fence_missing | grid 4 | block 32 | i32[1]=zeros
extern "C" __global__ void a_reference_of_too_narrow_a_scope(int *count) {
    cuda::atomic_ref<int, cuda::thread_scope_block>(*count).fetch_add(1, cuda::std::memory_order_relaxed); // BUG
}

//! global_race,flag_race | grid 2 | block 64 | f32[256]=random
extern "C" __global__ void both_halves_swap(float *a) {
    const int i = blockIdx.x * 64 + threadIdx.x, j = 127 - i;
    const float x = a[i], y = a[j]; // BUG
    a[i] = y; // BUG
    a[j] = x; // BUG
}

//! right | grid 2 | block 64 | f32[256]=random
extern "C" __global__ void one_half_swaps(float *a) {
    const int i = blockIdx.x * 64 + threadIdx.x, j = 255 - i;
    const float x = a[i], y = a[j];
    a[i] = y;
    a[j] = x;
}

//! lost_update,global_race,flag_race,lane_race | grid 4 | block 32 | i32[128]=arange i32[1]=zeros i32[128]=zeros
extern "C" __global__ void places_without_an_atomic(const int *in, int *tail, int *out) {
    const int v = in[blockIdx.x * 32 + threadIdx.x];
    if (v % 3 == 0) {
        const int at = (*tail)++; // BUG
        out[at] = v; // BUG
    }
}

//! lost_update,global_race,lane_race | grid 4 | block 64 | u8[256]=random u8[256]=zeros
extern "C" __global__ void bits_of_one_byte(const unsigned char *in, unsigned char *bits) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (in[i] & 1) bits[i / 8] |= 1 << i % 8; // BUG
}

//! right | grid 4 | block 64 | u8[256]=random u8[32]=zeros
extern "C" __global__ void bits_by_a_vote(const unsigned char *in, unsigned *bits) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    const unsigned word = __ballot_sync(~0u, in[i] & 1);
    if (threadIdx.x % 32 == 0) bits[i / 32] = word;
}

//! lost_update,global_race,lane_race | grid 2 | block 32 | f16[64]=random f16[1]=zeros
extern "C" __global__ void halves_are_added_by_hand(const half *in, half *sum) {
    sum[0] = __hadd(sum[0], in[blockIdx.x * 32 + threadIdx.x]); // BUG
}

//! global_race | grid 4 | block 32 | f32[128]=random f32[1]=zeros f32[4]=zeros
extern "C" __global__ void the_sum_is_read_before_all_have_added(const float *in, float *sum, float *out) {
    atomicAdd(sum, in[blockIdx.x * 32 + threadIdx.x]); // BUG
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = *sum; // BUG
}

// Strong accesses do not race, yet of two that read, change and store one is lost.

//! lost_update | grid 4 | block 32 | i32[4]=ones i32[1]=zeros
extern "C" __global__ void a_volatile_sum(const int *in, volatile int *sum) {
    if (threadIdx.x == 0) *sum = *sum + in[blockIdx.x]; // BUG
}

//! lost_update | grid 4 | block 32 | f32[4]=random f32[1]=ones
extern "C" __global__ void a_minimum_past_the_first_cache(const float *in, float *best) {
    if (threadIdx.x == 0) __stcg(best, fminf(__ldcg(best), in[blockIdx.x])); // BUG
}

//! right | grid 4 | block 32 | i32[1]=zeros
extern "C" __global__ void blocks_in_turns(volatile int *turn) {
    if (threadIdx.x) return;
    while (*turn != blockIdx.x) {}
    *turn = *turn + 1;
}

//! right | grid 2 | block 32 | i32[1]=zeros i32[1]=zeros
extern "C" __global__ void one_block_counts_for_the_other(int *out, volatile int *progress) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        for (int i = 0; i < 5; ++i) *progress = *progress + 1;
    } else {
        while (*progress < 5) {}
        *out = *progress;
    }
}

//! lost_update | grid 4 | block 32 | f32[1]=zeros
extern "C" __global__ void an_exchange_of_what_was_read(float *sum) {
    if (threadIdx.x == 0) {
        const float old = *sum; // BUG
        atomicExch(sum, old + 1); // BUG
    }
}

// Fences of too small a scope.

template <class Fence> __device__ void post(float *box, int *flag, float value, Fence fence) {
    box[threadIdx.x] = value; // BUG
    fence();
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag, 1);
}
__device__ float fetched(const float *box, int *flag) {
    if (threadIdx.x == 0)
        while (atomicAdd(flag, 0) == 0) {}
    __syncthreads();
    return box[threadIdx.x]; // BUG
}

//! fence_missing | grid 2 | block 32 | f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void a_fence_of_the_block_only(float *box, int *flag, float *out) {
    if (blockIdx.x == 0)
        post(box, flag, threadIdx.x, [] { __threadfence_block(); });
    else
        out[threadIdx.x] = fetched(box, flag); // BUG
}

//! right | grid 2 | block 32 | f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void a_fence_of_the_system(float *box, int *flag, float *out) {
    if (blockIdx.x == 0)
        post(box, flag, threadIdx.x, [] { __threadfence_system(); });
    else
        out[threadIdx.x] = fetched(box, flag);
}

//! fence_missing | grid 2 | block 32 | f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void an_atomic_fence_of_the_block(float *box, int *flag, float *out) {
    if (blockIdx.x == 0)
        post(box, flag, threadIdx.x, [] { cuda::atomic_thread_fence(cuda::std::memory_order_release, cuda::thread_scope_block); });
    else
        out[threadIdx.x] = fetched(box, flag); // BUG
}

//! fence_missing | grid 2 | block 32 | f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void only_thread_zero_runs_the_fence_first(float *box, int *flag, float *out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) __threadfence();
        box[threadIdx.x] = 1; // BUG
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(flag, 1);
    } else
        out[threadIdx.x] = fetched(box, flag); // BUG
}

//! right | grid 2 | block 32 | f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void thread_zero_runs_the_fence_after_the_barrier(float *box, int *flag, float *out) {
    if (blockIdx.x == 0) {
        box[threadIdx.x] = 1;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicExch(flag, 1);
        }
    } else
        out[threadIdx.x] = fetched(box, flag);
}

//! fence_missing | grid 2 | block 32 | f32[1]=zeros i32[1]=zeros f32[1]=zeros
extern "C" __global__ void a_release_of_the_block(float *box, int *flag, float *out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        *box = 3; // BUG
        asm volatile("st.release.cta.global.s32 [%0], 1;" ::"l"(flag) : "memory"); // BUG
    } else {
        int seen = 0;
        while (!seen) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); // BUG
        *out = *box; // BUG
    }
}

//! fence_missing | grid 2 | block 32 | f32[1]=zeros i32[1]=zeros f32[1]=zeros
extern "C" __global__ void the_fence_after_the_flag(float *box, int *flag, float *out) {
    if (threadIdx.x) return;
    volatile int *shown = flag;
    if (blockIdx.x == 0) {
        *box = 3; // BUG
        *shown = 1;
        __threadfence();
    } else {
        while (!*shown) {}
        __threadfence();
        *out = *box; // BUG
    }
}

//! right | grid 2 | block 32 | f32[1]=zeros i32[1]=zeros f32[1]=zeros
extern "C" __global__ void the_fence_before_the_flag(float *box, int *flag, float *out) {
    if (threadIdx.x) return;
    volatile int *shown = flag;
    if (blockIdx.x == 0) {
        *box = 3;
        __threadfence();
        *shown = 1;
    } else {
        while (!*shown) {}
        __threadfence();
        *out = *box;
    }
}

// Shuffles in code that lanes part in.

//! shuffle_source,deadlock,member_mask,warp_divergence | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_loop_of_each_lanes_length(const int *length, int *out) {
    int sum = 0;
    for (int i = 0; i < length[threadIdx.x] % 5; ++i) // BUG
        sum += __shfl_xor_sync(~0u, i + (int)threadIdx.x, 1); // BUG
    out[threadIdx.x] = sum;
} // BUG

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_loop_of_the_longest_length(const int *length, int *out) {
    const int most = __reduce_max_sync(~0u, length[threadIdx.x] % 5);
    int sum = 0;
    for (int i = 0; i < most; ++i) {
        const int other = __shfl_xor_sync(~0u, i + (int)threadIdx.x, 1);
        if (i < length[threadIdx.x] % 5) sum += other;
    }
    out[threadIdx.x] = sum;
}

//! shuffle_source,member_mask,deadlock | i32[32]=zeros
extern "C" __global__ void behind_a_short_circuit(int *out) {
    const int lane = threadIdx.x;
    if (lane < 16 && __shfl_xor_sync(~0u, lane, 16) > 3) // BUG
        out[lane] = 1;
} // BUG

//! right | i32[32]=zeros
extern "C" __global__ void before_a_short_circuit(int *out) {
    const int lane = threadIdx.x, other = __shfl_xor_sync(~0u, lane, 16);
    if (lane < 16 && other > 3) out[lane] = 1;
}

//! shuffle_source,deadlock | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_different_shuffle_in_each_case(const int *in, int *out) {
    int v = in[threadIdx.x];
    switch (threadIdx.x & 3) {
    case 0: v += __shfl_xor_sync(0x11111111, v, 1); break; // BUG
    case 1: v -= __shfl_xor_sync(0x22222222, v, 1); break; // BUG
    default: v = 0;
    }
    out[threadIdx.x] = v;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_shuffle_of_those_in_each_case(const int *in, int *out) {
    int v = in[threadIdx.x];
    switch (threadIdx.x & 3) {
    case 0: v += __shfl_xor_sync(0x11111111, v, 4); break;
    case 1: v -= __shfl_xor_sync(0x22222222, v, 4); break;
    default: v = 0;
    }
    out[threadIdx.x] = v;
}

//! shuffle_source,deadlock,member_mask | block 48 | i32[48]=arange i32[48]=zeros
extern "C" __global__ void a_sum_of_a_warp_that_is_half_there(const int *in, int *out) {
    int v = in[threadIdx.x];
    for (int mask = 16; mask; mask /= 2) v += __shfl_xor_sync(~0u, v, mask); // BUG
    out[threadIdx.x] = v;
}

//! member_mask | i32[32]=zeros
extern "C" __global__ void a_warp_barrier_of_others(int *out) {
    if (threadIdx.x < 8)
        __syncwarp(0xff00); // BUG
    else if (threadIdx.x < 16)
        __syncwarp(0xff00);
    out[threadIdx.x] = 1;
}

//! lane_race,deadlock | i32[32]=zeros
extern "C" __global__ void a_vote_of_those_who_happen_to_be_there(int *out) {
    __shared__ int s[32];
    s[threadIdx.x] = 1; // BUG
    if (threadIdx.x % 2) __syncwarp(__activemask());
    out[threadIdx.x] = s[threadIdx.x ^ 1]; // BUG
}

// Named barriers.

//! barrier_counts,deadlock | block 96 | i32[96]=zeros
extern "C" __global__ void three_warps_at_a_barrier_of_two(int *out) {
    __shared__ int s[96];
    s[threadIdx.x] = threadIdx.x; // BUG
    asm volatile("barrier.sync 3, 64;" ::: "memory"); // BUG
    out[threadIdx.x] = s[95 - threadIdx.x]; // BUG
} // BUG

//! deadlock,barrier_counts | block 128 | i32[128]=zeros
extern "C" __global__ void the_barriers_numbers_are_swapped(int *out) {
    if (threadIdx.x < 64) {
        asm volatile("bar.arrive 1, 128;" ::: "memory");
        asm volatile("bar.sync 2, 128;" ::: "memory"); // BUG
    } else {
        asm volatile("bar.arrive 1, 128;" ::: "memory");
        asm volatile("bar.sync 2, 128;" ::: "memory"); // BUG
        asm volatile("bar.sync 1, 128;" ::: "memory"); // BUG
    }
    out[threadIdx.x] = 1;
}

//! right | block 128 | i32[128]=zeros
extern "C" __global__ void the_barriers_numbers_match(int *out) {
    if (threadIdx.x < 64) {
        asm volatile("bar.arrive 1, 128;" ::: "memory");
        asm volatile("bar.sync 2, 128;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
    out[threadIdx.x] = 1;
}

//! deadlock,barrier_counts | block 64 | i32[64]=zeros
extern "C" __global__ void arrives_twice_before_the_other_side(int *out) {
    if (threadIdx.x < 32) {
        asm volatile("bar.arrive 4, 64;" ::: "memory"); // BUG
        asm volatile("bar.arrive 4, 64;" ::: "memory"); // BUG
    } else {
        __nanosleep(100);
        asm volatile("bar.sync 4, 64;" ::: "memory"); // BUG
    }
    out[threadIdx.x] = 1;
} // BUG

//! illegal | block 64 | i32[64]=zeros i32=16
extern "C" __global__ void a_barrier_past_the_last(int *out, int number) {
    asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory"); // BUG
    out[threadIdx.x] = 1;
}

//! barrier_counts,deadlock | block 128 | i32[128]=zeros
extern "C" __global__ void a_count_from_the_wrong_role(int *out) {
    const int role = threadIdx.x / 64, count = role ? 128 : 64;
    asm volatile("bar.sync 5, %0;" ::"r"(count) : "memory"); // BUG
    out[threadIdx.x] = role;
} // BUG

// Ends of clusters.

//! peer_exited | grid 2 | cluster 2 | i32[2]=zeros
extern "C" __global__ void sums_go_to_block_zero_and_all_leave(int *out) {
    __shared__ int sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&sum, 0), (int)threadIdx.x); // BUG
    if (cluster.block_rank() == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = 1;
}

//! right | grid 2 | cluster 2 | i32[2]=zeros
extern "C" __global__ void sums_go_to_block_zero_which_waits(int *out) {
    __shared__ int sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&sum, 0), (int)threadIdx.x);
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) out[0] = sum;
}

//! peer_exited | grid 4 | cluster 4 | f32[128]=random f32[128]=zeros
extern "C" __global__ void a_ring_of_neighbours(const float *in, float *out) {
    __shared__ float s[32];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
    cluster.sync();
    const float *next = cluster.map_shared_rank(s, (cluster.block_rank() + 1) % cluster.num_blocks());
    out[blockIdx.x * 32 + threadIdx.x] = next[threadIdx.x]; // BUG
}

//! shared_race | grid 2 | cluster 2 | f32[64]=random f32[64]=zeros
extern "C" __global__ void arrives_before_it_writes(const float *in, float *out) {
    __shared__ float s[32];
    auto cluster = cg::this_cluster();
    cluster.barrier_arrive();
    s[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x]; // BUG
    cluster.barrier_wait();
    out[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[threadIdx.x]; // BUG
    cluster.sync();
}

// Never written, by a predicate.

//! uninitialised_read | i32[32]=arange f32[32]=zeros
extern "C" __global__ void only_even_places_are_set(const int *pick, float *out) {
    float part[8];
    for (int k = 0; k < 8; ++k)
        if (pick[k] % 2 == 0) part[k] = k;
    out[threadIdx.x] = part[pick[threadIdx.x] % 8]; // BUG
}

//! right | i32[32]=arange f32[32]=zeros
extern "C" __global__ void all_places_are_set(const int *pick, float *out) {
    float part[8];
    for (int k = 0; k < 8; ++k) part[k] = pick[k] % 2 == 0 ? k : 0;
    out[threadIdx.x] = part[pick[threadIdx.x] % 8];
}

//! uninitialised_shared_read | i32[32]=zeros
extern "C" __global__ void a_counter_that_nobody_clears(int *out) {
    __shared__ int count;
    atomicAdd(&count, 1); // BUG
    __syncthreads();
    out[threadIdx.x] = count; // BUG
}

//! uninitialised_shared_read | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void results_of_warps_that_had_none(const int *in, int *out) {
    __shared__ int found[2];
    const unsigned hits = __ballot_sync(~0u, in[threadIdx.x] == 5);
    if (hits && threadIdx.x % 32 == 0) found[threadIdx.x / 32] = __ffs(hits);
    __syncthreads();
    out[threadIdx.x] = found[1 - threadIdx.x / 32]; // BUG
}

//! right | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void results_of_all_warps(const int *in, int *out) {
    __shared__ int found[2];
    const unsigned hits = __ballot_sync(~0u, in[threadIdx.x] == 5);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = __ffs(hits);
    __syncthreads();
    out[threadIdx.x] = found[1 - threadIdx.x / 32];
}

struct Padded {
    char tag;
    double value;
};
//! right | f32[32]=random f64[32]=zeros
extern "C" __global__ void padding_is_copied(const float *in, double *out) {
    __shared__ Padded s[32];
    Padded mine[2];
    mine[threadIdx.x % 2].tag = 1;
    mine[threadIdx.x % 2].value = in[threadIdx.x];
    s[threadIdx.x] = mine[threadIdx.x % 2];
    __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ 1].value;
}

//! uninitialised_read | i32[32]=arange i32[32]=zeros
extern "C" __global__ void memory_of_malloc_beyond_what_was_filled(const int *in, int *out) {
    int *list = (int *)malloc(8 * sizeof(int)), n = 0;
    for (int k = 0; k < 8; ++k)
        if (in[k] % 3) list[n++] = in[k];
    int sum = 0;
    for (int k = 0; k < 8; ++k) sum += list[k]; // BUG
    free(list);
    out[threadIdx.x] = sum;
}

// Local arrays that are gone, or another thread's.

struct View {
    const float *first;
    int count;
};
__device__ __noinline__ View viewed(float a) {
    float part[4] = {a, a + 1, a + 2, a + 3};
    volatile float *seen = part;
    seen[1] = a;
    return {part, 4};
}
//! dead_local,uninitialised_read | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_view_outlives_its_array(const float *in, float *out) {
    View view = viewed(in[threadIdx.x]);
    float sum = 0;
    for (int k = 0; k < view.count; ++k) sum += view.first[k]; // BUG
    out[threadIdx.x] = sum;
}

template <class F> __device__ __noinline__ float called(F *f, float x) { return (*f)(x); }
struct Adder {
    const float *by;
    __device__ float operator()(float x) const { return x + *by; } // BUG
};
__device__ __noinline__ Adder adder(float x) {
    float by = x;
    volatile float *seen = &by;
    *seen = x;
    return {&by};
}
//! dead_local,uninitialised_read | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_functor_of_a_reference(const float *in, float *out) {
    Adder f = adder(in[threadIdx.x]); // BUG
    out[threadIdx.x] = called(&f, 2); // BUG
}

// Memory that is not given back.

//! leak | i32[32]=zeros
extern "C" __global__ void only_the_last_of_a_loop_is_freed(int *out) {
    int *p = nullptr;
    for (int k = 0; k < 3; ++k) {
        p = new int[4]; // BUG
        p[k] = k;
    }
    out[threadIdx.x] = p[2];
    delete[] p;
}

//! right | i32[32]=zeros
extern "C" __global__ void all_of_a_loop_are_freed(int *out) {
    int last = 0;
    for (int k = 0; k < 3; ++k) {
        int *p = new int[4];
        p[k] = k;
        last = p[k];
        delete[] p;
    }
    out[threadIdx.x] = last;
}

//! illegal,leak | i32[32]=zeros
extern "C" __global__ void freed_from_the_middle(int *out) {
    int *p = (int *)malloc(32); // BUG
    for (int k = 0; k < 8; ++k) p[k] = k;
    out[threadIdx.x] = p[3];
    free(p + 1); // BUG
}

//! leak | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void an_early_return_forgets(const int *in, int *out) {
    int *p = static_cast<int *>(malloc(16)); // BUG
    p[0] = in[threadIdx.x];
    if (p[0] == 7) return;
    out[threadIdx.x] = p[0];
    free(p);
}

// Red zones.

//! out_of_bounds | red_zones | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_stencil_reads_its_neighbour_array(const float *in, float *out) {
    __shared__ float left[64], right[64];
    left[threadIdx.x] = in[threadIdx.x];
    right[threadIdx.x] = -in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = left[threadIdx.x + 1] + right[threadIdx.x]; // BUG
}

//! right | red_zones | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_stencil_that_stops_at_the_end(const float *in, float *out) {
    __shared__ float left[64], right[64];
    left[threadIdx.x] = in[threadIdx.x];
    right[threadIdx.x] = -in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = left[threadIdx.x < 63 ? threadIdx.x + 1 : 63] + right[threadIdx.x];
}

//! out_of_bounds | red_zones | block 32 | f32[32]=random f32[32]=zeros
extern "C" __global__ void bins_one_too_few(const float *in, float *out) {
    __shared__ int bins[8], total[8];
    if (threadIdx.x < 8) bins[threadIdx.x] = total[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[threadIdx.x % 9], 1); // BUG
    atomicAdd(&total[threadIdx.x % 8], 1);
    __syncthreads();
    if (threadIdx.x < 8) out[threadIdx.x] = bins[threadIdx.x] + total[threadIdx.x] + in[threadIdx.x];
}
