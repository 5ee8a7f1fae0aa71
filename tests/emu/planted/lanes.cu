// Lanes of one warp that exchange through memory.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

template <class T>
struct PerWarp {
    T value[32];
};

//! lane_race | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void struct_of_a_warp(const float *in, float *out) {
    __shared__ PerWarp<float> own[2];
    PerWarp<float> &mine = own[threadIdx.x / 32];
    int lane = threadIdx.x % 32;
    mine.value[lane] = in[threadIdx.x]; // BUG
    out[threadIdx.x] = mine.value[(lane + 1) % 32]; // BUG
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void struct_of_a_warp_synced(const float *in, float *out) {
    __shared__ PerWarp<float> own[2];
    PerWarp<float> &mine = own[threadIdx.x / 32];
    int lane = threadIdx.x % 32;
    mine.value[lane] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = mine.value[(lane + 1) % 32];
}

//! lane_race | block 32 | f32[32]=random f32[32]=zeros
extern "C" __global__ void scan_in_steps(const float *in, float *out) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncwarp();
    for (int d = 1; d < 32; d *= 2) {
        float v = t >= d ? s[t - d] : 0; // BUG
        s[t] += v; // BUG
        __syncwarp();
    }
    out[t] = s[t];
}

//! right | block 32 | f32[32]=random f32[32]=zeros
extern "C" __global__ void scan_in_steps_right(const float *in, float *out) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncwarp();
    for (int d = 1; d < 32; d *= 2) {
        float v = t >= d ? s[t - d] : 0;
        __syncwarp();
        s[t] += v;
        __syncwarp();
    }
    out[t] = s[t];
}

//! lane_race | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void with_a_named_barrier_elsewhere(const int *in, int *out) {
    __shared__ int s[96];
    s[threadIdx.x] = in[threadIdx.x]; // BUG
    int v = s[threadIdx.x ^ 3]; // BUG
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x] = v;
}

//! right | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void with_a_named_barrier_right(const int *in, int *out) {
    __shared__ int s[96];
    s[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    int v = s[threadIdx.x ^ 3];
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x] = v;
}

//! lane_race,uninitialised_shared_read | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void leader_writes_all_read(const int *in, int *out) {
    __shared__ int total;
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int sum = in[threadIdx.x];
    for (int d = 16; d; d /= 2) sum += tile.shfl_down(sum, d);
    if (tile.thread_rank() == 0) total = sum; // BUG
    out[threadIdx.x] = total; // BUG
}

//! right | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void leader_writes_tile_syncs(const int *in, int *out) {
    __shared__ int total;
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    int sum = in[threadIdx.x];
    for (int d = 16; d; d /= 2) sum += tile.shfl_down(sum, d);
    if (tile.thread_rank() == 0) total = sum;
    tile.sync();
    out[threadIdx.x] = total;
}

//! lane_race | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void through_global_memory(const int *in, int *out) {
    out[threadIdx.x] = in[threadIdx.x] * 2; // BUG
    int v = out[31 - threadIdx.x]; // BUG
    __syncwarp();
    out[threadIdx.x] = v;
}

//! right | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void through_global_memory_synced(const int *in, int *out) {
    out[threadIdx.x] = in[threadIdx.x] * 2;
    __syncwarp();
    int v = out[31 - threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = v;
}

//! lane_race | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void inline_ptx_of_a_warp(const int *in, int *out) {
    __shared__ __align__(16) int s[128];
    unsigned at = (unsigned)__cvta_generic_to_shared(s);
    int v = in[threadIdx.x];
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at + 16 * threadIdx.x), "r"(v) : "memory"); // BUG
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at + 4 * threadIdx.x) : "memory"); // BUG
    out[threadIdx.x] = v;
}

//! lane_race | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_mask_of_half_the_warp(const int *in, int *out) {
    __shared__ int s[32];
    int t = threadIdx.x;
    s[t] = in[t]; // BUG
    __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
    out[t] = s[t ^ 16]; // BUG
}

//! right | block 32 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_mask_of_half_and_half_exchanged(const int *in, int *out) {
    __shared__ int s[32];
    int t = threadIdx.x;
    s[t] = in[t];
    __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
    out[t] = s[t ^ 8];
}

//! right | block 64 | f32[64]=random f32[2]=zeros
extern "C" __global__ void all_lanes_store_one_value(const float *in, float *out) {
    __shared__ float s[2];
    float v = in[threadIdx.x];
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 2) out[threadIdx.x] = s[threadIdx.x];
}

template <bool MEET> __device__ void volatile_neighbour(const float *in, float *out) {
    __shared__ volatile float s[64];
    int t = threadIdx.x;
    s[t] = in[t]; // BUG
    __threadfence_block();
    if (MEET) __syncwarp();
    out[t] = s[t ^ 1]; // BUG
}

//! warp_synchronous | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void volatile_and_a_fence(const float *in, float *out) { volatile_neighbour<false>(in, out); } // BUG

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void volatile_a_fence_and_a_meeting(const float *in, float *out) { volatile_neighbour<true>(in, out); }

// A flag between lanes of one warp: volatile, and asked for.
//! right | block 32 | f32[1]=random f32[1]=zeros
extern "C" __global__ void a_flag_between_two_lanes(const float *in, float *out) {
    __shared__ volatile float box;
    __shared__ volatile int flag;
    int t = threadIdx.x;
    if (t == 0) flag = 0;
    __syncwarp();
    if (t == 0) {
        box = in[0];
        __threadfence_block();
        flag = 1;
    } else if (t == 7) {
        while (flag == 0) {}
        __threadfence_block();
        out[0] = box;
    }
}

template <int BETWEEN> __device__ void spread_by_the_first_lane(const float *in, float *out) {
    __shared__ float first[2];
    int t = threadIdx.x;
    float v = in[t], sum = v;
    if (t % 32 == 0) first[t / 32] = v;
    if (BETWEEN == 0) __syncwarp();
    if (BETWEEN == 1) sum += __shfl_xor_sync(0xffffffffu, v, 1);
    if (BETWEEN == 2) sum += __any_sync(0xffffffffu, v > 2.f);
    out[t] = sum + first[t / 32]; // BUG
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_meeting_before_the_load(const float *in, float *out) { spread_by_the_first_lane<0>(in, out); }

//! warp_synchronous | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_shuffle_before_the_load(const float *in, float *out) { spread_by_the_first_lane<1>(in, out); } // BUG

//! warp_synchronous | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_vote_before_the_load(const float *in, float *out) { spread_by_the_first_lane<2>(in, out); } // BUG
