// Shuffles, votes and barriers: masks, lanes that take no part, counts, divergence.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

template <typename T>
__device__ T warp_sum(T v, unsigned mask = 0xffffffffu) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(mask, v, d); // BUG
    return v;
}

//! member_mask,shuffle_source | i32[32]=arange i32[32]=zeros
extern "C" __global__ void half_calls_with_the_other_half(const int *in, int *out) {
    int t = threadIdx.x;
    if (t < 16) out[t] = __shfl_sync(0xffff0000u, in[t], 16); // BUG
}

//! member_mask | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_ballot_that_lacks_the_caller(const int *in, int *out) {
    unsigned odd = __ballot_sync(0xffffffffu, in[threadIdx.x] & 1);
    out[threadIdx.x] = __popc(__ballot_sync(odd, in[threadIdx.x] > 4)); // BUG
}

//! member_mask | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_reduction_of_others(const int *in, int *out) {
    if (threadIdx.x >= 8) out[threadIdx.x] = __reduce_add_sync(0xfffffff0u << 8, in[threadIdx.x]); // BUG
}

//! member_mask | i32[32]=arange i32[32]=zeros
extern "C" __global__ void an_inline_vote(const int *in, int *out) {
    int held;
    asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %1, 3; "
                 "vote.sync.any.pred q, p, 0x7fffffff; selp.s32 %0, 1, 0, q; }"
                 : "=r"(held)
                 : "r"(in[threadIdx.x])); // BUG
    out[threadIdx.x] = held;
}

struct Segment {
    unsigned mask;
    __device__ explicit Segment(int first) : mask(0xffu << first) {}
    __device__ void join() const { __syncwarp(mask); } // BUG
};

