// What is handed on: by phases that take too few arrivals, by loads and stores past the first cache, by stores of one
// value, by registers.
#include <cooperative_groups.h>
#include <cuda/atomic>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;
using u64 = unsigned long long;
__device__ __forceinline__ unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(bar)), "r"(count) : "memory");
}
__device__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void arrive(u64 *bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(bar)) : "memory"); }
__device__ void wait(u64 *bar, unsigned parity) {
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra W; }" ::"r"(at(bar)), "r"(parity) : "memory");
}
__device__ void load(float *to, const float *from, u64 *bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(at(bar)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(at(to)), "l"(from), "r"(at(bar)) : "memory"); // BUG
}

/// Four warps read each stage, and `FREE` of them free it.
template <int FREE> __device__ void broadcast(const float *in, float *out) {
    __shared__ alignas(128) float tile[2][32];
    __shared__ u64 full[2], empty[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; ++s) init(&full[s], 1), init(&empty[s], FREE);
        fence_init();
    }
    __syncthreads();
    for (int i = 0; i < 6; ++i) {
        const int s = i % 2, lap = i / 2;
        if (threadIdx.x == 128) {
            wait(&empty[s], ~lap & 1);
            load(tile[s], in + 32 * i, &full[s]); // BUG
        } else if (warp < 4) {
            wait(&full[s], lap & 1);
            const float v = tile[s][lane ^ warp];
            __syncwarp();
            if (lane == 0) arrive(&empty[s]);
            out[i * 128 + threadIdx.x] = v;
        }
    }
}

//! shared_race | block 160 | f32[192]=random f32[768]=zeros
extern "C" __global__ void the_stage_is_free_with_three_of_four(const float *in, float *out) { broadcast<3>(in, out); }

//! right | block 160 | f32[192]=random f32[768]=zeros
extern "C" __global__ void the_stage_is_free_with_all_four(const float *in, float *out) { broadcast<4>(in, out); }

/// Block 0 hands tiles to block 1, all past the first cache.
template <bool FENCE, bool WAITS> __device__ void pass(const float *in, float *tile, volatile int *full, float *out) {
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
        __stcg(tile + t, in[t]); // BUG
        if (FENCE) __threadfence();
        __syncwarp();
        if (t == 0) *full = 1;
    } else {
        if (WAITS && t == 0) {
            while (!*full) {
            }
            __threadfence();
        }
        __syncwarp();
        out[t] = 2 * __ldcg(tile + t); // BUG
    }
}

//! fence_missing | grid 2 | f32[32]=random f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void past_the_cache_and_no_fence(const float *in, float *tile, int *full, float *out) {
    pass<false, true>(in, tile, full, out); // BUG
}

//! global_race | grid 2 | f32[32]=random f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void past_the_cache_and_no_wait(const float *in, float *tile, int *full, float *out) {
    pass<true, false>(in, tile, full, out); // BUG
}

//! right | grid 2 | f32[32]=random f32[32]=zeros i32[1]=zeros f32[32]=zeros
extern "C" __global__ void past_the_cache_with_a_fence(const float *in, float *tile, int *full, float *out) {
    pass<true, true>(in, tile, full, out);
}

//! flag_race | block 128 | f32[128]=random i32[1]=zeros
extern "C" __global__ void any_warp_may_say_so(const float *in, int *out) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (in[threadIdx.x] > 0) found = 1; // BUG
    __syncthreads();
    if (threadIdx.x == 0) *out = found;
}

//! shared_race,flag_race | block 128 | f32[128]=random i32[1]=zeros
extern "C" __global__ void any_warp_may_say_so_and_one_asks_early(const float *in, int *out) {
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (in[threadIdx.x] > 0) found = 1; // BUG
    if (threadIdx.x == 0) *out = found; // BUG
}

//! shared_race,lane_race | block 128 | f32[128]=random i32[1]=zeros
extern "C" __global__ void any_warp_may_say_who(const float *in, int *out) {
    __shared__ int who;
    if (threadIdx.x == 0) who = -1;
    __syncthreads();
    if (in[threadIdx.x] > 0) who = threadIdx.x; // BUG
    __syncthreads();
    if (threadIdx.x == 0) *out = who;
}

template <bool SYNC> __device__ void rows(const unsigned *in, unsigned *out) {
    __shared__ alignas(16) unsigned s[32];
    s[threadIdx.x] = in[threadIdx.x];
    if (SYNC) __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(out[threadIdx.x]) : "r"(at(s + threadIdx.x % 8 * 4)) : "memory"); // BUG
}

//! warp_synchronous | u32[32]=random u32[32]=zeros
extern "C" __global__ void ldmatrix_right_after_the_stores(const unsigned *in, unsigned *out) { rows<false>(in, out); }

//! right | u32[32]=random u32[32]=zeros
extern "C" __global__ void ldmatrix_after_a_syncwarp(const unsigned *in, unsigned *out) { rows<true>(in, out); }

template <int LESS> __device__ void pool(float *a) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LESS));
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); // BUG
    a[threadIdx.x] *= 2;
}

//! register_pool | block 384 | f32[384]=random
extern "C" __global__ void __launch_bounds__(384, 1) registers_that_only_an_end_brings(float *a) { pool<152>(a); }

//! right | block 384 | f32[384]=random
extern "C" __global__ void __launch_bounds__(384, 1) registers_that_were_given_back(float *a) { pool<40>(a); }

