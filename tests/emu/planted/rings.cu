// Rings of stages, roles and bulk copies in other styles: what the phases, bytes and fences are is a template argument.
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

namespace ring {
using u64 = unsigned long long;
__device__ __forceinline__ unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
struct alignas(8) Bar {
    u64 raw;
    __device__ void init(unsigned count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(this)), "r"(count)); } // BUG
    __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(this)) : "memory"); } // BUG
    __device__ void expect(unsigned bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(this)), "r"(bytes) : "memory"); // BUG
    }
    __device__ void wait(unsigned parity) {
        unsigned done = 0;
        while (!done) {
            asm volatile("{\n.reg .pred q;\nmbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2;\nselp.u32 %0, 1, 0, q;\n}" // BUG
                         : "=r"(done) : "r"(shared(this)), "r"(parity) : "memory"); // BUG
        } // BUG
    }
};
__device__ void load(void *to, const void *from, unsigned bytes, Bar &bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" // BUG
                 ::"r"(shared(to)), "l"(from), "r"(bytes), "r"(shared(&bar)) : "memory"); // BUG
}
__device__ void store(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared(from)), "r"(bytes) : "memory"); // BUG
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int N> __device__ void stored() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
__device__ void proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Warp 0 produces, warp 1 consumes. full[s]: 1 arrival and a stage's bytes; empty[s]: 1 arrival.
template <int STAGES, int FULL = 0, int EMPTY = 1, int BYTES = 128, bool RELEASES = true, int LATE = 0> struct Ring {
    float tile[STAGES][32];
    Bar full[STAGES], empty[STAGES];
    __device__ void run(const float *in, float *out, int steps) {
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; ++s) full[s].init(1), empty[s].init(1);
            proxy();
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                for (int k = 0; k < steps; ++k) {
                    const int s = k % STAGES;
                    empty[s].wait(k / STAGES + EMPTY & 1);
                    full[s].expect(BYTES);
                    load(tile[s], in + 32 * k, 128, full[s]); // BUG
                }
        } else {
            float sum = 0;
            for (int k = 0; k < steps; ++k) {
                const int s = k % STAGES;
                full[s].wait(k / STAGES + FULL & 1);
                sum += tile[(s + LATE) % STAGES][threadIdx.x - 32]; // BUG
                __syncwarp();
                if (RELEASES && threadIdx.x == 32) empty[s].arrive();
            }
            out[threadIdx.x - 32] = sum;
        } // BUG
    }
};
} // namespace ring

//! right | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void a_ring_of_two(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2> r;
    r.run(in, out, steps);
}

//! right | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void a_ring_of_four(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<4> r;
    r.run(in, out, steps);
}

//! async_copy_not_waited,uninitialised_shared_read,mbarrier_misuse,deadlock | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void the_consumer_is_one_phase_ahead(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2, 1> r;
    r.run(in, out, steps);
}

//! deadlock | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void the_producer_waits_for_the_first_release(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2, 0, 0> r;
    r.run(in, out, steps);
}

//! deadlock,async_copy_not_waited | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void half_of_the_bytes_are_expected(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2, 0, 1, 64> r;
    r.run(in, out, steps);
}

//! deadlock | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void twice_the_bytes_are_expected(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2, 0, 1, 256> r;
    r.run(in, out, steps);
}

//! deadlock | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void nobody_releases_a_stage(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<2, 0, 1, 128, false> r;
    r.run(in, out, steps);
}

//! async_copy_not_waited,uninitialised_shared_read | block 64 | f32[192]=random f32[32]=zeros 6
extern "C" __global__ void the_stage_after_the_one_waited_for(const float *in, float *out, int steps) {
    __shared__ alignas(128) ring::Ring<3, 0, 1, 128, true, 1> r;
    r.run(in, out, steps);
}

template <int KEPT, bool FENCE> __device__ void streamed(const float *in, float *out, int steps) {
    __shared__ alignas(128) float tile[2][32];
    for (int k = 0; k < steps; ++k) {
        if (threadIdx.x == 0) ring::stored<KEPT>();
        __syncthreads();
        tile[k & 1][threadIdx.x] = 2 * in[k * 32 + threadIdx.x]; // BUG
        if (FENCE) ring::proxy();
        __syncthreads();
        if (threadIdx.x == 0) ring::store(out + k * 32, tile[k & 1], 128); // BUG
    }
    if (threadIdx.x == 0) ring::stored<0>();
}

//! right | f32[160]=random f32[160]=zeros 5
extern "C" __global__ void stores_from_two_buffers(const float *in, float *out, int steps) { streamed<1, true>(in, out, steps); }

//! bulk_not_waited,shared_race | f32[160]=random f32[160]=zeros 5
extern "C" __global__ void stores_of_two_groups_kept_from_two_buffers(const float *in, float *out, int steps) {
    streamed<2, true>(in, out, steps);
}

//! proxy_fence_missing | f32[160]=random f32[160]=zeros 5
extern "C" __global__ void stores_of_what_no_fence_published(const float *in, float *out, int steps) {
    streamed<1, false>(in, out, steps);
}

template <int KEPT> __device__ void prefetched(const float *in, float *out, int steps) {
    __shared__ alignas(16) float tile[3][32];
    auto copy = [&](int k) {
        if (k < steps)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ring::shared(&tile[k % 3][threadIdx.x])), // BUG
                         "l"(in + k * 32 + threadIdx.x) : "memory"); // BUG
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    copy(0);
    copy(1);
    for (int k = 0; k < steps; ++k) {
        asm volatile("cp.async.wait_group %0;" ::"n"(KEPT) : "memory");
        __syncthreads();
        out[k * 32 + threadIdx.x] = tile[k % 3][31 - threadIdx.x]; // BUG
        copy(k + 2);
    }
}