//! member_mask | i32[32]=arange i32[32]=zeros
extern "C" __global__ void the_segment_of_a_neighbour(const int *in, int *out) {
    Segment segment((threadIdx.x / 8 * 8 + 8) % 32);
    segment.join();
    out[threadIdx.x] = in[threadIdx.x];
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void the_segment_of_its_own(const int *in, int *out) {
    Segment segment(threadIdx.x / 8 * 8);
    segment.join();
    out[threadIdx.x] = __shfl_xor_sync(segment.mask, in[threadIdx.x], 5);
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_mask_from_a_ballot(const int *in, int *out) {
    unsigned odd = __ballot_sync(0xffffffffu, in[threadIdx.x] & 1);
    if (in[threadIdx.x] & 1) out[threadIdx.x] = __reduce_max_sync(odd, in[threadIdx.x]);
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_group_of_those_who_came(const int *in, int *out) {
    if (in[threadIdx.x] % 3 == 0) {
        auto some = cg::coalesced_threads();
        out[threadIdx.x] = cg::reduce(some, in[threadIdx.x], cg::plus<int>()) + some.size();
    }
}

//! right | block 96 | i32[96]=arange i32[3]=zeros
extern "C" __global__ void sums_of_tiles(const int *in, int *out) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int v = cg::reduce(tile, in[threadIdx.x], cg::plus<int>());
    if (tile.thread_rank() == 0) atomicAdd(out + threadIdx.x / 32, v);
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void elect_and_match(const int *in, int *out) {
    unsigned same = __match_any_sync(0xffffffffu, in[threadIdx.x] / 4);
    out[threadIdx.x] = __shfl_sync(same, in[threadIdx.x], __ffs(same) - 1);
}

//! shuffle_source | block 16 | i32[16]=arange i32[1]=zeros
extern "C" __global__ void a_warp_of_sixteen(const int *in, int *out) {
    int sum = warp_sum(in[threadIdx.x]);
    if (threadIdx.x == 0) *out = sum;
}

//! right | block 16 | i32[16]=arange i32[1]=zeros
extern "C" __global__ void a_tile_of_sixteen(const int *in, int *out) {
    int sum = in[threadIdx.x];
    for (int d = 8; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffff, sum, d, 16);
    if (threadIdx.x == 0) *out = sum;
}

//! shuffle_source | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_neighbour_in_another_branch(const int *in, int *out) {
    int t = threadIdx.x;
    if (t & 1)
        out[t] = __shfl_sync(0xaaaaaaaau, in[t], t - 1); // BUG
    else
        out[t] = in[t];
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_neighbour_in_the_same_branch(const int *in, int *out) {
    int t = threadIdx.x;
    if (t & 1) out[t] = __shfl_sync(0xaaaaaaaau, in[t], t ^ 2);
}

//! shuffle_source | i32[32]=arange i32[32]=zeros 20
extern "C" __global__ void after_an_early_return(const int *in, int *out, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    int v = __shfl_down_sync(0xffffffffu, in[t], 1); // BUG
    out[t] = v + __shfl_sync(0xffffffffu, in[t], n + 3); // BUG
}

//! shuffle_source | block 48 | i32[48]=arange i32[48]=zeros
extern "C" __global__ void broadcast_of_lane_31(const int *in, int *out) {
    out[threadIdx.x] = __shfl_sync(0xffffffffu, in[threadIdx.x], 31); // BUG
}

//! shuffle_source | block 40 | i32[40]=arange i32[40]=zeros
extern "C" __global__ void inline_shuffle(const int *in, int *out) {
    int v;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 16, 31, 0xffffffff;" : "=r"(v) : "r"(in[threadIdx.x])); // BUG
    out[threadIdx.x] = v;
}

//! right | block 48 | i32[48]=arange i32[48]=zeros
extern "C" __global__ void broadcast_of_lane_15(const int *in, int *out) {
    out[threadIdx.x] = __shfl_sync(0xffffffffu, in[threadIdx.x], 15);
}

// Barriers.

__device__ void bar_sync(int id, int count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); } // BUG
__device__ void bar_arrive(int id, int count) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory"); } // BUG

//! barrier_counts,deadlock,barrier_divergence | block 96 | i32[96]=zeros
extern "C" __global__ void producers_and_consumers_count_differently(int *out) {
    if (threadIdx.x < 32)
        bar_arrive(1, 96);
    else
        bar_sync(1, 64);
    out[threadIdx.x] = 1;
}

//! barrier_counts,deadlock | block 128 | i32[128]=zeros
extern "C" __global__ void one_role_counts_itself_only(int *out) {
    int role = threadIdx.x / 64;
    bar_sync(2, role ? 64 : 128);
    out[threadIdx.x] = role;
}

//! barrier_counts,deadlock | block 64 | i32[64]=zeros
extern "C" __global__ void a_constant_forgotten_in_one_place(int *out) {
    if (threadIdx.x < 32)
        asm volatile("bar.sync 3, 64;" ::: "memory"); // BUG
    else
        asm volatile("bar.sync 3, 96;" ::: "memory"); // BUG
    out[threadIdx.x] = 1;
}

template <int Threads>
struct NamedBarrier {
    int id;
    __device__ void sync() const { asm volatile("barrier.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory"); } // BUG
    __device__ void arrive() const { asm volatile("barrier.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory"); } // BUG
};

//! barrier_counts,deadlock | block 96 | i32[96]=zeros
extern "C" __global__ void barriers_of_two_templates(int *out) {
    if (threadIdx.x < 64)
        NamedBarrier<96>{4}.sync();
    else
        NamedBarrier<64>{4}.arrive();
    out[threadIdx.x] = 1;
}

//! barrier_counts,deadlock | block 128 | i32[128]=zeros
extern "C" __global__ void sync_of_all_meets_sync_of_half(int *out) {
    if (threadIdx.x < 64)
        bar_sync(0, 64);
    else
        __syncthreads(); // BUG
    out[threadIdx.x] = 1;
}

//! right | block 96 | i32[96]=zeros
extern "C" __global__ void barriers_of_one_template(int *out) {
    NamedBarrier<96> full{4};
    NamedBarrier<64> pair{5};
    if (threadIdx.x < 64) {
        full.sync();
        pair.sync();
    } else
        full.arrive();
    out[threadIdx.x] = 1;
}

//! right | block 128 | i32[128]=zeros
extern "C" __global__ void each_warp_a_barrier_of_its_own(int *out) {
    bar_sync(1 + threadIdx.x / 64, 64);
    bar_sync(1 + threadIdx.x / 64, 64);
    out[threadIdx.x] = 1;
}

//! barrier_divergence | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_barrier_in_a_branch(const int *in, int *out) {
    if (in[threadIdx.x] < 40) {
        out[threadIdx.x] = 1;
        __syncthreads(); // BUG
    }
}

//! barrier_divergence | block 64 | i32[64]=zeros 50
extern "C" __global__ void an_early_return(int *out, int n) {
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = 2;
    __syncthreads(); // BUG
    out[threadIdx.x] += 1;
}

//! barrier_divergence | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_loop_of_different_lengths(const int *in, int *out) {
    for (int i = 0; i < (in[threadIdx.x] < 33 ? 2 : 3); ++i) {
        out[threadIdx.x] += i;
        cg::this_thread_block().sync(); // BUG
    }
}

