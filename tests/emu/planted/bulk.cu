// Bulk copies beside ordinary accesses, in shared and in global memory.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

namespace {
using u64 = unsigned long long;
__device__ unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ void store(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at(from)), "r"(bytes) : "memory"); // BUG
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N> __device__ void read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> __device__ void done() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
__device__ void load(void *to, const void *from, unsigned bytes, u64 *bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" // BUG
                 ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(bar)) : "memory"); // BUG
}
__device__ void init(u64 *bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(at(bar)) : "memory");
}
__device__ void wait(u64 *bar, int parity) {
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(at(bar)), "r"(parity) : "memory");
}
}

//! lane_race | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_other_lanes_do_not_wait(const float *in, float *out) {
    __shared__ alignas(128) float s[32];
    for (int i = 0; i < 2; ++i) {
        s[threadIdx.x] = in[32 * i + threadIdx.x]; // BUG
        fence_async();
        __syncwarp();
        if (threadIdx.x == 0) {
            store(out + 32 * i, s, 128); // BUG
            read<0>();
        }
    }
    if (threadIdx.x == 0) done<0>();
}

//! right | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_other_lanes_wait_too(const float *in, float *out) {
    __shared__ alignas(128) float s[32];
    for (int i = 0; i < 2; ++i) {
        s[threadIdx.x] = in[32 * i + threadIdx.x];
        fence_async();
        __syncwarp();
        if (threadIdx.x == 0) {
            store(out + 32 * i, s, 128);
            read<0>();
        }
        __syncwarp();
    }
    if (threadIdx.x == 0) done<0>();
}

//! shared_race,bulk_not_waited,lane_race | block 128 | f32[256]=random f32[256]=zeros
extern "C" __global__ void a_storing_warp_that_waits_after_the_barrier(const float *in, float *out) {
    __shared__ alignas(128) float s[128];
    for (int i = 0; i < 2; ++i) {
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x == 32) read<0>();
        s[threadIdx.x] = in[128 * i + threadIdx.x]; // BUG
        fence_async();
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x == 32) store(out + 128 * i, s, 512); // BUG
    }
    if (threadIdx.x == 32) done<0>();
}

//! bulk_not_waited | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void zeroed_while_it_is_added(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = in[threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" ::"l"(out), "r"(at(s)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    __syncthreads();
    s[threadIdx.x] = 0; // BUG
    if (threadIdx.x == 0) done<0>();
}

//! bulk_not_waited,global_race | block 64 | f32[64]=random f32[64]=zeros f32[64]=zeros
extern "C" __global__ void what_was_stored_is_read_too_early(const float *in, float *out, float *copy) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = in[threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        store(out, s, 256); // BUG
        read<0>();
    }
    __syncthreads();
    copy[threadIdx.x] = out[63 - threadIdx.x]; // BUG
    if (threadIdx.x == 0) done<0>();
}

//! right | block 64 | f32[64]=random f32[64]=zeros f32[64]=zeros
extern "C" __global__ void what_was_stored_is_read_when_it_is_there(const float *in, float *out, float *copy) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = in[threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        store(out, s, 256);
        done<0>();
    }
    __syncthreads();
    copy[threadIdx.x] = out[63 - threadIdx.x];
}

//! bulk_not_waited,lane_race,global_race | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void overwritten_by_the_store_that_comes_late(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    s[threadIdx.x] = in[threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) store(out, s, 256); // BUG
    out[threadIdx.x] = 1; // BUG
    if (threadIdx.x == 0) done<0>();
}