/// Each thread copies for itself, and reads what its neighbour has copied.
template <bool BEFORE, bool AFTER> __device__ void neighbours(const float *in, float *out) {
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    float sum = 0;
    __pipeline_memcpy_async(&s[0][t], in + t, 4);
    __pipeline_commit();
    for (int i = 0; i < 4; ++i) {
        if (i < 3) __pipeline_memcpy_async(&s[~i & 1][t], in + (i + 1) * 64 + t, 4); // BUG
        __pipeline_commit();
        __pipeline_wait_prior(1);
        if (BEFORE) __syncwarp();
        sum += s[i & 1][t ^ 1]; // BUG
        if (AFTER) __syncwarp();
    }
    out[t] = sum;
}

//! lane_race | block 64 | f32[256]=random f32[64]=zeros
extern "C" __global__ void the_neighbour_may_still_wait(const float *in, float *out) { neighbours<false, true>(in, out); }

//! lane_race | block 64 | f32[256]=random f32[64]=zeros
extern "C" __global__ void the_neighbour_may_still_read(const float *in, float *out) { neighbours<true, false>(in, out); }

//! right | block 64 | f32[256]=random f32[64]=zeros
extern "C" __global__ void both_neighbours_are_there(const float *in, float *out) { neighbours<true, true>(in, out); }

template <bool EARLY> __device__ void locked(volatile float *sum, int *lock, const float *in) {
    if (threadIdx.x) return;
    float old = *sum;
    while (atomicCAS(lock, 0, 1)) {
    }
    __threadfence();
    if (!EARLY) old = *sum;
    *sum = old + in[blockIdx.x]; // BUG
    __threadfence();
    atomicExch(lock, 0);
}

//! lost_update | grid 4 | f32[1]=zeros i32[1]=zeros f32[4]=random
extern "C" __global__ void read_before_the_lock_is_taken(float *sum, int *lock, const float *in) { locked<true>(sum, lock, in); }

//! right | grid 4 | f32[1]=zeros i32[1]=zeros f32[4]=random
extern "C" __global__ void read_once_the_lock_is_taken(float *sum, int *lock, const float *in) { locked<false>(sum, lock, in); }

/// Two slots with a sequence number each; the compiler knows what is put into them.
template <bool EARLY> __device__ void slots(int *turn, int *slot, int *out) {
    if (threadIdx.x) return;
    for (int i = 0; i < 6; ++i) {
        cuda::atomic_ref<int, cuda::thread_scope_device> mine(turn[i & 1]);
        while (mine.load(cuda::memory_order_acquire) != i / 2 * 2 + (int)blockIdx.x) {
        }
        if (blockIdx.x == 0) slot[i & 1] = 3 * i + 1; // BUG
        else if (EARLY) mine.store(i / 2 * 2 + 2, cuda::memory_order_release), out[i] = slot[i & 1]; // BUG
        else out[i] = slot[i & 1];
        if (blockIdx.x == 0 || !EARLY) mine.store(i / 2 * 2 + 1 + (int)blockIdx.x, cuda::memory_order_release);
    }
}

//! global_race | grid 2 | i32[2]=zeros i32[2]=zeros i32[6]=zeros
extern "C" __global__ void the_slot_is_given_back_before_it_is_read(int *turn, int *slot, int *out) { slots<true>(turn, slot, out); } // BUG

//! right | grid 2 | i32[2]=zeros i32[2]=zeros i32[6]=zeros
extern "C" __global__ void the_slot_is_given_back_once_it_is_read(int *turn, int *slot, int *out) { slots<false>(turn, slot, out); }

template <int TILE> __device__ void turned(const float *in, float *out) {
    __shared__ cg::block_tile_memory<128> memory;
    __shared__ float s[128];
    auto block = cg::this_thread_block(memory);
    const int t = threadIdx.x;
    s[t] = in[t]; // BUG
    cg::tiled_partition<TILE>(block).sync();
    out[t] = s[t ^ 63]; // BUG
}

//! shared_race | block 128 | f32[128]=random f32[128]=zeros
extern "C" __global__ void tiles_of_one_warp_for_two(const float *in, float *out) { turned<32>(in, out); }

//! right | block 128 | f32[128]=random f32[128]=zeros
extern "C" __global__ void tiles_of_two_warps(const float *in, float *out) { turned<64>(in, out); }

template <bool SYNC> __device__ void spoken_for(const float *in, float *out) {
    __shared__ float s[32];
    __shared__ u64 full;
    const int t = threadIdx.x;
    if (t == 0) init(&full, 1);
    __syncthreads();
    if (t < 32) {
        s[t] = in[t];
        if (SYNC) __syncwarp();
        if (t == 0) arrive(&full);
    } else {
        wait(&full, 0);
        out[t - 32] = s[63 - t]; // BUG
    }
}

//! lane_race | block 64 | f32[32]=random f32[32]=zeros
extern "C" __global__ void one_lane_arrives_for_all(const float *in, float *out) { spoken_for<false>(in, out); }

//! right | block 64 | f32[32]=random f32[32]=zeros
extern "C" __global__ void one_lane_arrives_for_all_that_have_met(const float *in, float *out) { spoken_for<true>(in, out); }

template <int WRITER> __device__ void one_of_a_warp(const float *in, float *out) {
    __shared__ float s;
    __shared__ u64 full;
    const int t = threadIdx.x;
    if (t == 0) init(&full, 1);
    __syncthreads();
    if (t < 32) {
        if (t == WRITER) s = in[t];
        if (t == 5) arrive(&full);
    } else {
        wait(&full, 0);
        out[t - 32] = s; // BUG
    }
}

//! lane_race | block 64 | f32[32]=random f32[32]=zeros
extern "C" __global__ void one_lane_writes_and_another_arrives(const float *in, float *out) { one_of_a_warp<4>(in, out); }

//! right | block 64 | f32[32]=random f32[32]=zeros
extern "C" __global__ void one_lane_writes_and_arrives(const float *in, float *out) { one_of_a_warp<5>(in, out); }
