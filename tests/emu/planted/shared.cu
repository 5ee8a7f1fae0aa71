// Shared memory without the barrier that it needs, and with it.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

struct Tile {
    float data[8][33];
    __device__ float *row(int i) { return data[i]; }
};

template <typename T, int N>
struct Ring {
    T slot[N];
    __device__ void put(int i, T v) { slot[i % N] = v; }
    __device__ T get(int i) const { return slot[i % N]; }
};

//! shared_race | block 256 | f32[256]=random f32[256]=zeros
extern "C" __global__ void transpose_of_a_struct(const float *in, float *out) {
    __shared__ Tile tile;
    tile.row(threadIdx.x / 32)[threadIdx.x % 32] = in[threadIdx.x];
    out[threadIdx.x] = tile.row(threadIdx.x % 8)[threadIdx.x / 8]; // BUG
}

//! right | block 256 | f32[256]=random f32[256]=zeros
extern "C" __global__ void transpose_with_barrier(const float *in, float *out) {
    __shared__ Tile tile;
    tile.row(threadIdx.x / 32)[threadIdx.x % 32] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile.row(threadIdx.x % 8)[threadIdx.x / 8];
}

template <int BLOCK>
__device__ float reduce(float v, float *s, bool last_barrier) {
    s[threadIdx.x] = v;
    __syncthreads();
#pragma unroll
    for (int d = BLOCK / 2; d > 0; d >>= 1) {
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; // BUG
        if (last_barrier || d != 64) __syncthreads();
    }
    return s[0]; // BUG
}

//! shared_race | block 256 | f32[256]=random f32[1]=zeros
extern "C" __global__ void one_step_of_a_reduction(const float *in, float *out) {
    __shared__ float s[256];
    float sum = reduce<256>(in[threadIdx.x], s, false);
    if (threadIdx.x == 0) *out = sum;
}

//! right | block 256 | f32[256]=random f32[1]=zeros
extern "C" __global__ void all_steps_of_a_reduction(const float *in, float *out) {
    __shared__ float s[256];
    float sum = reduce<256>(in[threadIdx.x], s, true);
    if (threadIdx.x == 0) *out = sum;
}

//! shared_race | block 128 | shared_bytes 512 | f32[512]=random f32[4]=zeros
extern "C" __global__ void buffer_used_again(const float *in, float *out) {
    extern __shared__ float s[];
    for (int tile = 0; tile < 4; ++tile) {
        s[threadIdx.x] = in[tile * 128 + threadIdx.x]; // BUG
        __syncthreads();
        if (threadIdx.x == 0) {
            float t = 0;
            for (int i = 0; i < 128; ++i) t += s[i]; // BUG
            out[tile] = t;
        }
    }
}

//! right | block 128 | shared_bytes 1024 | f32[512]=random f32[4]=zeros
extern "C" __global__ void two_buffers_need_one_barrier(const float *in, float *out) {
    extern __shared__ float s[];
    for (int tile = 0; tile < 4; ++tile) {
        float *own = s + tile % 2 * 128;
        own[threadIdx.x] = in[tile * 128 + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            float t = 0;
            for (int i = 0; i < 128; ++i) t += own[i];
            out[tile] = t;
        }
    }
}

//! shared_race | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void groups_tile_is_not_the_block(const int *in, int *out) {
    __shared__ int s[64];
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    s[block.thread_rank()] = in[block.thread_rank()];
    warp.sync();
    out[block.thread_rank()] = s[63 - block.thread_rank()]; // BUG
}

//! right | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void groups_block_sync(const int *in, int *out) {
    __shared__ int s[64];
    auto block = cg::this_thread_block();
    s[block.thread_rank()] = in[block.thread_rank()];
    block.sync();
    out[block.thread_rank()] = s[63 - block.thread_rank()];
}

//! right | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void groups_tile_is_enough_in_a_warp(const int *in, int *out) {
    __shared__ int s[64];
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    s[threadIdx.x] = in[threadIdx.x];
    warp.sync();
    out[threadIdx.x] = s[threadIdx.x ^ 31];
}

//! shared_race | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void named_barrier_of_others(const int *in, int *out) {
    __shared__ Ring<int, 96> ring;
    ring.put(threadIdx.x, in[threadIdx.x]);
    if (threadIdx.x < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x] = ring.get(threadIdx.x + 32); // BUG
    }
}

//! right | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void named_barrier_of_all_who_share(const int *in, int *out) {
    __shared__ Ring<int, 96> ring;
    ring.put(threadIdx.x, in[threadIdx.x]);
    if (threadIdx.x < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x] = ring.get(threadIdx.x ^ 63);
    } else
        out[threadIdx.x] = ring.get(threadIdx.x);
}

//! shared_race | block 64 | i32[64]=arange i32[1]=zeros
extern "C" __global__ void count_read_too_early(const int *in, int *out) {
    __shared__ unsigned count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (in[threadIdx.x] & 1) atomicAdd(&count, 1u); // BUG
    if (threadIdx.x == 0) out[0] = count; // BUG
}

//! shared_race | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void inline_ptx_accesses(const int *in, int *out) {
    __shared__ int s[64];
    unsigned at = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + threadIdx.x * 4), "r"(in[threadIdx.x]) : "memory"); // BUG
    int v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at + (63 - threadIdx.x) * 4) : "memory"); // BUG
    out[threadIdx.x] = v;
}

// A message from one warp to another through shared memory, as the memory model has it.
//! right | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void flag_after_a_fence(const int *in, int *out) {
    __shared__ int box[32];
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        box[threadIdx.x] = in[threadIdx.x];
        __threadfence_block();
        __syncwarp();
        if (threadIdx.x == 0) atomicExch(&flag, 1);
    } else {
        if (threadIdx.x == 32)
            while (atomicAdd(&flag, 0) == 0) {}
        __syncwarp();
        __threadfence_block();
        out[threadIdx.x - 32] = box[threadIdx.x - 32];
    }
}

//! right | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void release_and_acquire(const int *in, int *out) {
    __shared__ int box[32];
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    unsigned at = (unsigned)__cvta_generic_to_shared(&flag);
    if (threadIdx.x < 32) {
        box[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) asm volatile("st.release.cta.shared.u32 [%0], 1;" ::"r"(at) : "memory");
    } else {
        int seen = 0;
        while (!seen) asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at) : "memory");
        out[threadIdx.x - 32] = box[threadIdx.x - 32];
    }
}

//! shared_race | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void flag_without_a_fence(const int *in, int *out) {
    __shared__ int box[32];
    __shared__ int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        box[threadIdx.x] = in[threadIdx.x]; // BUG
        __syncwarp();
        if (threadIdx.x == 0) atomicExch(&flag, 1);
    } else {
        if (threadIdx.x == 32)
            while (atomicAdd(&flag, 0) == 0) {}
        __syncwarp();
        out[threadIdx.x - 32] = box[threadIdx.x - 32]; // BUG
    }
}
