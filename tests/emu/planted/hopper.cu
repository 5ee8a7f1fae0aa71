// mbarriers, bulk and tensor copies, clusters, register pools, wgmma.
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda/pipeline>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using block_barrier = cuda::barrier<cuda::thread_scope_block>;

__device__ __forceinline__ unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

struct Mbar {
    unsigned long long word;
    __device__ void init(int count) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&word)), "r"(count) : "memory"); // BUG
    }
    __device__ void expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&word)), "r"(bytes) : "memory"); // BUG
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&word)) : "memory"); // BUG
    }
    __device__ void wait(int parity) {
        asm volatile("{ .reg .pred p;\n"
                     "WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                     "@p bra DONE;\n"
                     "bra WAIT;\n"
                     "DONE: }" ::"r"(at(&word)), // BUG
                     "r"(parity) // BUG
                     : "memory"); // BUG
    }
};

__device__ void bulk_load(void *to, const void *from, int bytes, Mbar &bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)), // BUG
                 "l"(from), "r"(bytes), "r"(at(&bar.word)) // BUG
                 : "memory");
}
__device__ void bulk_store(void *to, const void *from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at(from)), "r"(bytes) // BUG
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Asynchronous writes that are read too early.

//! async_copy_not_waited,bulk_not_waited | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_bulk_load_nobody_waits_for(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bar.expect(128);
        bulk_load(s, in, 128, bar);
    }
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x]; // BUG
}

//! async_copy_not_waited | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void only_one_warp_waits(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bar.expect(256);
        bulk_load(s, in, 256, bar);
    }
    if (threadIdx.x < 32) bar.wait(0);
    out[threadIdx.x] = s[threadIdx.x]; // BUG
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void every_warp_waits(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bar.expect(256);
        bulk_load(s, in, 256, bar);
    }
    bar.wait(0);
    out[threadIdx.x] = s[threadIdx.x];
}

//! async_copy_not_waited,mbarrier_misuse,bulk_not_waited | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_parity_of_the_phase_before(const float *in, float *out) {
    __shared__ __align__(128) float s[2][32];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
    }
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            bar.expect(128);
            bulk_load(s[i], in + 32 * i, 128, bar);
        }
        bar.wait(1); // BUG
        out[32 * i + threadIdx.x] = s[i][threadIdx.x]; // BUG
        __syncthreads();
    }
}

//! async_copy_not_waited,bulk_not_waited | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void cuda_barrier_without_a_wait(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ block_barrier bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(s, in, cuda::aligned_size_t<16>(256), bar); // BUG
        auto token = cuda::device::barrier_arrive_tx(bar, 1, 256);
    } else {
        auto token = bar.arrive();
    }
    out[threadIdx.x] = s[threadIdx.x]; // BUG
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void cuda_barrier_with_a_wait(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
    __shared__ block_barrier bar;
    if (threadIdx.x == 0) {
        init(&bar, blockDim.x);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
    __syncthreads();
    block_barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(s, in, cuda::aligned_size_t<16>(256), bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, 256);
    } else {
        token = bar.arrive();
    }
    bar.wait(std::move(token));
    out[threadIdx.x] = s[threadIdx.x];
}

// cp.async: the asynchronous copies before Hopper's.

__device__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory"); // BUG
}

//! async_copy_not_waited | f32[128]=random f32[128]=zeros
extern "C" __global__ void commit_without_wait(const float *in, float *out) {
    __shared__ __align__(16) float s[128];
    copy16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < 4; ++i) out[32 * i + threadIdx.x] = s[32 * i + threadIdx.x]; // BUG
}

template <int Left>
__device__ void stage_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

//! async_copy_not_waited | f32[512]=random f32[128]=zeros
extern "C" __global__ void one_group_too_few(const float *in, float *out) {
    __shared__ __align__(16) float s[2][128];
    int t = threadIdx.x;
    float sum = 0;
    copy16(s[0] + 4 * t, in + 4 * t);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int k = 0; k < 4; ++k) {
        if (k < 3) copy16(s[(k + 1) % 2] + 4 * t, in + 128 * (k + 1) + 4 * t);
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage_wait<2>();
        __syncthreads();
        sum += s[k % 2][t]; // BUG
        __syncthreads();
    }
    out[t] = sum;
}

//! right | f32[512]=random f32[128]=zeros
extern "C" __global__ void groups_in_their_order(const float *in, float *out) {
    __shared__ __align__(16) float s[2][128];
    int t = threadIdx.x;
    float sum = 0;
    copy16(s[0] + 4 * t, in + 4 * t);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int k = 0; k < 4; ++k) {
        if (k < 3) copy16(s[(k + 1) % 2] + 4 * t, in + 128 * (k + 1) + 4 * t);
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage_wait<1>();
        __syncthreads();
        sum += s[k % 2][t];
        __syncthreads();
    }
    out[t] = sum;
}

