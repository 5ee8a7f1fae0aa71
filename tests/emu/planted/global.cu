// Global memory: between blocks, and between warps of one block.
#include <cooperative_groups.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;

struct Body {
    float3 position;
    float mass;
};

//! global_race,lane_race | grid 4 | block 32 | f32[512]=random
extern "C" __global__ void bodies_in_place(Body *bodies) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float3 force = {0, 0, 0};
    for (int j = 0; j < 128; ++j) force.x += bodies[j].position.x * bodies[j].mass; // BUG
    bodies[i].position.x += force.x; // BUG
}

//! right | grid 4 | block 32 | f32[512]=random f32[512]=zeros
extern "C" __global__ void bodies_out_of_place(const Body *bodies, Body *moved) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float3 force = {0, 0, 0};
    for (int j = 0; j < 128; ++j) force.x += bodies[j].position.x * bodies[j].mass;
    moved[i] = bodies[i];
    moved[i].position.x += force.x;
}

template <typename T>
__device__ T *at(T *base, int row, int column, int stride) {
    return base + row * stride + column;
}

//! global_race | grid 2 | block 64 | f32[128]=ones
extern "C" __global__ void rows_of_wrong_stride(float *a) {
    *at(a, blockIdx.x, threadIdx.x, 32) = threadIdx.x + 100 * blockIdx.x; // BUG
}

//! right | grid 2 | block 64 | f32[128]=ones
extern "C" __global__ void rows_of_right_stride(float *a) {
    *at(a, blockIdx.x, threadIdx.x, 64) = threadIdx.x + 100 * blockIdx.x;
}

// One block, several warps.

//! global_race | block 128 | f32[128]=random f32[128]=zeros
extern "C" __global__ void scratch_in_global_memory(const float *in, float *scratch) {
    int t = threadIdx.x;
    scratch[t] = in[t] * 2; // BUG
    float v = scratch[127 - t]; // BUG
    __syncthreads();
    scratch[t] = v;
}

//! right | block 128 | f32[128]=random f32[128]=zeros
extern "C" __global__ void scratch_with_barriers(const float *in, float *scratch) {
    int t = threadIdx.x;
    scratch[t] = in[t] * 2;
    __syncthreads();
    float v = scratch[127 - t];
    __syncthreads();
    scratch[t] = v;
}

//! global_race | block 128 | f32[128]=random f32[128]=zeros
extern "C" __global__ void only_one_of_two_barriers(const float *in, float *scratch) {
    int t = threadIdx.x;
    scratch[t] = in[t] * 2;
    __syncthreads();
    float v = scratch[(t + 1) % 128]; // BUG
    scratch[t] = v; // BUG
}

//! lane_race,global_race | block 96 | i32[96]=arange
extern "C" __global__ void bubble_sort_by_pairs(int *a) {
    for (int round = 0; round < 4; ++round) {
        int i = 2 * threadIdx.x + (round & 1);
        if (i + 1 < 96 && a[i] > a[i + 1]) { // BUG
            int v = a[i]; // BUG
            a[i] = a[i + 1]; // BUG
            a[i + 1] = v; // BUG
        }
        if (threadIdx.x < 10) a[threadIdx.x * 2 + 1] = -(int)threadIdx.x; // BUG
    }
}

//! right | block 64 | f32[128]=random
extern "C" __global__ void odd_even_sort(float *a) {
    for (int round = 0; round < 8; ++round) {
        int i = 2 * threadIdx.x + (round & 1);
        if (i + 1 < 128 && a[i] > a[i + 1]) {
            float v = a[i];
            a[i] = a[i + 1];
            a[i + 1] = v;
        }
        __syncthreads();
    }
}

//! right | block 256 | f32[256]=random f32[512]=zeros
extern "C" __global__ void ping_pong_scan(const float *in, float *buffers) {
    int t = threadIdx.x;
    float *from = buffers, *to = buffers + 256;
    from[t] = in[t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        to[t] = t >= d ? from[t] + from[t - d] : from[t];
        __syncthreads();
        float *other = from;
        from = to;
        to = other;
    }
}

//! global_race,lane_race | block 256 | f32[256]=random f32[512]=zeros
extern "C" __global__ void ping_pong_scan_without_barrier(const float *in, float *buffers) {
    int t = threadIdx.x;
    float *from = buffers, *to = buffers + 256;
    from[t] = in[t];
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        to[t] = t >= d ? from[t] + from[t - d] : from[t]; // BUG
        if (d != 16) __syncthreads();
        float *other = from;
        from = to;
        to = other;
    }
}

//! global_race | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_barrier_of_the_warp_only(const float *in, float *out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    out[threadIdx.x] = in[threadIdx.x]; // BUG
    warp.sync();
    float v = out[threadIdx.x ^ 32]; // BUG
    cg::this_thread_block().sync();
    out[threadIdx.x] = v;
}

