// Lanes that have not met, whom masks leave out, accesses of different sizes, blocks that may not have begun.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;

namespace {
using u32 = unsigned;
using u64 = unsigned long long;
__device__ u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u64 *bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(bar)), "r"(count) : "memory"); // BUG
}
__device__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ void arrive(u64 *bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(bar)) : "memory"); } // BUG
__device__ void expect(u64 *bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory"); // BUG
}
__device__ void load(void *to, const void *from, u32 bytes, u64 *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" // BUG
                 ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(bar)) : "memory"); // BUG
}
__device__ void wait(u64 *bar, int parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(at(bar)), "r"(parity) : "memory");
}
struct Four { u32 x[4]; };
__device__ Four ldmatrix(const void *row) {
    Four r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" // BUG
                 : "=r"(r.x[0]), "=r"(r.x[1]), "=r"(r.x[2]), "=r"(r.x[3]) : "r"(at(row)) : "memory");
    return r;
}
}

// Shuffles within groups of a warp.

template <bool OWN> __device__ void counted(const int *in, int *counts, int *places) {
    const int key = in[threadIdx.x] & 3;
    const u32 same = __match_any_sync(~0u, key);
    const int leader = __ffs(same) - 1;
    int first = 0;
    if (threadIdx.x == leader) first = atomicAdd(&counts[key], __popc(same));
    places[threadIdx.x] = __shfl_sync(same, first, OWN ? leader : 0) + __popc(same & ((1u << threadIdx.x) - 1)); // BUG
}

//! shuffle_source | i32[32]=arange i32[4]=zeros i32[32]=zeros
extern "C" __global__ void the_lowest_lane_of_the_warp_leads_all_groups(const int *in, int *counts, int *places) {
    counted<false>(in, counts, places);
}

//! right | i32[32]=arange i32[4]=zeros i32[32]=zeros
extern "C" __global__ void the_lowest_lane_of_each_group_leads(const int *in, int *counts, int *places) {
    counted<true>(in, counts, places);
}

//! shuffle_source | i32[32]=arange i32[32]=zeros
extern "C" __global__ void scans_past_the_edges_of_groups(const int *in, int *out) {
    const u32 group = 0xffu << (threadIdx.x & 24);
    int sum = in[threadIdx.x];
    for (int d = 1; d < 8; d *= 2) {
        const int below = __shfl_up_sync(group, sum, d); // BUG
        if ((threadIdx.x & 7) >= d - 1) sum += below;
    }
    out[threadIdx.x] = sum;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void scans_and_sums_up_to_the_edges_of_groups(const int *in, int *out) {
    const u32 group = 0xffu << (threadIdx.x & 24);
    int sum = in[threadIdx.x], total = sum;
    for (int d = 1; d < 8; d *= 2) {
        const int below = __shfl_up_sync(group, sum, d);
        if ((threadIdx.x & 7) >= d) sum += below;
    }
    for (int d = 4; d > 0; d /= 2) total += __shfl_down_sync(group, total, d);
    out[threadIdx.x] = (threadIdx.x & 7) == 0 ? total : sum;
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void sums_by_label(const int *in, int *out) {
    auto group = cg::labeled_partition(cg::coalesced_threads(), in[threadIdx.x] % 3);
    out[threadIdx.x] = group.shfl(cg::reduce(group, in[threadIdx.x], cg::plus<int>()), 0);
}

// mbarriers and bulk copies beside other lanes of the warp.

template <bool MEETS> __device__ void two_lanes(const float *in, float *out) {
    __shared__ alignas(128) float s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 31) {
        init(&bar, 1);
        fence_async();
    }
    if (MEETS) __syncwarp();
    if (threadIdx.x == 0) {
        expect(&bar, 128);
        load(s, in, 128, &bar);
    }
    __syncwarp();
    wait(&bar, 0);
    out[threadIdx.x] = s[31 - threadIdx.x];
}

//! lane_race | f32[32]=random f32[32]=zeros
extern "C" __global__ void another_lane_has_initialised(const float *in, float *out) { two_lanes<false>(in, out); }

//! right | f32[32]=random f32[32]=zeros
extern "C" __global__ void another_lane_has_initialised_before_they_met(const float *in, float *out) { two_lanes<true>(in, out); }

template <bool MEETS> __device__ void copies_again(const float *in, float *out) {
    __shared__ alignas(128) float s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        fence_async();
    }
    __syncwarp();
    float sum = 0;
    for (int k = 0; k < 2; ++k) {
        if (threadIdx.x == 0) {
            expect(&bar, 128);
            load(s, in + 32 * k, 128, &bar);
        }
        wait(&bar, k);
        sum += s[31 - threadIdx.x]; // BUG
        if (MEETS) __syncwarp();
    }
    out[threadIdx.x] = sum;
}

