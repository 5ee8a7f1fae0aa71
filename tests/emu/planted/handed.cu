// What is handed on: by phases that take too few arrivals, by loads and stores past the first cache, by stores of one
// value, by registers.
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

//! shared_race | block 128 | f32[128]=random i32[1]=zeros
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
