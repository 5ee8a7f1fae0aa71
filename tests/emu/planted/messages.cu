// Messages between blocks: flags, tickets, locks and queues, with and without the fence that they need.
#include <cooperative_groups.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;

struct Mailbox {
    int value;
    int ready;
};

//! fence_missing | grid 2 | block 32 | i32[2]=zeros i32[32]=zeros
extern "C" __global__ void a_mailbox(Mailbox *box, int *out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            box->value = 42; // BUG
            atomicExch(&box->ready, 1);
        }
    } else if (threadIdx.x == 0) {
        while (atomicAdd(&box->ready, 0) == 0) {}
        out[0] = box->value; // BUG
    }
}

//! right | grid 2 | block 32 | i32[2]=zeros i32[32]=zeros
extern "C" __global__ void a_mailbox_with_a_fence(Mailbox *box, int *out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            box->value = 42;
            __threadfence();
            atomicExch(&box->ready, 1);
        }
    } else if (threadIdx.x == 0) {
        while (atomicAdd(&box->ready, 0) == 0) {}
        __threadfence();
        out[0] = box->value;
    }
}

template <cuda::thread_scope Scope>
__device__ void signal(int &flag) {
    cuda::atomic_ref<int, Scope>(flag).store(1, cuda::std::memory_order_release); // BUG
}
template <cuda::thread_scope Scope>
__device__ void await(int &flag) {
    while (cuda::atomic_ref<int, Scope>(flag).load(cuda::std::memory_order_acquire) == 0) {} // BUG
}

//! fence_missing | grid 2 | block 32 | i32[2]=zeros i32[32]=zeros
extern "C" __global__ void a_scope_of_the_block(Mailbox *box, int *out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        box->value = 42; // BUG
        signal<cuda::thread_scope_block>(box->ready);
    } else {
        await<cuda::thread_scope_device>(box->ready);
        out[0] = box->value; // BUG
    }
}

//! right | grid 2 | block 32 | i32[2]=zeros i32[32]=zeros
extern "C" __global__ void a_scope_of_the_device(Mailbox *box, int *out) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        box->value = 42;
        signal<cuda::thread_scope_device>(box->ready);
    } else {
        await<cuda::thread_scope_device>(box->ready);
        out[0] = box->value;
    }
}

//! fence_missing | grid 2 | block 32 | i32[2]=zeros i32[32]=zeros
extern "C" __global__ void a_relaxed_flag(Mailbox *box, int *out) {
    if (threadIdx.x) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> ready(box->ready);
    if (blockIdx.x == 0) {
        box->value = 42; // BUG
        ready.store(1, cuda::std::memory_order_relaxed);
    } else {
        while (ready.load(cuda::std::memory_order_relaxed) == 0) {}
        out[0] = box->value; // BUG
    }
}

//! fence_missing | grid 4 | block 64 | f32[256]=random f32[5]=zeros i32[1]=zeros
extern "C" __global__ void the_last_block_adds_up(const float *in, float *parts, int *done) {
    __shared__ float s[64];
    __shared__ bool last;
    s[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 64; ++i) sum += s[i];
        parts[blockIdx.x] = sum; // BUG
        last = atomicAdd(done, 1) == 3;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) parts[4] = parts[0] + parts[1] + parts[2] + parts[3]; // BUG
}

//! right | grid 4 | block 64 | f32[256]=random f32[5]=zeros i32[1]=zeros
extern "C" __global__ void the_last_block_adds_up_after_a_fence(const float *in, float *parts, int *done) {
    __shared__ float s[64];
    __shared__ bool last;
    s[threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 64; ++i) sum += s[i];
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(done, 1) == 3;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) parts[4] = parts[0] + parts[1] + parts[2] + parts[3];
}

//! fence_missing | grid 3 | block 32 | i32[1]=zeros i32[3]=zeros
extern "C" __global__ void inline_flags(int *flag, int *data) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        data[0] = 5; // BUG
        asm volatile("membar.cta;" ::: "memory");
        asm volatile("st.volatile.global.s32 [%0], 1;" ::"l"(flag) : "memory");
    } else {
        int seen = 0;
        while (!seen) asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        data[blockIdx.x] = data[0] + 1; // BUG
    }
}

//! right | grid 3 | block 32 | i32[1]=zeros i32[3]=zeros
extern "C" __global__ void inline_flags_after_a_fence_of_the_device(int *flag, int *data) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        data[0] = 5;
        asm volatile("membar.gl;" ::: "memory");
        asm volatile("st.volatile.global.s32 [%0], 1;" ::"l"(flag) : "memory");
    } else {
        int seen = 0;
        while (!seen) asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        asm volatile("membar.gl;" ::: "memory");
        data[blockIdx.x] = data[0] + 1;
    }
}

//! fence_missing | grid 2 | block 32 | i32[1]=zeros i32[4]=zeros
extern "C" __global__ void a_lock_without_fences(int *lock, int *account) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0) {}
        account[0] -= 10; // BUG
        account[1] += 10; // BUG
        atomicExch(lock, 0);
    }
}