//! lane_race | f32[64]=random f32[32]=zeros
extern "C" __global__ void a_copy_over_what_other_lanes_still_read(const float *in, float *out) { copies_again<false>(in, out); }

//! right | f32[64]=random f32[32]=zeros
extern "C" __global__ void a_copy_over_what_other_lanes_have_read(const float *in, float *out) { copies_again<true>(in, out); }

//! out_of_bounds,deadlock | red_zones | f32[64]=random f32[32]=zeros
extern "C" __global__ void a_copy_runs_into_the_next_array(const float *in, float *out) {
    __shared__ alignas(128) float s[32], next[32];
    __shared__ u64 bar;
    next[threadIdx.x] = threadIdx.x;
    fence_async();
    if (threadIdx.x == 0) init(&bar, 1);
    __syncwarp();
    if (threadIdx.x == 0) {
        expect(&bar, 256);
        load(s, in, 256, &bar); // BUG
    }
    __syncwarp();
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(at(&bar)) : "memory"); // BUG
    out[threadIdx.x] = s[31 - threadIdx.x] + next[threadIdx.x];
}

// Rows that lanes hand in themselves.

template <bool MEETS, int WARPS> __device__ void own_rows(const uint4 *in, u32 *out) {
    __shared__ u64 bar; // with vector clocks
    __shared__ alignas(16) u32 rows[WARPS][32][4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (WARPS > 1 && threadIdx.x == 0) init(&bar, 1);
    u32 sum = 0;
    for (int k = 0; k < 2; ++k) {
        *(uint4 *)rows[warp][lane] = in[threadIdx.x]; // BUG
        if (MEETS) __syncwarp();
        const Four got = ldmatrix(rows[warp][lane]); // BUG
        sum += got.x[0] + got.x[1] + got.x[2] + got.x[3];
        __syncwarp();
    }
    out[threadIdx.x] = sum;
}

//! warp_synchronous | i32[128]=arange i32[32]=zeros
extern "C" __global__ void loads_the_rows_it_has_just_stored(const uint4 *in, u32 *out) { own_rows<false, 1>(in, out); }

//! warp_synchronous | block 64 | i32[256]=arange i32[64]=zeros
extern "C" __global__ void loads_the_rows_it_has_just_stored_beside_an_mbarrier(const uint4 *in, u32 *out) { own_rows<false, 2>(in, out); }

//! right | block 64 | i32[256]=arange i32[64]=zeros
extern "C" __global__ void loads_rows_after_the_lanes_have_met(const uint4 *in, u32 *out) { own_rows<true, 2>(in, out); }

template <bool MEETS, bool CLOCKS> __device__ void stores_own_rows(const u32 *in, uint4 *out) {
    __shared__ alignas(16) u32 rows[32][4];
    __shared__ u64 bar;
    if (CLOCKS && threadIdx.x == 0) init(&bar, 1);
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %1, %1, %1};" ::"r"(at(rows[threadIdx.x])), "r"(in[threadIdx.x]) : "memory"); // BUG
    if (MEETS) __syncwarp();
    out[threadIdx.x] = *(uint4 *)rows[threadIdx.x]; // BUG
}

//! lane_race | i32[32]=arange i32[128]=zeros
extern "C" __global__ void reads_its_row_of_a_stmatrix_at_once(const u32 *in, uint4 *out) { stores_own_rows<false, false>(in, out); }

//! lane_race | i32[32]=arange i32[128]=zeros
extern "C" __global__ void reads_its_row_of_a_stmatrix_at_once_beside_an_mbarrier(const u32 *in, uint4 *out) { stores_own_rows<false, true>(in, out); }

//! right | i32[32]=arange i32[128]=zeros
extern "C" __global__ void reads_its_row_of_a_stmatrix_after_they_met(const u32 *in, uint4 *out) { stores_own_rows<true, true>(in, out); }

