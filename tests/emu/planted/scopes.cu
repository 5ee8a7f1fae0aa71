// Who is told: another block of the cluster, lanes that meet at different places, lanes that never come.
#include <cooperative_groups.h>
#include <cuda/pipeline>
namespace cg = cooperative_groups;

namespace {
using u32 = unsigned;
using u64 = unsigned long long;
__device__ u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ u32 rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ u32 peer(const void *p) { u32 a; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(at(p)), "r"(rank() ^ 1)); return a; }
__device__ void all() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
__device__ void init(u64 *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(at(bar)), "r"(count) : "memory");
}
#define WAIT(scope) asm volatile("{\n.reg .pred p;\nagain%=:\nmbarrier.try_wait.parity.acquire." scope ".shared::cta.b64 p, [%0], %1;\n@!p bra again%=;\n}" ::"r"(at(bar)), "r"(parity) : "memory")
__device__ void wait(u64 *bar, int parity) { WAIT("cluster"); }
__device__ void wait_near(u64 *bar, int parity) { WAIT("cta"); }
__device__ void arrive(u64 *bar) { asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(at(bar)) : "memory"); }
__device__ void arrive_there(u64 *bar) { asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer(bar)) : "memory"); }
__device__ void load(void *to, const void *from, int bytes, u64 *bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" // BUG
                 ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(bar)) : "memory"); // BUG
}
template <bool WIDE> __device__ void message_by_store(const int *in, int *mail, int *out) {
    __shared__ u32 flag;
    if (threadIdx.x == 0) flag = 0;
    all();
    if (rank() == 0) {
        mail[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0 && WIDE) asm volatile("st.release.cluster.shared::cluster.u32 [%0], 1;" ::"r"(peer(&flag)) : "memory");
        if (threadIdx.x == 0 && !WIDE) asm volatile("st.release.cta.shared::cluster.u32 [%0], 1;" ::"r"(peer(&flag)) : "memory");
    } else {
        u32 seen = 0;
        while (!seen) asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(at(&flag)) : "memory");
        out[threadIdx.x] = mail[threadIdx.x ^ 1]; // BUG
    }
    all();
}
template <bool WIDE> __device__ void message_by_fence(const int *in, int *mail, int *out) {
    __shared__ volatile u32 flag;
    if (threadIdx.x == 0) flag = 0;
    all();
    mail[32 * rank() + threadIdx.x] = in[threadIdx.x];
    if (WIDE) asm volatile("fence.acq_rel.cluster;" ::: "memory");
    else __threadfence_block();
    __syncwarp();
    if (threadIdx.x == 0) asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], 1;" ::"r"(peer((u32 *)&flag)) : "memory");
    while (!flag) {}
    asm volatile("fence.acq_rel.cluster;" ::: "memory");
    out[32 * rank() + threadIdx.x] = mail[32 * (rank() ^ 1) + threadIdx.x]; // BUG
    all();
}
template <bool ARRIVE, bool WAITS> __device__ void message_by_mbarrier(const int *in, int *out) {
    __shared__ int s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar, 32);
    all();
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(peer(s + threadIdx.x)), "r"(in[threadIdx.x]) : "memory");
    if (ARRIVE) arrive_there(&bar);
    else asm volatile("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%0];" ::"r"(peer(&bar)) : "memory");
    WAITS ? wait(&bar, 0) : wait_near(&bar, 0);
    out[32 * rank() + threadIdx.x] = s[31 - threadIdx.x]; // BUG
    all();
}
}

//! fence_missing | grid 2 | cluster 2 | i32[32]=arange i32[32]=zeros i32[32]=zeros
extern "C" __global__ void a_flag_in_a_peer_is_released_to_its_own_block(const int *in, int *mail, int *out) {
    message_by_store<false>(in, mail, out);
}

//! right | grid 2 | cluster 2 | i32[32]=arange i32[32]=zeros i32[32]=zeros
extern "C" __global__ void a_flag_in_a_peer_is_released_to_the_cluster(const int *in, int *mail, int *out) {
    message_by_store<true>(in, mail, out);
}