//! barrier_divergence,deadlock | block 64 | i32[64]=zeros
extern "C" __global__ void two_barriers_of_one_warp(int *out) {
    if (threadIdx.x % 32 < 16)
        asm volatile("bar.sync 0;" ::: "memory"); // BUG
    else
        asm volatile("bar.sync 0;" ::: "memory"); // BUG
    out[threadIdx.x] = 1;
}

//! barrier_divergence | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void one_warp_has_nothing_to_do(const int *in, int *out) {
    int warp = threadIdx.x / 32;
    if (warp == 2) return;
    out[threadIdx.x] = in[threadIdx.x];
    int any = __syncthreads_or(in[threadIdx.x] > 60); // BUG
    out[threadIdx.x] += any;
}

//! deadlock | block 96 | i32[96]=zeros
extern "C" __global__ void a_barrier_that_waits_for_one_warp_too_many(int *out) {
    if (threadIdx.x < 64) bar_sync(1, 96);
    out[threadIdx.x] = 1;
}

// Sums by shuffles down of lanes that are not all there: what absent lanes give reaches the first lane, or does not.
__device__ float sum_down(unsigned mask, float v, int from) {
    for (int d = from; d > 0; d /= 2) v += __shfl_down_sync(mask, v, d); // BUG
    return v;
}

//! shuffle_source | block 50 | f32[50]=random f32[2]=zeros
extern "C" __global__ void sum_of_a_ragged_warp(const float *in, float *out) {
    float v = sum_down(0xffffffffu, in[threadIdx.x], 16); // BUG
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
}

//! right | block 48 | f32[48]=random f32[2]=zeros
extern "C" __global__ void sum_of_half_a_warp_by_its_first_lane(const float *in, float *out) {
    float v = sum_down(0xffffffffu, in[threadIdx.x], threadIdx.x < 32 ? 16 : 8);
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
}

//! shuffle_source | f32[32]=random f32[32]=zeros
extern "C" __global__ void sum_that_all_of_half_a_warp_keep(const float *in, float *out) {
    if (threadIdx.x < 16) out[threadIdx.x] = sum_down(0xffffu, in[threadIdx.x], 8); // BUG
}

//! shuffle_source | block 40 | f32[40]=random f32[2]=zeros
extern "C" __global__ void largest_of_those_who_have_not_returned(const float *in, float *out) {
    if (threadIdx.x > 36) return;
    float v = in[threadIdx.x];
    for (int d = 4; d > 0; d /= 2) v = fmaxf(v, __shfl_down_sync(__activemask(), v, d)); // BUG
    if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
}

template <int FROM> __device__ void scan_of_upper_lanes(const float *in, float *out) {
    int t = threadIdx.x;
    if (t < 8) return;
    float v = in[t];
    for (int d = 1; d < 32; d *= 2) {
        float before = __shfl_up_sync(0xffffff00u, v, d); // BUG
        if (t >= FROM + d) v += before;
    }
    out[t] = v;
}

//! right | f32[32]=random f32[32]=zeros
extern "C" __global__ void scan_that_drops_what_is_undefined(const float *in, float *out) { scan_of_upper_lanes<8>(in, out); }

//! shuffle_source | f32[32]=random f32[32]=zeros
extern "C" __global__ void scan_that_keeps_what_is_undefined(const float *in, float *out) { scan_of_upper_lanes<7>(in, out); } // BUG

template <int SHIFT> __device__ void sum_of_eight(const float *in, float *out) {
    int t = threadIdx.x;
    unsigned mask = 0xffu << ((t & 24) + (t == 31) * SHIFT);
    float v = in[t];
    for (int d = 4; d > 0; d /= 2) v += __shfl_xor_sync(mask, v, d); // BUG
    out[t] = v;
}

//! right | f32[32]=random f32[32]=zeros
extern "C" __global__ void masks_of_eight(const float *in, float *out) { sum_of_eight<0>(in, out); }

//! member_mask | f32[32]=random f32[32]=zeros
extern "C" __global__ void masks_that_differ_within_a_group(const float *in, float *out) { sum_of_eight<1>(in, out); } // BUG