struct SpinLock {
    int *word;
    __device__ void take() {
        while (atomicCAS(word, 0, 1) != 0) __nanosleep(20);
        __threadfence();
    }
    __device__ void give() {
        __threadfence();
        atomicExch(word, 0);
    }
};

//! right | grid 3 | block 64 | i32[1]=zeros i32[4]=zeros
extern "C" __global__ void a_lock_with_fences(int *word, int *account) {
    SpinLock lock{word};
    if (threadIdx.x % 32 == 0) {
        lock.take();
        account[0] -= 10;
        account[1] += 10;
        lock.give();
    }
}

//! right | grid 3 | block 64 | i32[192]=arange i32[192]=zeros
extern "C" __global__ void two_rounds_of_a_grid(const int *in, int *out) {
    auto grid = cg::this_grid();
    int i = grid.thread_rank();
    out[i] = in[i];
    grid.sync();
    int v = out[(i + 64) % 192];
    grid.sync();
    out[i] = v;
}

//! global_race | grid 3 | block 64 | i32[192]=arange i32[192]=zeros
extern "C" __global__ void one_round_of_a_grid_is_missing(const int *in, int *out) {
    auto grid = cg::this_grid();
    int i = grid.thread_rank();
    out[i] = in[i];
    grid.sync();
    int v = out[(i + 64) % 192]; // BUG
    out[i] = v; // BUG
}

// Within a block.

//! fence_missing | block 64 | i32[1]=zeros i32[64]=zeros
extern "C" __global__ void warps_of_a_block_without_a_fence(int *flag, int *data) {
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32) return;
    if (warp == 0) {
        data[0] = 5; // BUG
        atomicExch(flag, 1);
        __threadfence_block();
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        data[1] = data[0] + 1; // BUG
    }
}

//! right | block 64 | i32[1]=zeros i32[64]=zeros
extern "C" __global__ void warps_of_a_block_with_a_fence(int *flag, int *data) {
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32) return;
    if (warp == 0) {
        data[0] = 5;
        __threadfence_block();
        atomicExch(flag, 1);
    } else {
        while (atomicAdd(flag, 0) == 0) {}
        data[1] = data[0] + 1;
    }
}

// A flag in shared memory.
template <bool FENCE, bool READER_TOO> __device__ void mail_in_shared_memory(int *out) {
    __shared__ volatile int ready;
    __shared__ int mail[32];
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        mail[threadIdx.x] = threadIdx.x; // BUG
        if (FENCE) __threadfence_block();
        __syncwarp();
        if (threadIdx.x == 0) ready = 1; // BUG
    } else {
        while (!ready) {} // BUG
        if (READER_TOO) __threadfence_block();
        out[threadIdx.x - 32] = mail[threadIdx.x - 32]; // BUG
    }
}

//! shared_race | block 64 | i32[32]=zeros
extern "C" __global__ void a_volatile_flag_without_a_fence(int *out) { mail_in_shared_memory<false, true>(out); }

//! acquire_missing | block 64 | i32[32]=zeros
extern "C" __global__ void a_volatile_flag_with_one_fence(int *out) { mail_in_shared_memory<true, false>(out); }

//! right | block 64 | i32[32]=zeros
extern "C" __global__ void a_volatile_flag_with_fences(int *out) { mail_in_shared_memory<true, true>(out); }

//! right | grid 2 | block 96 | i32[192]=arange i32[192]=zeros i32[1]=zeros
extern "C" __global__ void places_from_a_counter(const int *in, int *out, int *count) {
    __shared__ int base, own;
    if (threadIdx.x == 0) own = 0;
    __syncthreads();
    bool take = in[blockIdx.x * 96 + threadIdx.x] % 3 == 0;
    int place = take ? atomicAdd(&own, 1) : 0;
    __syncthreads();
    if (threadIdx.x == 0) base = atomicAdd(count, own);
    __syncthreads();
    if (take) out[base + place] = in[blockIdx.x * 96 + threadIdx.x];
}

// What a warp tells of the others of its block: what a barrier has brought to it.

template <bool FENCED, bool MET> __device__ void partial_sums(float *part, unsigned *count, float *out) {
    __shared__ bool last;
    part[blockIdx.x * 64 + threadIdx.x] = threadIdx.x; // BUG
    if (FENCED || threadIdx.x == 0) __threadfence();
    if (MET) __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; last && i < 256; i += 64) sum += part[i]; // BUG
    if (last) atomicAdd(out, sum);
}

//! global_race,lane_race | grid 4 | block 64 | f32[256]=zeros u32[1]=zeros f32[1]=zeros
extern "C" __global__ void one_thread_counts_before_the_others_have_written(float *part, unsigned *count, float *out) {
    partial_sums<true, false>(part, count, out); // BUG
}