//! right | f32[160]=random f32[160]=zeros 5
extern "C" __global__ void one_group_stays_in_flight(const float *in, float *out, int steps) { prefetched<1>(in, out, steps); }

//! async_copy_not_waited | f32[160]=random f32[160]=zeros 5
extern "C" __global__ void two_groups_stay_in_flight(const float *in, float *out, int steps) { prefetched<2>(in, out, steps); }

//! async_copy_not_waited | block 64 | f32[256]=random f32[256]=zeros 3
extern "C" __global__ void the_last_group_is_never_waited_for(const float *in, float *out, int steps) {
    __shared__ alignas(16) float tile[2][64];
    auto copy = [&](int k) {
        __pipeline_memcpy_async(&tile[k & 1][threadIdx.x], in + k * 64 + threadIdx.x, 4); // BUG
        __pipeline_commit();
    };
    copy(0);
    for (int k = 0; k < steps; ++k) {
        copy(k + 1);
        __pipeline_wait_prior(1);
        __syncthreads();
        out[k * 64 + threadIdx.x] = tile[k & 1][63 - threadIdx.x];
        __syncthreads();
    }
    out[steps * 64 + threadIdx.x] = tile[steps & 1][threadIdx.x]; // BUG
}

//! shared_race | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void told_before_it_is_written(const float *in, float *out) {
    __shared__ float s[32];
    __shared__ ring::Bar ready;
    if (threadIdx.x == 0) ready.init(32);
    __syncthreads();
    if (threadIdx.x < 32) {
        ready.arrive();
        s[threadIdx.x] = in[threadIdx.x]; // BUG
    } else {
        ready.wait(0);
        out[threadIdx.x] = s[63 - threadIdx.x]; // BUG
    }
}

//! right | block 64 | f32[64]=random f32[64]=zeros
extern "C" __global__ void told_after_it_is_written(const float *in, float *out) {
    __shared__ float s[32];
    __shared__ ring::Bar ready;
    if (threadIdx.x == 0) ready.init(32);
    __syncthreads();
    if (threadIdx.x < 32) {
        s[threadIdx.x] = in[threadIdx.x];
        ready.arrive();
    } else {
        ready.wait(0);
        out[threadIdx.x] = s[63 - threadIdx.x];
    }
}

//! mbarrier_misuse,deadlock | block 64 | i32[64]=zeros
extern "C" __global__ void initialised_in_every_round(int *out) {
    __shared__ ring::Bar met;
    for (int k = 0; k < 2; ++k) {
        if (threadIdx.x == 0) met.init(64); // BUG
        __syncthreads();
        met.arrive();
        met.wait(0);
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

//! async_copy_not_waited | block 64 | f32[128]=random f32[64]=zeros
extern "C" __global__ void a_pipeline_whose_consumer_does_not_wait(const float *in, float *out) {
    __shared__ alignas(16) float tile[64];
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(&tile[threadIdx.x], in + threadIdx.x, sizeof(float), pipe); // BUG
    pipe.producer_commit();
    out[threadIdx.x] = tile[threadIdx.x]; // BUG
    pipe.consumer_wait();
    pipe.consumer_release();
}

//! shared_race,peer_not_started | grid 2 | cluster 2 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_peer_is_read_before_it_has_written(const int *in, int *out) {
    __shared__ int s[32];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x]; // BUG
    __syncthreads();
    out[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[threadIdx.x]; // BUG
    cluster.sync();
}

//! right | grid 2 | cluster 2 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_peer_is_read_between_two_barriers(const int *in, int *out) {
    __shared__ int s[32];
    auto cluster = cg::this_cluster();
    s[threadIdx.x] = in[blockIdx.x * 32 + threadIdx.x];
    cluster.sync();
    out[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[threadIdx.x];
    cluster.sync();
}

//! right | block 64 | f32[32]=random f32[32]=zeros f32[32]=zeros
extern "C" __global__ void what_a_bulk_store_has_written_is_read(const float *in, float *out, float *copy) {
    __shared__ alignas(128) float s[32];
    if (threadIdx.x < 32) s[threadIdx.x] = in[threadIdx.x];
    ring::proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        ring::store(out, s, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < 32) copy[threadIdx.x] = out[threadIdx.x];
}

template <bool FENCED> __device__ void met_by_the_peer(int *out) {
    __shared__ ring::Bar met;
    if (threadIdx.x == 0) {
        met.init(32);
        if (FENCED) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [far];\n}" // BUG
                 ::"r"(ring::shared(&met)), "r"(1 - blockIdx.x % 2) : "memory"); // BUG
    met.wait(0);
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    out[blockIdx.x * 32 + threadIdx.x] = 1;
}

//! right | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void a_fence_of_the_initialisation_before_a_relaxed_arrival(int *out) { met_by_the_peer<true>(out); }

//! shared_race | grid 2 | cluster 2 | i32[64]=zeros
extern "C" __global__ void a_relaxed_arrival_without_that_fence(int *out) { met_by_the_peer<false>(out); }

template <int COUNT>
__device__ void all_arrive(const float *in, float *out) {
    __shared__ float s[64];
    __shared__ unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(COUNT) : "memory");
    __syncthreads();
    s[threadIdx.x] = in[threadIdx.x];
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); // BUG
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(at) : "memory");
    out[threadIdx.x] = s[63 - threadIdx.x];
}

//! mbarrier_misuse | block 64 | f32[64]=random f32[64]=empty
extern "C" __global__ void a_phase_takes_one_too_few(const float *in, float *out) { all_arrive<63>(in, out); } // BUG

//! right | block 64 | f32[64]=random f32[64]=empty
extern "C" __global__ void a_phase_takes_all(const float *in, float *out) { all_arrive<64>(in, out); }