//! async_copy_not_waited | f32[128]=random f32[128]=zeros
extern "C" __global__ void pipeline_primitives(const float *in, float *out) {
    __shared__ __align__(16) float s[128];
    __pipeline_memcpy_async(s + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
    __pipeline_commit();
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x]; // BUG
    __pipeline_wait_prior(0);
}

//! async_copy_not_waited,shared_race | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void groups_memcpy_without_wait(const float *in, float *out) {
    __shared__ __align__(16) float s[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, in, cuda::aligned_size_t<16>(256));
    block.sync();
    out[threadIdx.x] = s[threadIdx.x]; // BUG
    cg::wait(block);
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void groups_memcpy_and_wait(const float *in, float *out) {
    __shared__ __align__(16) float s[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, in, cuda::aligned_size_t<16>(256));
    cg::wait(block);
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! right | block 64 | f32[256]=random f32[64]=zeros
extern "C" __global__ void a_pipeline_of_two_stages(const float *in, float *out) {
    __shared__ __align__(16) float s[2][64];
    auto block = cg::this_thread_block();
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int fetch = 0, compute = 0; compute < 4; ++compute) {
        for (; fetch < 4 && fetch < compute + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[fetch % 2], in + 64 * fetch, cuda::aligned_size_t<16>(256), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += s[compute % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

// Proxies.

//! proxy_fence_missing | f32[32]=random f32[32]=zeros
extern "C" __global__ void stored_without_a_proxy_fence(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    s[threadIdx.x] = 2 * in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, s, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

//! right | f32[32]=random f32[32]=zeros
extern "C" __global__ void stored_after_a_proxy_fence(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    s[threadIdx.x] = 2 * in[threadIdx.x];
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, s, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

//! proxy_fence_missing | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_fence_of_one_warp_only(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
    s[threadIdx.x] = in[threadIdx.x] + 1;
    if (threadIdx.x >= 32) proxy_fence();
    __syncthreads();
    if (threadIdx.x == 32) {
        bulk_store(out, s, 256);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

//! proxy_fence_missing | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_reduction_without_a_proxy_fence(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    atomicExch(s + threadIdx.x, in[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, out, s, 128u); // BUG
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

//! proxy_fence_missing | f32[32]=random f32[32]=zeros
extern "C" __global__ void the_fence_before_the_writes(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    proxy_fence();
    s[threadIdx.x] = 2 * in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, s, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

//! proxy_fence_missing | f32[32]=random f32[32]=zeros
extern "C" __global__ void a_second_write_after_the_fence(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    s[threadIdx.x] = 2 * in[threadIdx.x];
    proxy_fence();
    if (threadIdx.x == 5) s[5] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(out, s, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Bulk stores that nobody waits for.

//! bulk_not_waited | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_buffer_is_written_again(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    for (int i = 0; i < 2; ++i) {
        s[threadIdx.x] = in[32 * i + threadIdx.x]; // BUG
        proxy_fence();
        __syncthreads();
        if (threadIdx.x == 0) bulk_store(out + 32 * i, s, 128);
        __syncthreads();
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

//! bulk_not_waited | f32[64]=random f32[64]=zeros
extern "C" __global__ void another_thread_waits(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 1) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncthreads();
        s[threadIdx.x] = in[32 * i + threadIdx.x]; // BUG
        proxy_fence();
        __syncthreads();
        if (threadIdx.x == 0) bulk_store(out + 32 * i, s, 128);
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

//! right | f32[64]=random f32[64]=zeros
extern "C" __global__ void the_storing_thread_waits(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        __syncthreads();
        s[threadIdx.x] = in[32 * i + threadIdx.x];
        proxy_fence();
        __syncthreads();
        if (threadIdx.x == 0) bulk_store(out + 32 * i, s, 128);
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

//! bulk_not_waited | f32[96]=random f32[96]=zeros
extern "C" __global__ void one_store_too_many_in_flight(const float *in, float *out) {
    __shared__ __align__(128) float s[2][32];
    for (int i = 0; i < 3; ++i) {
        if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<2>());
        __syncthreads();
        s[i % 2][threadIdx.x] = in[32 * i + threadIdx.x]; // BUG
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (threadIdx.x == 0) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + 32 * i, s[i % 2], 128u);
            ptx::cp_async_bulk_commit_group();
        }
    }
    if (threadIdx.x == 0) ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
}

//! bulk_exit | f32[32]=random f32[32]=zeros
extern "C" __global__ void the_end_without_a_wait(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    s[threadIdx.x] = in[threadIdx.x];
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) bulk_store(out, s, 128);
} // BUG

// mbarriers used wrongly.

//! mbarrier_misuse | i32[1]=zeros
extern "C" __global__ void one_arrival_too_many(int *out) {
    __shared__ Mbar bar;
    __shared__ int turn;
    if (threadIdx.x == 0) bar.init(33), turn = 0;
    __syncthreads();
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 40;" : "=l"(state) : "r"(at(&bar.word)) : "memory"); // BUG
    if (threadIdx.x == 0) out[0] = (int)state + turn;
}

//! mbarrier_misuse | i32[1]=zeros
extern "C" __global__ void never_initialised(int *out) {
    __shared__ Mbar bar;
    bar.arrive();
    out[0] = 1;
}

//! mbarrier_misuse | i32[1]=zeros
extern "C" __global__ void initialised_twice(int *out) {
    __shared__ Mbar bar;
    if (threadIdx.x < 2) bar.init(32);
    __syncthreads();
    bar.arrive();
    out[0] = 1;
}

//! mbarrier_misuse | f32[32]=random i32[1]=zeros
extern "C" __global__ void transaction_count_overflows(const float *in, int *out) {
    __shared__ Mbar bar;
    if (threadIdx.x == 0) bar.init(2);
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(at(&bar.word)), "r"(1 << 19)); // BUG
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(at(&bar.word)), "r"(1 << 19)); // BUG
    }
    out[0] = 1;
}

//! mbarrier_misuse | i32[32]=zeros
extern "C" __global__ void its_bytes_are_used_for_something_else(int *out) {
    __shared__ union {
        Mbar bar;
        int scratch[2];
    } both;
    if (threadIdx.x == 0) both.bar.init(32);
    __syncthreads();
    if (threadIdx.x == 3) both.scratch[1] = 5; // BUG
    __syncthreads();
    out[threadIdx.x] = threadIdx.x;
}

//! mbarrier_misuse | i32[1]=zeros
extern "C" __global__ void a_count_of_nothing(int *out) {
    __shared__ block_barrier bar;
    if (threadIdx.x == 0) init(&bar, out[0]); // BUG
    __syncthreads();
    out[0] = 1;
}

//! right | i32[64]=zeros
extern "C" __global__ void phases_one_after_another(int *out) {
    __shared__ Mbar bar;
    __shared__ int s[32];
    if (threadIdx.x == 0) bar.init(32);
    __syncthreads();
    for (int phase = 0; phase < 3; ++phase) {
        s[threadIdx.x] = phase + threadIdx.x;
        bar.arrive();
        bar.wait(phase & 1);
        out[threadIdx.x] += s[31 - threadIdx.x];
        __syncthreads();
    }
}

// Waits that nobody can end.

//! deadlock | f32[32]=random f32[32]=zeros
extern "C" __global__ void more_bytes_expected_than_come(const float *in, float *out) {
    __shared__ __align__(128) float s[32];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
        bar.expect(256);
        bulk_load(s, in, 128, bar);
    }
    __syncthreads();
    bar.wait(0);
    out[threadIdx.x] = s[threadIdx.x];
}

//! deadlock | i32[1]=zeros
extern "C" __global__ void one_arrival_is_missing(int *out) {
    __shared__ Mbar bar;
    if (threadIdx.x == 0) bar.init(32);
    __syncthreads();
    if (threadIdx.x != 7) bar.arrive();
    bar.wait(0);
    out[0] = 1;
}

//! deadlock | block 64 | i32[64]=zeros
extern "C" __global__ void producer_and_consumer_wait_for_one_another(int *out) {
    __shared__ Mbar full, empty;
    if (threadIdx.x == 0) full.init(32), empty.init(32);
    __syncthreads();
    if (threadIdx.x < 32) {
        empty.wait(0);
        full.arrive();
    } else {
        full.wait(0);
        empty.arrive();
    }
    out[threadIdx.x] = 1;
}

//! right | block 64 | i32[64]=zeros
extern "C" __global__ void the_producer_begins(int *out) {
    __shared__ Mbar full, empty;
    if (threadIdx.x == 0) full.init(32), empty.init(32);
    __syncthreads();
    if (threadIdx.x < 32) {
        empty.wait(1);
        full.arrive();
    } else {
        full.wait(0);
        empty.arrive();
    }
    out[threadIdx.x] = 1;
}

//! deadlock | block 64 | i32[64]=zeros
extern "C" __global__ void cuda_barrier_of_too_many(int *out) {
    __shared__ block_barrier bar;
    if (threadIdx.x == 0) init(&bar, 65);
    __syncthreads();
    bar.arrive_and_wait(); // BUG
    out[threadIdx.x] = 1;
}

//! deadlock | block 256 | i32[256]=zeros
extern "C" __global__ void __launch_bounds__(256, 2) registers_that_nobody_gives(int *out) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 120;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 200;"); // BUG
    __syncthreads(); // BUG
    out[threadIdx.x] = 1;
}

// Clusters.

__device__ unsigned peer_of(const void *p, unsigned rank) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(p)), "r"(rank));
    return r;
}
__device__ int peer_load(unsigned address) {
    int v;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(address) : "memory"); // BUG
    return v;
}