//! fence_missing | grid 2 | cluster 2 | i32[32]=arange i32[64]=zeros i32[64]=zeros
extern "C" __global__ void a_fence_of_the_block_before_a_flag_in_a_peer(const int *in, int *mail, int *out) {
    message_by_fence<false>(in, mail, out);
}

//! right | grid 2 | cluster 2 | i32[32]=arange i32[64]=zeros i32[64]=zeros
extern "C" __global__ void a_fence_of_the_cluster_before_a_flag_in_a_peer(const int *in, int *mail, int *out) {
    message_by_fence<true>(in, mail, out);
}

//! shared_race | grid 2 | cluster 2 | i32[32]=arange i32[64]=zeros
extern "C" __global__ void an_arrival_at_a_peer_of_the_blocks_scope(const int *in, int *out) {
    message_by_mbarrier<false, true>(in, out);
}

//! shared_race | grid 2 | cluster 2 | i32[32]=arange i32[64]=zeros
extern "C" __global__ void a_wait_for_a_peer_of_the_blocks_scope(const int *in, int *out) {
    message_by_mbarrier<true, false>(in, out);
}

//! right | grid 2 | cluster 2 | i32[32]=arange i32[64]=zeros
extern "C" __global__ void an_arrival_and_a_wait_of_the_clusters_scope(const int *in, int *out) {
    message_by_mbarrier<true, true>(in, out);
}

//! right | grid 2 | cluster 2 | block 64 | i32[64]=arange i32[128]=zeros
extern "C" __global__ void a_wait_of_the_blocks_scope_for_ones_own_block(const int *in, int *out) {
    __shared__ int s[32];
    __shared__ u64 mine, theirs;
    if (threadIdx.x == 0) { init(&mine, 32); init(&theirs, 32); }
    all();
    if (threadIdx.x < 32) { // the first warp is told by the peer, and tells the second
        asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(peer(s + threadIdx.x)), "r"(in[threadIdx.x]) : "memory");
        arrive_there(&theirs);
        wait(&theirs, 0);
        arrive(&mine);
    } else {
        wait_near(&mine, 0);
        out[64 * rank() + threadIdx.x] = s[63 - threadIdx.x];
    }
    all();
}

//! bulk_not_waited | grid 2 | cluster 2 | block 64 | f32[64]=random f32[128]=zeros
extern "C" __global__ void what_is_copied_to_a_peer_is_written_over(const float *in, float *out) {
    __shared__ alignas(128) float s[64], got[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(at(&bar)) : "memory");
    }
    s[threadIdx.x] = in[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    all();
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(peer(got)), "r"(at(s)), "r"(peer(&bar)) : "memory");
    wait(&bar, 0); // that the peer's has come says nothing of one's own
    __syncthreads();
    s[threadIdx.x] = 0; // BUG
    out[64 * rank() + threadIdx.x] = got[threadIdx.x];
    all();
}

//! right | grid 2 | cluster 2 | block 64 | f32[64]=random f32[128]=zeros
extern "C" __global__ void what_is_copied_to_a_peer_is_written_over_once_it_has_come(const float *in, float *out) {
    __shared__ alignas(128) float s[64], got[64];
    __shared__ u64 bar;
    if (threadIdx.x == 0) {
        init(&bar, 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(at(&bar)) : "memory");
    }
    s[threadIdx.x] = in[threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    all();
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(peer(got)), "r"(at(s)), "r"(peer(&bar)) : "memory");
    wait(&bar, 0);
    all();
    s[threadIdx.x] = 0;
    out[64 * rank() + threadIdx.x] = got[threadIdx.x];
    all();
}