// Strong accesses of two sizes.

template <bool WHOLE> __device__ void torn(u64 *box, u64 *out) {
    const u64 value = (u64)(threadIdx.x + 1) << 32 | threadIdx.x;
    if (blockIdx.x == 0) {
        if (WHOLE) {
            *(volatile u64 *)&box[threadIdx.x] = value;
        } else {
            ((volatile u32 *)box)[2 * threadIdx.x] = value; // BUG
            ((volatile u32 *)box)[2 * threadIdx.x + 1] = value >> 32; // BUG
        }
    } else {
        u64 seen;
        do seen = *(volatile u64 *)&box[threadIdx.x]; // BUG
        while (!seen);
        out[threadIdx.x] = seen;
    }
}

//! global_race | grid 2 | i64[32]=zeros i64[32]=zeros
extern "C" __global__ void a_pair_is_told_in_halves(u64 *box, u64 *out) { torn<false>(box, out); }

//! right | grid 2 | i64[32]=zeros i64[32]=zeros
extern "C" __global__ void a_pair_is_told_as_one(u64 *box, u64 *out) { torn<true>(box, out); }

//! global_race | block 64 | i64[1]=zeros
extern "C" __global__ void a_half_of_a_counter_is_counted_alone(u64 *both) {
    if (threadIdx.x < 32) atomicAdd(both, 1ull << 32 | threadIdx.x); // BUG
    else atomicAdd((u32 *)both, 1u); // BUG
}

//! right | block 64 | i64[32]=zeros
extern "C" __global__ void zeros_by_pairs_and_counts_by_halves(u64 *all) {
    if (threadIdx.x < 32) *(volatile u64 *)&all[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd((u32 *)all + threadIdx.x * 7 % 64, 1u);
}

//! right | grid 2 | i32[128]=zeros i32[32]=zeros
extern "C" __global__ void data_and_flags_in_one_store_of_four(u32 *box, u32 *out) {
    u32 *mine = box + 4 * threadIdx.x, a, b, c, d;
    if (blockIdx.x == 0) {
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %1, %2};" ::"l"(mine), "r"(threadIdx.x), "r"(1) : "memory");
        return;
    }
    do asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(mine) : "memory");
    while (!b || !d);
    out[threadIdx.x] = a + c;
}

//! right | grid 2 | u8[32]=zeros
extern "C" __global__ void bytes_are_counted_by_wider_swaps(unsigned char *all) {
    cuda::atomic_ref<unsigned char, cuda::thread_scope_device> mine(all[threadIdx.x]);
    mine.fetch_add(3, cuda::memory_order_relaxed);
    if (mine.load(cuda::memory_order_relaxed) == 1) __trap();
}

// Blocks of a cluster that may not have begun.

template <bool WAITS> __device__ void hands_on(int *out) {
    __shared__ int box[32];
    auto cluster = cg::this_cluster();
    auto token = cluster.barrier_arrive();
    if (WAITS) cluster.barrier_wait(std::move(token));
    cluster.map_shared_rank(box, cluster.block_rank() ^ 1)[threadIdx.x] = threadIdx.x; // BUG
    if (!WAITS) cluster.barrier_wait(std::move(token));
    cluster.sync();
    out[blockIdx.x * 32 + threadIdx.x] = box[31 - threadIdx.x];
}

//! peer_not_started | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void stores_into_a_block_that_may_not_have_begun(int *out) { hands_on<false>(out); }

//! right | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void stores_into_a_block_that_has_begun(int *out) { hands_on<true>(out); }

//! right | grid 2 | cluster 2 | i32[2]=zeros i32[64]=zeros
extern "C" __global__ void flags_say_that_the_blocks_have_begun(int *flags, int *out) {
    __shared__ int box[32];
    auto cluster = cg::this_cluster();
    const u32 rank = cluster.block_rank();
    if (threadIdx.x == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device>(flags[rank]).store(1, cuda::memory_order_release);
        while (!cuda::atomic_ref<int, cuda::thread_scope_device>(flags[rank ^ 1]).load(cuda::memory_order_acquire)) {}
    }
    __syncwarp();
    cluster.map_shared_rank(box, rank ^ 1)[threadIdx.x] = threadIdx.x;
    cluster.sync();
    out[blockIdx.x * 32 + threadIdx.x] = box[31 - threadIdx.x];
}