//! peer_exited | grid 2 | cluster 2 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void no_barrier_before_the_end(const int *in, int *out) {
    __shared__ int s[32];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[cluster.block_rank() * 32 + threadIdx.x];
    cluster.sync();
    int *other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    out[cluster.block_rank() * 32 + threadIdx.x] = other[31 - threadIdx.x]; // BUG
}

//! right | grid 2 | cluster 2 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_barrier_before_the_end(const int *in, int *out) {
    __shared__ int s[32];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[cluster.block_rank() * 32 + threadIdx.x];
    cluster.sync();
    int *other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    out[cluster.block_rank() * 32 + threadIdx.x] = other[31 - threadIdx.x];
    cluster.sync();
}

//! peer_exited | grid 2 | cluster 2 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void inline_peer_load_at_the_end(const int *in, int *out) {
    __shared__ int s[32];
    unsigned rank = blockIdx.x;
    s[threadIdx.x] = in[rank * 32 + threadIdx.x];
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    out[rank * 32 + threadIdx.x] = peer_load(peer_of(s + threadIdx.x, rank ^ 1));
}

//! peer_exited | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void atomics_on_a_peer_that_leaves(int *out) {
    __shared__ int sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&sum, 0), 1); // BUG
    if (cluster.block_rank() == 1) return;
    __syncthreads();
    out[threadIdx.x] = threadIdx.x;
}