//! right | f32[32]=random f32[32]=zeros
extern "C" __global__ void lanes_meet_at_the_syncwarp_of_their_branch(const float *in, float *out) {
    __shared__ float s[32];
    if (threadIdx.x < 16) {
        s[threadIdx.x] = in[threadIdx.x];
        __syncwarp();
        out[threadIdx.x] = s[threadIdx.x + 16];
    } else {
        s[threadIdx.x] = 2 * in[threadIdx.x];
        __syncwarp();
        out[threadIdx.x] = s[threadIdx.x - 16];
    }
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void eight_lanes_meet_at_two_places(const int *in, int *out) {
    __shared__ int s[32];
    s[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x < 4) {
        __syncwarp(0xff);
        out[threadIdx.x] = s[threadIdx.x + 4];
    } else if (threadIdx.x < 8) {
        __syncwarp(0xff);
        out[threadIdx.x] = 2 * s[threadIdx.x - 4];
    }
}

//! lane_race | f32[32]=random f32[32]=zeros
extern "C" __global__ void each_branch_names_its_own_lanes(const float *in, float *out) {
    __shared__ float s[32];
    if (threadIdx.x < 16) {
        s[threadIdx.x] = in[threadIdx.x]; // BUG
        __syncwarp(0xffff);
        out[threadIdx.x] = s[threadIdx.x + 16]; // BUG
    } else {
        s[threadIdx.x] = 2 * in[threadIdx.x]; // BUG
        __syncwarp(0xffff0000);
        out[threadIdx.x] = s[threadIdx.x - 16]; // BUG
    }
}

//! lane_race | block 64 | f32[320]=random f32[32]=zeros 10
extern "C" __global__ void a_lane_gives_the_slot_back_that_others_read(const float *in, float *out, int n) {
    __shared__ alignas(128) float s[2][32];
    __shared__ u64 full[2], empty[2];
    if (threadIdx.x == 0) for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 1); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) for (int i = 0; i < n; ++i) {
            wait(&empty[i % 2], (i / 2 + 1) & 1);
            load(s[i % 2], in + 32 * i, 128, &full[i % 2]); // BUG
        }
    } else {
        float sum = 0;
        for (int i = 0; i < n; ++i) {
            wait(&full[i % 2], (i / 2) & 1);
            sum += s[i % 2][63 - threadIdx.x];
            if (threadIdx.x == 32) arrive(&empty[i % 2]);
        }
        out[threadIdx.x - 32] = sum;
    }
}

//! right | block 64 | f32[320]=random f32[32]=zeros 10
extern "C" __global__ void a_lane_gives_the_slot_back_after_a_syncwarp(const float *in, float *out, int n) {
    __shared__ alignas(128) float s[2][32];
    __shared__ u64 full[2], empty[2];
    if (threadIdx.x == 0) for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 1); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) for (int i = 0; i < n; ++i) {
            wait(&empty[i % 2], (i / 2 + 1) & 1);
            load(s[i % 2], in + 32 * i, 128, &full[i % 2]);
        }
    } else {
        float sum = 0;
        for (int i = 0; i < n; ++i) {
            wait(&full[i % 2], (i / 2) & 1);
            sum += s[i % 2][63 - threadIdx.x];
            __syncwarp();
            if (threadIdx.x == 32) arrive(&empty[i % 2]);
        }
        out[threadIdx.x - 32] = sum;
    }
}

//! lane_race | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_lane_tells_a_storing_warp_that_others_have_read(const int *in, int *out) {
    __shared__ int s[32];
    __shared__ u64 bar;
    if (threadIdx.x == 0) init(&bar, 1);
    if (threadIdx.x < 32) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) {
        out[threadIdx.x] = s[31 - threadIdx.x];
        if (threadIdx.x == 0) arrive(&bar);
    } else {
        wait(&bar, 0);
        s[threadIdx.x - 32] = 0; // BUG
    }
}

//! member_absent | i32[32]=arange i32[32]=zeros
extern "C" __global__ void some_lanes_do_not_vote(const int *in, int *out) {
    int votes = 7;
    if (in[threadIdx.x] % 4 != 3) votes = __ballot_sync(0xffffffff, in[threadIdx.x] & 1); // BUG
    out[threadIdx.x] = votes;
}

//! member_absent | i32[32]=arange i32[32]=zeros
extern "C" __global__ void some_lanes_are_not_added(const int *in, int *out) {
    if (threadIdx.x < 20) out[threadIdx.x] = __reduce_add_sync(0xffffffff, in[threadIdx.x]); // BUG
    else out[threadIdx.x] = -1;
}

