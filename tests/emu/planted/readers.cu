// Readers of messages that run no fence: they find old lines in their cache, or may be moved before the flag.
#include <cuda/atomic>
using Flag = cuda::atomic_ref<int, cuda::thread_scope_device>;
constexpr auto relaxed = cuda::std::memory_order_relaxed;
constexpr auto acquire = cuda::std::memory_order_acquire;

// Block 0 writes 4 letters, one after another into one box; block 1 reads each of them.
template <typename Wait, typename Read>
__device__ void letters(int *box, int *sent, int *seen, int *y, Wait wait, Read read) {
    int t = threadIdx.x;
    for (int k = 1; k <= 4; ++k) {
        if (blockIdx.x == 0) {
            box[t] = k * t; // BUG
            __threadfence();
            __syncthreads();
            if (t == 0) {
                atomicExch(sent, k);
                while (atomicAdd(seen, 0) < k) {}
            }
            __syncthreads();
        } else {
            if (t == 0) wait(sent, k);
            __syncthreads();
            y[t] += read(box + t); // BUG
            __syncthreads();
            if (t == 0) atomicExch(seen, k);
        }
    }
}
__device__ int plainly(int *p) { return *p; } // BUG
__device__ int freshly(int *p) { return *(volatile int *)p; }
__device__ void by_volatile(int *f, int k) {
    while (*(volatile int *)f < k) {}
}
__device__ void by_volatile_with_fence(int *f, int k) {
    by_volatile(f, k);
    __threadfence();
}
__device__ void by_atomic(int *f, int k) {
    while (atomicAdd(f, 0) < k) {}
}
__device__ void by_relaxed(int *f, int k) {
    while (Flag(*f).load(relaxed) < k) {}
}
__device__ void by_block_fence(int *f, int k) {
    by_volatile(f, k);
    __threadfence_block();
}
__device__ void by_acquire(int *f, int k) {
    while (Flag(*f).load(acquire) < k) {}
}

//! stale_read | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_by_volatile(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_volatile, plainly); // BUG
}

//! stale_read | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_by_atomic(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_atomic, plainly); // BUG
}

//! stale_read,acquire_missing | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_by_relaxed(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_relaxed, plainly); // BUG
}

//! stale_read | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_by_fence_of_the_block(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_block_fence, plainly); // BUG
}

//! stale_read | grid 2 | block 32 | i32[32]=zeros i32[1]=zeros i32[1]=zeros i32[32]=zeros
extern "C" __global__ void letters_to_one_warp(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_atomic, plainly); // BUG
}

//! right | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_with_a_fence(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_volatile_with_fence, plainly);
}

//! right | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_by_acquire(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_acquire, plainly);
}

//! right | grid 2 | block 64 | i32[64]=zeros i32[1]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void letters_read_past_the_cache(int *box, int *sent, int *seen, int *y) {
    letters(box, sent, seen, y, by_volatile, freshly);
}

// One letter, read by the thread that has seen the flag.
template <typename Wait>
__device__ void letter(int *box, int *y, Wait wait) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) {
        box[1] = 5; // BUG
        Flag(box[0]).store(1, cuda::std::memory_order_release);
    } else {
        wait(box, 1);
        *y = box[1]; // BUG
    }
}

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_relaxed(int *box, int *y) { letter(box, y, by_relaxed); } // BUG

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_relaxed_exchange(int *box, int *y) {
    letter(box, y, [](int *f, int) { // BUG
        while (Flag(*f).exchange(0, relaxed) == 0) {}
    });
}

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_inline_assembly(int *box, int *y) {
    letter(box, y, [](int *f, int) { // BUG
        int seen;
        do asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(f) : "memory");
        while (seen == 0);
    });
}

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_volatile(int *box, int *y) { letter(box, y, by_volatile); } // BUG

//! acquire_missing | grid 2 | block 64 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_to_a_block_of_two_warps(int *box, int *y) { letter(box, y, by_relaxed); } // BUG

//! right | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_acquire(int *box, int *y) { letter(box, y, by_acquire); }

template <bool FENCE>
__device__ void add_under_a_lock(int *lock, int *sum) {
    if (threadIdx.x) return;
    while (atomicCAS(lock, 0, 1)) {}
    if (FENCE) __threadfence();
    sum[0] += 1; // BUG
    __threadfence();
    atomicExch(lock, 0);
}