//! peer_exited | grid 4 | cluster 4 | i32[128]=zeros
extern "C" __global__ void stores_into_the_next_block(int *out) {
    __shared__ int box[32];
    auto cluster = cg::this_cluster();
    cluster.sync();
    *cluster.map_shared_rank(box + threadIdx.x, (cluster.block_rank() + 1) % 4) = threadIdx.x; // BUG
    out[cluster.block_rank() * 32 + threadIdx.x] = 1;
}

//! peer_exited | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void one_arrives_and_leaves(int *out) {
    __shared__ int box[32];
    unsigned rank = blockIdx.x;
    box[threadIdx.x] = rank;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (rank == 0) {
        asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
        return;
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    out[threadIdx.x] = peer_load(peer_of(box + threadIdx.x, 0));
}

//! shared_race,peer_not_started | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void a_block_barrier_between_blocks(int *out) {
    __shared__ int box[32];
    auto cluster = cg::this_cluster();
    box[threadIdx.x] = threadIdx.x; // BUG
    __syncthreads();
    out[cluster.block_rank() * 32 + threadIdx.x] = *cluster.map_shared_rank(box + threadIdx.x, cluster.block_rank() ^ 1); // BUG
    cluster.sync();
}

//! right | grid 4 | cluster 4 | i32[128]=zeros
extern "C" __global__ void stores_into_the_next_block_between_barriers(int *out) {
    __shared__ int box[32];
    auto cluster = cg::this_cluster();
    cluster.sync();
    *cluster.map_shared_rank(box + threadIdx.x, (cluster.block_rank() + 1) % 4) = threadIdx.x;
    cluster.sync();
    out[cluster.block_rank() * 32 + threadIdx.x] = box[31 - threadIdx.x];
}

// Waits whose answer nobody looks at.

template <bool LOOKS> __device__ void tried(const float *in, float *out) {
    __shared__ __align__(128) float s[64];
    __shared__ Mbar bar;
    if (threadIdx.x == 0) {
        bar.init(1);
        proxy_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        bar.expect(256);
        bulk_load(s, in, 256, bar);
    }
    int there;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.s32 %0, 1, 0, p; }"
                     : "=r"(there) : "r"(at(&bar.word)) : "memory");
    } while (LOOKS && !there);
    out[threadIdx.x] = s[63 - threadIdx.x]; // BUG
}

//! async_copy_not_waited | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_wait_is_tried_once(const float *in, float *out) { tried<false>(in, out); } // BUG

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void a_wait_is_tried_until_it_is_over(const float *in, float *out) { tried<true>(in, out); }