//! member_absent | i32[32]=arange i32[32]=zeros
extern "C" __global__ void some_lanes_do_not_match(const int *in, int *out) {
    unsigned mask = __ballot_sync(0xffffffff, threadIdx.x < 24), same = 0;
    if (threadIdx.x < 23) same = __match_any_sync(mask, in[threadIdx.x] & 3); // BUG
    out[threadIdx.x] = same;
}

//! member_absent | i32[32]=arange i32[32]=zeros
extern "C" __global__ void some_lanes_pass_the_syncwarp_by(const int *in, int *out) {
    __shared__ int s[16];
    if (threadIdx.x < 16) {
        s[threadIdx.x] = in[threadIdx.x];
        __syncwarp(); // BUG
        out[threadIdx.x] = s[15 - threadIdx.x];
    } else {
        out[threadIdx.x] = 0;
    }
}

//! member_absent | i32[32]=arange i32[32]=zeros
extern "C" __global__ void some_lanes_are_not_asked(const int *in, int *out) {
    int any = 0, more = in[threadIdx.x];
    if (more != 9) any = __any_sync(0xffffffff, more > 30); // BUG
    out[threadIdx.x] = any + more;
}

//! right | i32[32]=arange i32[32]=zeros 20
extern "C" __global__ void lanes_that_have_returned_need_not_vote(const int *in, int *out, int n) {
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = __popc(__ballot_sync(0xffffffff, in[threadIdx.x] & 1));
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void lanes_that_no_mask_names_go_by(const int *in, int *out) {
    unsigned mask = __ballot_sync(0xffffffff, in[threadIdx.x] % 4 != 3);
    if (in[threadIdx.x] % 4 != 3) out[threadIdx.x] = __reduce_add_sync(mask, in[threadIdx.x]);
    else out[threadIdx.x] = -1;
}

//! global_race,flag_race | grid 8 | f32[256]=random f32[1]=zeros i32[1]=zeros
extern "C" __global__ void each_block_resets_the_tickets(const float *in, float *out, int *ticket) {
    if (threadIdx.x) return;
    volatile float *part = out;
    if (atomicAdd(ticket, 1) == gridDim.x - 1) *part = in[0];
    *ticket = 0; // BUG
}

//! right | grid 8 | f32[256]=random f32[1]=zeros i32[1]=zeros
extern "C" __global__ void the_last_block_resets_the_tickets(const float *in, float *out, int *ticket) {
    if (threadIdx.x) return;
    if (atomicAdd(ticket, 1) == gridDim.x - 1) {
        *out = in[0];
        *ticket = 0;
    }
}

//! lost_update | grid 16 | block 1 | f32[16]=arange f32[1]=zeros f32[16]=zeros
extern "C" __global__ void a_maximum_is_swapped_once(const float *in, float *best, float *before) {
    float mine = in[blockIdx.x], old = *(volatile float *)best;
    if (old < mine) old = __int_as_float(atomicCAS((int *)best, __float_as_int(old), __float_as_int(mine))); // BUG
    before[blockIdx.x] = old;
}

//! right | grid 16 | block 1 | f32[16]=arange f32[1]=zeros f32[16]=zeros
extern "C" __global__ void a_maximum_is_swapped_until_it_is(const float *in, float *best, float *before) {
    float mine = in[blockIdx.x], old = *(volatile float *)best, seen = mine;
    while (old < mine && seen != old) {
        seen = old;
        old = __int_as_float(atomicCAS((int *)best, __float_as_int(seen), __float_as_int(mine)));
    }
    before[blockIdx.x] = old;
}

//! right | block 64 | explore 12 | i32[320]=arange i32[64]=zeros 5
extern "C" __global__ void copies_tell_two_mbarriers(const int *in, int *out, int n) {
    __shared__ int s[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int i = 0, next = 0; i < n; ++i) {
        for (; next < n && next < i + 2; ++next) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[next % 2], in + 64 * next, sizeof(int) * 64, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += s[i % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

//! barrier_counts | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void two_warps_meet_at_the_barrier_of_all(const int *in, int *out) {
    __shared__ int s[96];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    int seen = 0;
    if (threadIdx.x < 64) {
        asm volatile("bar.sync 0, 64;" ::: "memory");
        seen = s[63 - threadIdx.x];
    }
    __syncthreads(); // BUG
    out[threadIdx.x] = seen;
}

//! barrier_counts | block 128 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void two_pairs_of_warps_meet_at_one_barrier(const int *in, int *out) {
    __shared__ int s[128];
    s[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory"); // BUG
    else asm volatile("bar.sync 1, 64;" ::: "memory"); // BUG
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}

//! right | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void a_barrier_is_handed_on_in_turns(const int *in, int *out) {
    __shared__ int s[96];
    int t = threadIdx.x, warp = t / 32, seen = 0;
    s[t] = in[t];
    if (warp < 2) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        seen = s[t ^ 32];
    }
    __syncthreads();
    if (warp > 0) asm volatile("bar.sync 1, 64;" ::: "memory");
    if (warp == 2) {
        s[t] = 7;
        asm volatile("bar.arrive 3, 64;" ::: "memory");
        asm volatile("bar.sync 1, 64;" ::: "memory");
    }
    if (warp == 0) {
        asm volatile("bar.sync 3, 64;" ::: "memory");
        seen += s[64 + t];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    }
    out[t] = seen;
}

template <bool FENCE> __device__ void after_a_relaxed_arrival(const int *in, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x, here = rank() * 64, far;
    s[t] = in[here + t];
    if (FENCE) asm volatile("fence.acq_rel.cluster;" ::: "memory");
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(far) : "r"(peer(&s[63 - t])) : "memory"); // BUG
    out[here + t] = far;
    all();
}