//! fence_missing | grid 4 | block 64 | f32[256]=zeros u32[1]=zeros f32[1]=zeros
extern "C" __global__ void one_thread_runs_the_fence_before_the_barrier(float *part, unsigned *count, float *out) {
    partial_sums<false, true>(part, count, out); // BUG
}

//! right | grid 4 | block 64 | f32[256]=zeros u32[1]=zeros f32[1]=zeros
extern "C" __global__ void all_threads_run_the_fence_before_the_barrier(float *part, unsigned *count, float *out) {
    partial_sums<true, true>(part, count, out);
}

template <int OWN> __device__ void flags_of_warps(int *flag, float *box, float *out) {
    const int warp = threadIdx.x / 32;
    if (blockIdx.x == 0) {
        box[threadIdx.x] = threadIdx.x; // BUG
        __threadfence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) atomicExch(flag + warp, 1);
    } else {
        while (atomicAdd(flag + warp * OWN, 0) == 0) {}
        __threadfence();
        out[threadIdx.x] = box[threadIdx.x]; // BUG
    }
}

//! global_race | grid 2 | block 64 | i32[2]=zeros f32[64]=zeros f32[64]=zeros
extern "C" __global__ void all_look_at_the_first_warps_flag(int *flag, float *box, float *out) { flags_of_warps<0>(flag, box, out); } // BUG

//! right | grid 2 | block 64 | i32[2]=zeros f32[64]=zeros f32[64]=zeros
extern "C" __global__ void each_looks_at_the_flag_of_its_warp(int *flag, float *box, float *out) { flags_of_warps<1>(flag, box, out); }

// A barrier of the grid by hand, whose counter the last block sets back.
template <bool TOLD>
__device__ void neighbours(float *x, float *y, unsigned *count, volatile unsigned *open) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    x[i] += i; // BUG
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        if (atomicAdd(count, 1) == gridDim.x - 1) {
            *count = 0;
            __threadfence();
            *open = 1;
        } else {
            while (*open == 0) {}
        }
        __threadfence();
    }
    if (TOLD) __syncthreads();
    y[i] = x[(i + blockDim.x) % n]; // BUG
}

//! global_race | grid 4 | block 64 | f32[256]=ones f32[256]=empty u32[1]=zeros u32[1]=zeros
extern "C" __global__ void the_other_warps_have_not_waited(float *x, float *y, unsigned *count, unsigned *open) {
    neighbours<false>(x, y, count, open); // BUG
}

//! right | grid 4 | block 64 | f32[256]=ones f32[256]=empty u32[1]=zeros u32[1]=zeros
extern "C" __global__ void the_other_warps_have_waited(float *x, float *y, unsigned *count, unsigned *open) {
    neighbours<true>(x, y, count, open);
}

struct Aggregate {
    int sum, ready;
};

template <bool FENCE>
__device__ void look_back(volatile Aggregate *all, int *y) {
    if (threadIdx.x) return;
    int b = blockIdx.x, before = 0;
    ((Aggregate *)all)[b].sum = b + 1; // BUG
    if (FENCE) __threadfence();
    all[b].ready = 1;
    for (int p = 0; p < b; ++p) {
        while (all[p].ready == 0) {}
        __threadfence(); // also after the own store, but too late for it
        before += all[p].sum; // BUG
    }
    y[b] = before;
}

//! global_race | grid 4 | block 32 | i32[8]=zeros i32[4]=empty
extern "C" __global__ void a_fence_that_comes_too_late(Aggregate *all, int *y) { look_back<false>(all, y); } // BUG

//! right | grid 4 | block 32 | i32[8]=zeros i32[4]=empty
extern "C" __global__ void a_fence_before_the_flag(Aggregate *all, int *y) { look_back<true>(all, y); }

// Parts of a sum in turns, with the modifiers as CUTLASS's semaphore has them.
template <bool RELEASE>
__device__ void in_turns(float *sum, int *turn) {
    int now = -1;
    if (threadIdx.x == 0) {
        while (now != (int)blockIdx.x)
            asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    }
    __syncthreads();
    sum[threadIdx.x] += 1; // BUG
    __syncthreads();
    if (threadIdx.x) return;
    now = blockIdx.x + 1;
    if (RELEASE) asm volatile("st.global.release.gpu.b32 [%0], %1;" ::"l"(turn), "r"(now) : "memory");
    else asm volatile("st.global.relaxed.gpu.b32 [%0], %1;" ::"l"(turn), "r"(now) : "memory");
}

//! fence_missing | grid 4 | block 64 | f32[64]=zeros i32[1]=zeros
extern "C" __global__ void a_semaphore_that_is_relaxed(float *sum, int *turn) { in_turns<false>(sum, turn); } // BUG

//! right | grid 4 | block 64 | f32[64]=zeros i32[1]=zeros
extern "C" __global__ void a_semaphore_that_releases(float *sum, int *turn) { in_turns<true>(sum, turn); }