//! global_race | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void a_named_barrier_of_two_of_three(const int *in, int *out) {
    out[threadIdx.x] = in[threadIdx.x]; // BUG
    int v = 0;
    if (threadIdx.x < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        v = out[threadIdx.x + 32]; // BUG
    }
    __syncthreads();
    out[threadIdx.x] = v;
}

//! right | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void a_named_barrier_of_those_who_share(const int *in, int *out) {
    out[threadIdx.x] = in[threadIdx.x];
    int v = 0;
    if (threadIdx.x < 64) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        v = out[threadIdx.x ^ 32];
    }
    __syncthreads();
    out[threadIdx.x] = v;
}

//! right | block 128 | i32[128]=arange i32[129]=zeros
extern "C" __global__ void a_ticket_tells_the_last_warp(const int *in, int *out) {
    if (threadIdx.x % 32 == 0) {
        out[threadIdx.x / 32 + 1] = in[threadIdx.x];
        __threadfence();
        if (atomicAdd(out, 1) == 3) {
            int sum = 0;
            for (int i = 1; i < 5; ++i) sum += ((volatile int *)out)[i];
            out[100] = sum;
        }
    }
}

//! right | block 64 | i32[32]=arange i32[64]=zeros i32[1]=zeros
extern "C" __global__ void a_flag_to_the_other_warp(const int *in, int *out, int *flag) {
    cuda::atomic_ref<int, cuda::thread_scope_block> ready(*flag);
    if (threadIdx.x < 32) {
        out[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) ready.store(1, cuda::std::memory_order_release);
    } else {
        while (ready.load(cuda::std::memory_order_acquire) == 0) {}
        out[threadIdx.x] = out[threadIdx.x - 32] + 1;
    }
}

//! flag_race | block 256 | i32[256]=arange i32[1]=zeros
extern "C" __global__ void any_thread_sets_the_flag(const int *in, int *found) {
    if (in[threadIdx.x] % 50 == 7) *found = 1; // BUG
}

//! global_race | block 64 | i32[64]=arange i32[1]=zeros
extern "C" __global__ void the_last_to_write_wins(const int *in, int *found) {
    if (in[threadIdx.x] % 31 == 7) *found = threadIdx.x; // BUG
}

//! right | block 64 | i32[64]=arange i32[16]=zeros
extern "C" __global__ void counts_then_reads(const int *in, int *count) {
    atomicAdd(count + in[threadIdx.x] % 16, 1);
    __syncthreads();
    if (threadIdx.x < 16) count[threadIdx.x] *= 2;
}

//! lost_update | block 64 | i32[64]=arange i32[16]=zeros
extern "C" __global__ void counts_without_atomics(const int *in, int *count) {
    count[in[threadIdx.x] % 16]++; // BUG
}

//! lost_update | block 32 | i32[32]=arange i32[16]=zeros
extern "C" __global__ void counts_of_one_warp(const int *in, int *count) {
    count[in[threadIdx.x] % 16] += 3; // BUG
}

//! lost_update | block 256 | f32[256]=random f32[2]=zeros
extern "C" __global__ void sum_of_partial_sums(const float *in, float *sum) {
    float v = in[threadIdx.x];
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) sum[0] += v; // BUG
}

struct Stats {
    int count;
    float sum;
    __device__ void add(float v) {
        count = count + 1; // BUG
        sum = sum + v; // BUG
    }
    __device__ void add_atomically(float v) {
        atomicAdd(&count, 1);
        atomicAdd(&sum, v);
    }
};

//! lost_update | grid 3 | block 32 | f32[96]=random f32[2]=zeros
extern "C" __global__ void stats_of_all(const float *in, Stats *stats) {
    if (threadIdx.x == 0) stats->add(in[blockIdx.x * 32]);
}

//! right | grid 3 | block 64 | f32[192]=random f32[2]=zeros
extern "C" __global__ void stats_of_all_by_atomics(const float *in, Stats *stats) {
    stats->add_atomically(in[blockIdx.x * 64 + threadIdx.x]);
}

//! right | grid 3 | block 64 | f32[192]=random f32[3]=zeros
extern "C" __global__ void one_thread_of_each_block_adds_to_its_own(const float *in, float *sums) {
    for (int i = 0; i < 64; ++i)
        if (threadIdx.x == 0) sums[blockIdx.x] += in[blockIdx.x * 64 + i];
}

//! right | grid 2 | block 64 | i32[2]=zeros i32[2]=zeros
extern "C" __global__ void a_lock_of_all_threads(int *lock, int *sum) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            __threadfence();
            sum[0] += 1;
            sum[1] += sum[0];
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

//! lost_update | grid 2 | block 64 | i32[2]=zeros i32[2]=zeros
extern "C" __global__ void a_lock_given_back_too_early(int *lock, int *sum) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            atomicExch(lock, 0);
            sum[0] += 1; // BUG
            done = true;
        }
    }
}