//! right | grid 2 | cluster 2 | block 64 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void a_fence_before_a_relaxed_arrival(const int *in, int *out) { after_a_relaxed_arrival<true>(in, out); }

//! shared_race | grid 2 | cluster 2 | block 64 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void a_relaxed_arrival_alone(const int *in, int *out) { after_a_relaxed_arrival<false>(in, out); } // BUG

#define FENCE_TO_MBARRIER(fence)                                                                                       \
    __shared__ int s[64];                                                                                              \
    __shared__ u64 bar;                                                                                                \
    int t = threadIdx.x, there = (rank() ^ 1) * 64;                                                                    \
    if (t == 0) init(&bar, 64);                                                                                        \
    all();                                                                                                             \
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(peer(&s[t])), "r"(in[there + t]) : "memory");                \
    asm volatile(fence "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer(&bar)) : "memory");   \
    wait(&bar, 0);                                                                                                     \
    out[there + t] = s[63 - t];                                                                                        \
    all();

//! right | grid 2 | cluster 2 | block 64 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void a_fence_before_a_relaxed_mbarrier(const int *in, int *out) { FENCE_TO_MBARRIER("fence.acq_rel.cluster;\n") }

//! shared_race | grid 2 | cluster 2 | block 64 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void a_relaxed_mbarrier_alone(const int *in, int *out) { FENCE_TO_MBARRIER("") } // BUG

//! shared_race | grid 2 | cluster 2 | block 64 | i32[128]=arange i32[128]=zeros
extern "C" __global__ void a_fence_of_the_block_before_a_relaxed_mbarrier(const int *in, int *out) { FENCE_TO_MBARRIER("fence.acq_rel.cta;\n") } // BUG

// Lanes of each warp reach a barrier by two ways; unaligned, it takes the warp with the last of them.
template <int ODD> __device__ void by_two_ways(const int *in, int *out) {
    __shared__ int s[64];
    int t = threadIdx.x;
    if (t & 1) {
        s[t] = 2 * in[t];
        asm volatile("barrier.sync %0, 64;" ::"n"(ODD) : "memory"); // BUG
    } else {
        s[t] = 3 * in[t];
        asm volatile("barrier.sync 1, 64;" ::: "memory"); // BUG
    }
    out[t] = s[63 - t];
}

//! right | block 64 | explore 6 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void lanes_reach_a_barrier_apart(const int *in, int *out) { by_two_ways<1>(in, out); }

//! deadlock | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void lanes_of_a_warp_at_two_barriers(const int *in, int *out) { by_two_ways<2>(in, out); } // BUG