//! proxy_fence_missing,global_race | block 64 | f32[64]=random f32[64]=zeros f32[64]=zeros
extern "C" __global__ void loaded_without_a_fence_after_the_writes(const float *in, float *scratch, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    scratch[threadIdx.x] = 2 * in[threadIdx.x]; // BUG
    __syncthreads();
    if (threadIdx.x == 0) load(s, scratch, 256, &bar); // BUG
    wait(&bar, 0);
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! right | block 64 | f32[64]=random f32[64]=zeros f32[64]=zeros
extern "C" __global__ void loaded_with_a_fence_after_the_writes(const float *in, float *scratch, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    scratch[threadIdx.x] = 2 * in[threadIdx.x];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) load(s, scratch, 256, &bar);
    wait(&bar, 0);
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! async_copy_not_waited | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void overwritten_while_it_is_loaded(float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    if (threadIdx.x == 0) load(s, in, 256, &bar); // BUG
    in[threadIdx.x] = 7; // BUG
    wait(&bar, 0);
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void overwritten_when_it_has_been_loaded(float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    if (threadIdx.x == 0) load(s, in, 256, &bar);
    wait(&bar, 0);
    in[threadIdx.x] = 7;
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! bulk_not_waited,shared_race | block 64 | f32[128]=random f32[128]=zeros
extern "C" __global__ void the_next_load_goes_where_a_store_reads(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) load(s, in + 64 * i, 256, &bar); // BUG
        wait(&bar, i & 1);
        s[threadIdx.x] *= 2; // BUG
        fence_async();
        __syncthreads();
        if (threadIdx.x == 0) store(out + 64 * i, s, 256);
    }
    if (threadIdx.x == 0) done<0>();
}

//! shared_race,lane_race | block 64 | f32[128]=random f32[128]=zeros
extern "C" __global__ void the_next_load_overtakes_the_readers(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) load(s, in + 64 * i, 256, &bar); // BUG
        wait(&bar, i & 1);
        out[64 * i + threadIdx.x] = s[63 - threadIdx.x]; // BUG
    }
}

//! right | block 64 | f32[128]=random f32[128]=zeros
extern "C" __global__ void the_next_load_waits_for_the_readers(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) load(s, in + 64 * i, 256, &bar);
        wait(&bar, i & 1);
        out[64 * i + threadIdx.x] = s[63 - threadIdx.x];
        __syncthreads();
    }
}

// One block writes by ordinary stores; the other loads it by the bulk engine.
template <bool FENCE>
__device__ void letter_to_the_bulk_engine(float *box, int *sent, float *out) {
    __shared__ alignas(128) float s[32];
    __shared__ u64 bar;
    if (blockIdx.x == 0) {
        box[threadIdx.x] = threadIdx.x; // BUG
        __threadfence();
        __syncwarp();
        if (threadIdx.x == 0) atomicExch(sent, 1);
        return;
    }
    if (threadIdx.x == 0) {
        init(&bar);
        while (atomicAdd(sent, 0) == 0) {}
        __threadfence();
        if (FENCE) fence_async();
        load(s, box, 128, &bar); // BUG
    }
    __syncwarp();
    wait(&bar, 0);
    out[threadIdx.x] = s[threadIdx.x];
}

//! proxy_fence_missing | grid 2 | f32[32]=zeros i32[1]=zeros f32[32]=empty
extern "C" __global__ void another_block_wrote_without_a_proxy_fence(float *box, int *sent, float *out) {
    letter_to_the_bulk_engine<false>(box, sent, out); // BUG
}

//! right | grid 2 | f32[32]=zeros i32[1]=zeros f32[32]=empty
extern "C" __global__ void another_block_wrote_and_a_proxy_fence_follows(float *box, int *sent, float *out) {
    letter_to_the_bulk_engine<true>(box, sent, out);
}

// The bytes of an mbarrier are used for data once it is over.
template <bool BARRIER>
__device__ void barrier_ends(const float *in, float *out) {
    __shared__ alignas(128) float s[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar);
    __syncthreads();
    if (threadIdx.x == 0) load(s, in, 256, &bar);
    wait(&bar, 0); // BUG
    if (BARRIER) __syncthreads();
    if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(at(&bar)) : "memory"); // BUG
    __syncthreads();
    if (threadIdx.x == 0) bar = threadIdx.x;
    out[threadIdx.x] = s[threadIdx.x];
}

//! shared_race | block 64 | f32[64]=random f32[64]=empty
extern "C" __global__ void a_barrier_ends_while_others_wait(const float *in, float *out) {
    barrier_ends<false>(in, out); // BUG
}

//! right | block 64 | f32[64]=random f32[64]=empty
extern "C" __global__ void a_barrier_ends_after_all_have_waited(const float *in, float *out) { barrier_ends<true>(in, out); }