//! acquire_missing | grid 4 | block 32 | i32[1]=zeros i32[1]=zeros
extern "C" __global__ void a_lock_without_its_first_fence(int *lock, int *sum) {
    add_under_a_lock<false>(lock, sum); // BUG
}

//! right | grid 4 | block 32 | i32[1]=zeros i32[1]=zeros
extern "C" __global__ void a_lock_with_both_fences(int *lock, int *sum) { add_under_a_lock<true>(lock, sum); }

// The last block reads what the others have stored by volatile stores, which no fence follows.
template <bool FENCE, bool ACQUIRE = FENCE>
__device__ void volatile_parts(const float *x, volatile float *parts, unsigned *count, float *y) {
    float sum = x[blockIdx.x * 32 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x) return;
    parts[blockIdx.x] = sum; // BUG
    if (FENCE) __threadfence();
    if (atomicAdd(count, 1) < gridDim.x - 1) return;
    if (ACQUIRE) __threadfence();
    float total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += parts[b]; // BUG
    *y = total;
}

//! fence_missing | grid 4 | f32[128]=ones f32[4]=empty u32[1]=zeros f32[1]=empty
extern "C" __global__ void volatile_without_a_fence(const float *x, float *parts, unsigned *count, float *y) {
    volatile_parts<false>(x, parts, count, y); // BUG
}

//! acquire_missing | grid 4 | f32[128]=ones f32[4]=empty u32[1]=zeros f32[1]=empty
extern "C" __global__ void volatile_with_one_fence(const float *x, float *parts, unsigned *count, float *y) {
    volatile_parts<true, false>(x, parts, count, y); // BUG
}

//! right | grid 4 | f32[128]=ones f32[4]=empty u32[1]=zeros f32[1]=empty
extern "C" __global__ void volatile_with_two_fences(const float *x, float *parts, unsigned *count, float *y) {
    volatile_parts<true>(x, parts, count, y);
}

//! right | grid 8 | i32[8]=ones i32[8]=empty u64[8]=zeros
extern "C" __global__ void sums_and_flags_in_one_word(const int *x, int *y, volatile unsigned long long *state) {
    if (threadIdx.x) return;
    int b = blockIdx.x, before = 0;
    state[b] = (b ? 1ull : 2ull) << 32 | x[b];
    for (int p = b - 1; p >= 0; --p) {
        unsigned long long word;
        do word = state[p];
        while (word >> 32 == 0);
        before += (int)word;
        if (word >> 32 == 2) break;
    }
    state[b] = 2ull << 32 | (before + x[b]);
    y[b] = before + x[b];
}

//! right | grid 4 | f32[130]=random
extern "C" __global__ void relaxation_of_whatever_is_there(volatile float *x) {
    int i = blockIdx.x * 32 + threadIdx.x + 1;
    for (int k = 0; k < 4; ++k) {
        x[i] = 0.5f * (x[i - 1] + x[i + 1]);
        __threadfence();
    }
}

//! right | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_letter_by_a_fence_that_acquires(int *box, int *y) {
    letter(box, y, [](int *f, int k) {
        by_relaxed(f, k);
        asm volatile("fence.acquire.gpu;" ::: "memory");
    });
}

// Blocks take turns at one sum; the first thread of each waits for its turn, and a barrier follows.
template <typename Wait>
__device__ void turns(int *turn, float *sum, const float *x, Wait wait) {
    int t = threadIdx.x;
    if (t == 0) wait(turn, blockIdx.x);
    __syncthreads();
    sum[t] += x[blockIdx.x * 64 + t]; // BUG
    __threadfence();
    __syncthreads();
    if (t == 0) atomicAdd(turn, 1);
}

//! right | grid 4 | block 64 | i32[1]=zeros f32[64]=zeros f32[256]=random
extern "C" __global__ void turns_by_acquire(int *turn, float *sum, const float *x) { turns(turn, sum, x, by_acquire); }

//! right | grid 4 | block 64 | i32[1]=zeros f32[64]=zeros f32[256]=random
extern "C" __global__ void turns_with_a_fence(int *turn, float *sum, const float *x) { turns(turn, sum, x, by_volatile_with_fence); }

//! acquire_missing | grid 2 | block 64 | i32[1]=zeros f32[64]=zeros f32[256]=random
extern "C" __global__ void turns_by_relaxed(int *turn, float *sum, const float *x) { turns(turn, sum, x, by_relaxed); } // BUG

//! acquire_missing | grid 4 | block 64 | i32[1]=zeros f32[64]=zeros f32[256]=random
extern "C" __global__ void turns_at_what_other_blocks_have_read(int *turn, float *sum, const float *x) {
    turns(turn, sum, x, by_atomic); // BUG
}

// The last thread to take a ticket adds up what each has left.
template <typename Take>
__device__ void sum_of_tickets(const float *x, float *parts, unsigned *count, float *y, Take take) {
    if (threadIdx.x) return;
    parts[blockIdx.x] = 2 * x[blockIdx.x];
    if (take(count) != gridDim.x - 1) return;
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += parts[b]; // BUG
    *y = sum;
}
using Count = cuda::atomic_ref<unsigned, cuda::thread_scope_device>;

//! right | grid 4 | f32[4]=ones f32[4]=empty u32[1]=zeros f32[1]=empty
extern "C" __global__ void tickets_that_acquire(const float *x, float *parts, unsigned *count, float *y) {
    sum_of_tickets(x, parts, count, y, [](unsigned *c) { return Count(*c).fetch_add(1, cuda::std::memory_order_acq_rel); });
}

//! acquire_missing | grid 4 | f32[4]=ones f32[4]=empty u32[1]=zeros f32[1]=empty
extern "C" __global__ void tickets_that_release_alone(const float *x, float *parts, unsigned *count, float *y) {
    sum_of_tickets(x, parts, count, y, [](unsigned *c) { return Count(*c).fetch_add(1, cuda::std::memory_order_release); }); // BUG
}

template <class Fence>
__device__ void strong_letter(int *box, int *y, Fence fence) {
    if (threadIdx.x) return;
    auto sheet = (volatile int *)box + 1;
    if (blockIdx.x == 0) {
        *sheet = 5; // BUG
        __threadfence();
        *(volatile int *)box = 1;
    } else {
        while (*(volatile int *)box == 0) {}
        fence();
        *y = *sheet; // BUG
    }
}

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_volatile_letter_by_a_volatile_flag(int *box, int *y) {
    strong_letter(box, y, [] {}); // BUG
}

//! acquire_missing | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_volatile_letter_with_a_fence_of_the_compiler(int *box, int *y) {
    strong_letter(box, y, [] { asm volatile("" ::: "memory"); }); // BUG
}

//! right | grid 2 | block 32 | i32[2]=zeros i32[1]=empty
extern "C" __global__ void a_volatile_letter_after_a_fence(int *box, int *y) {
    strong_letter(box, y, [] { __threadfence(); });
}

template <bool ACQUIRE>
__device__ void relaxed_rows(int *box, const int *x, int *y) {
    if (blockIdx.x == 0) {
        Flag(box[1 + threadIdx.x]).store(x[threadIdx.x], relaxed); // BUG
        __syncthreads();
        if (threadIdx.x == 0) Flag(box[0]).store(1, cuda::std::memory_order_release);
    } else {
        while (Flag(box[0]).load(ACQUIRE ? cuda::std::memory_order_acquire : relaxed) == 0) {}
        y[threadIdx.x] = Flag(box[1 + threadIdx.x]).load(relaxed); // BUG
    }
}

//! acquire_missing | grid 2 | block 64 | i32[65]=zeros i32[64]=arange i32[64]=empty
extern "C" __global__ void relaxed_rows_by_a_relaxed_flag(int *box, const int *x, int *y) {
    relaxed_rows<false>(box, x, y); // BUG
}

//! right | grid 2 | block 64 | i32[65]=zeros i32[64]=arange i32[64]=empty
extern "C" __global__ void relaxed_rows_by_an_acquire(int *box, const int *x, int *y) {
    relaxed_rows<true>(box, x, y);
}

//! right | grid 2 | block 64 | i32[2]=zeros i32[64]=empty
extern "C" __global__ void a_volatile_letter_after_a_barrier(int *box, int *y) {
    if (blockIdx.x == 0) {
        if (threadIdx.x) return;
        *((volatile int *)box + 1) = 5;
        __threadfence();
        *(volatile int *)box = 1;
    } else {
        if (threadIdx.x == 0)
            while (*(volatile int *)box == 0) {}
        __syncthreads();
        y[threadIdx.x] = *((volatile int *)box + 1);
    }
}
