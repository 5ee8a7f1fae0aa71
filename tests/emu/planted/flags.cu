// Lanes of one warp in kernels that pass messages by flags, tickets and locks.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

namespace {
template <bool SYNC> __device__ float tree(float *s, int t) {
    for (int d = 16; d > 0; d /= 2) {
        if (t < d) s[t] += s[t + d]; // BUG
        if (SYNC) __syncwarp();
    }
    return s[0];
}
template <bool SYNC> __device__ void last_block_adds_up(const float *in, float *part, float *out, unsigned *ticket) {
    __shared__ float s[32];
    __shared__ bool last;
    int t = threadIdx.x;
    s[t] = in[32 * blockIdx.x + t];
    __syncthreads();
    float sum = tree<SYNC>(s, t);
    if (t == 0) {
        part[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        __threadfence();
        float all = 0;
        for (int b = 0; b < gridDim.x; ++b) all += __ldcg(part + b);
        *out = all;
    }
}
template <bool SYNC> __device__ void look_back(const int *in, volatile int *before, volatile int *flag, int *out) {
    __shared__ int base;
    int t = threadIdx.x, b = blockIdx.x, sum = in[32 * b + t];
    for (int d = 1; d < 32; d *= 2) {
        int left = __shfl_up_sync(0xffffffff, sum, d);
        if (t >= d) sum += left;
    }
    int total = __shfl_sync(0xffffffff, sum, 31);
    if (t == 0) base = 0;
    __syncwarp();
    if (t == 0) {
        int known = 0;
        if (b) {
            while (!flag[b - 1]) {}
            __threadfence();
            known = before[b - 1];
        }
        before[b] = known + total;
        __threadfence();
        flag[b] = 1;
        base = known; // BUG
    }
    if (SYNC) __syncwarp();
    out[32 * b + t] = base + sum; // BUG
}
template <bool SYNC> __device__ void exchange_then_lock(const int *in, int *sum, int *lock) {
    __shared__ int s[32];
    int t = threadIdx.x;
    s[t] = in[32 * blockIdx.x + t]; // BUG
    if (SYNC) __syncwarp();
    int mine = s[31 - t]; // BUG
    if (t == 0) {
        while (atomicCAS(lock, 0, 1)) {}
        __threadfence();
        *sum += mine;
        __threadfence();
        atomicExch(lock, 0);
    }
}
template <bool SYNC> __device__ void scratch_then_turns(const int *in, int *scratch, int *sum, int *turn) {
    int t = threadIdx.x, b = blockIdx.x;
    scratch[32 * b + t] = in[32 * b + t]; // BUG
    if (SYNC) __syncwarp();
    int mine = __reduce_add_sync(0xffffffff, scratch[32 * b + (t ^ 5)]); // BUG
    if (t == 0) {
        while (atomicAdd(turn, 0) != b) {}
        __threadfence();
        *sum = 3 * *sum + mine;
        __threadfence();
        atomicExch(turn, b + 1);
    }
}
template <bool SYNC> __device__ void one_lane_tells(const int *in, int *out) {
    __shared__ volatile int flag;
    __shared__ int data[32];
    int t = threadIdx.x;
    if (t == 0) flag = 0;
    __syncthreads();
    if (t < 32) {
        data[t] = in[t]; // BUG
        __threadfence_block();
        if (SYNC) __syncwarp();
        if (t == 0) flag = 1;
    } else {
        while (!flag) {}
        __threadfence_block();
        out[t - 32] = data[63 - t]; // BUG
    }
}
template <bool SYNC> __device__ void ring(const int *in, int *out, int n) {
    __shared__ volatile int head, tail;
    __shared__ int data[2][32];
    int t = threadIdx.x % 32;
    if (threadIdx.x == 0) head = tail = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < n; ++i) {
            while (i - tail >= 2) {}
            __syncwarp();
            data[i & 1][t] = in[32 * i + t]; // BUG
            __threadfence_block();
            __syncwarp();
            if (t == 0) head = i + 1;
        }
    } else {
        for (int i = 0; i < n; ++i) {
            while (head <= i) {}
            __threadfence_block();
            __syncwarp();
            out[32 * i + t] = data[i & 1][31 - t]; // BUG
            __threadfence_block();
            if (SYNC) __syncwarp();
            if (t == 0) tail = i + 1;
        }
    }
}
}

//! lane_race | grid 4 | f32[128]=random f32[4]=zeros f32[1]=zeros u32[1]=zeros
extern "C" __global__ void the_last_block_adds_up_trees_without_syncwarp(const float *in, float *part, float *out, unsigned *ticket) {
    last_block_adds_up<false>(in, part, out, ticket);
}

//! right | grid 4 | f32[128]=random f32[4]=zeros f32[1]=zeros u32[1]=zeros
extern "C" __global__ void the_last_block_adds_up_trees(const float *in, float *part, float *out, unsigned *ticket) {
    last_block_adds_up<true>(in, part, out, ticket);
}

//! lane_race | grid 4 | i32[128]=arange i32[4]=zeros i32[4]=zeros i32[128]=zeros
extern "C" __global__ void what_the_lane_that_looked_back_found_is_read_too_early(const int *in, int *before, int *flag, int *out) {
    look_back<false>(in, before, flag, out);
}

//! right | grid 4 | i32[128]=arange i32[4]=zeros i32[4]=zeros i32[128]=zeros
extern "C" __global__ void what_the_lane_that_looked_back_found_is_read_after_it(const int *in, int *before, int *flag, int *out) {
    look_back<true>(in, before, flag, out);
}

//! lane_race | grid 4 | i32[128]=arange i32[1]=zeros i32[1]=zeros
extern "C" __global__ void lanes_exchange_without_syncwarp_before_a_lock(const int *in, int *sum, int *lock) {
    exchange_then_lock<false>(in, sum, lock);
}

//! right | grid 4 | i32[128]=arange i32[1]=zeros i32[1]=zeros
extern "C" __global__ void lanes_exchange_before_a_lock(const int *in, int *sum, int *lock) {
    exchange_then_lock<true>(in, sum, lock);
}

//! lane_race | grid 4 | i32[128]=arange i32[128]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void lanes_exchange_in_global_memory_without_syncwarp(const int *in, int *scratch, int *sum, int *turn) {
    scratch_then_turns<false>(in, scratch, sum, turn);
}

//! right | grid 4 | i32[128]=arange i32[128]=zeros i32[1]=zeros i32[1]=zeros
extern "C" __global__ void lanes_exchange_in_global_memory_before_their_turn(const int *in, int *scratch, int *sum, int *turn) {
    scratch_then_turns<true>(in, scratch, sum, turn);
}

//! lane_race | grid 2 | block 64 | i32[128]=arange i32[128]=zeros i32[128]=zeros
extern "C" __global__ void lanes_exchange_without_syncwarp_before_a_barrier_of_the_grid(const int *in, int *mid, int *out) {
    __shared__ int s[64];
    auto grid = cg::this_grid();
    int t = threadIdx.x, i = grid.thread_rank();
    s[t] = in[i]; // BUG
    mid[i] = s[t ^ 1]; // BUG
    grid.sync();
    out[i] = mid[(i + 64) % 128];
}

//! lane_race | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_lane_sets_the_flag_of_all(const int *in, int *out) {
    one_lane_tells<false>(in, out);
}

//! right | block 64 | i32[32]=arange i32[32]=zeros
extern "C" __global__ void one_lane_sets_the_flag_after_all(const int *in, int *out) {
    one_lane_tells<true>(in, out);
}

//! lane_race | block 64 | i32[192]=arange i32[192]=zeros 6
extern "C" __global__ void one_lane_gives_the_slot_back_by_a_flag(const int *in, int *out, int n) {
    ring<false>(in, out, n);
}

//! right | block 64 | i32[192]=arange i32[192]=zeros 6
extern "C" __global__ void one_lane_gives_the_slot_back_after_all(const int *in, int *out, int n) {
    ring<true>(in, out, n);
}

//! right | i32[32]=zeros
extern "C" __global__ void lanes_pass_a_number_along_by_flags(int *out) {
    __shared__ volatile int at[33];
    int t = threadIdx.x;
    at[t + 1] = -1;
    if (t == 0) at[0] = 5;
    __syncwarp();
    for (bool done = false; !done;) {
        int left = at[t];
        if (left >= 0) {
            __threadfence_block();
            at[t + 1] = left + 1;
            done = true;
        }
    }
    out[t] = at[t + 1];
}

//! right | i32[32]=arange i32[1]=zeros
extern "C" __global__ void lanes_hold_a_lock_in_turns(const int *in, int *out) {
    __shared__ int lock, sum;
    int t = threadIdx.x;
    if (t == 0) lock = sum = 0;
    __syncwarp();
    for (bool done = false; !done;)
        if (atomicCAS(&lock, 0, 1) == 0) {
            __threadfence_block();
            sum += in[t];
            __threadfence_block();
            atomicExch(&lock, 0);
            done = true;
        }
    __syncwarp();
    if (t == 0) *out = sum;
}

//! right | grid 2 | i32[64]=arange i32[4]=zeros i32[4]=zeros
extern "C" __global__ void lanes_of_all_blocks_hold_four_locks(const int *in, int *sum, int *lock) {
    int k = in[32 * blockIdx.x + threadIdx.x] & 3;
    for (bool done = false; !done;)
        if (atomicCAS(&lock[k], 0, 1) == 0) {
            __threadfence();
            sum[k] += threadIdx.x;
            __threadfence();
            atomicExch(&lock[k], 0);
            done = true;
        }
}

//! right | grid 2 | block 24 | f32[48,48]=random f32[48]=ones f32[48]=zeros i32[48]=zeros 48
extern "C" __global__ void rows_wait_for_rows_of_their_own_warp(const float *lower, const float *b, volatile float *x, volatile int *ready, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    float rest = b[row];
    for (int c = 0; c <= row;) {
        if (c == row) {
            x[row] = rest;
            __threadfence();
            ready[row] = 1;
            ++c;
        } else if (ready[c]) {
            __threadfence();
            rest -= 0.01f * lower[row * n + c] * x[c];
            ++c;
        }
    }
}

//! lane_race | grid 2 | i32[32]=arange i32[32]=zeros i32[1]=zeros i32[32]=zeros
extern "C" __global__ void one_lane_tells_another_block_of_all(const int *in, int *mail, int *flag, int *out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        mail[t] = in[t]; // BUG
        __threadfence();
        if (t == 0) atomicExch(flag, 1);
    } else {
        if (t == 0) {
            while (!atomicAdd(flag, 0)) {}
            __threadfence();
        }
        __syncwarp();
        out[t] = mail[31 - t]; // BUG
    }
}

//! lane_race | grid 2 | block 64 | i32[64]=arange i32[64]=zeros u32[2]=zeros i32[64]=zeros
extern "C" __global__ void a_release_by_one_lane_for_each_warp(const int *in, int *row, unsigned *flag, int *out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        row[t] = in[t]; // BUG
        if (t % 32 == 0) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag + t / 32) : "memory");
    } else {
        unsigned seen = 0;
        while (!seen) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag + t / 32) : "memory");
        out[t] = row[t ^ 9]; // BUG
    }
}

//! lane_race | grid 4 | i32[128]=arange i32[128]=zeros i32[1]=zeros i32[32]=zeros
extern "C" __global__ void one_lane_counts_before_the_others_have_written(const int *in, int *part, int *count, int *out) {
    int t = threadIdx.x, last = 0;
    part[32 * blockIdx.x + t] = in[32 * blockIdx.x + t]; // BUG
    __threadfence();
    if (t == 0) last = atomicAdd(count, 1) == gridDim.x - 1;
    last = __shfl_sync(0xffffffff, last, 0);
    if (!last) return;
    __threadfence();
    int sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += __ldcg(&part[32 * b + t]); // BUG
    out[t] = sum;
}

//! right | grid 4 | i32[128]=arange i32[128]=zeros i32[1]=zeros i32[32]=zeros
extern "C" __global__ void one_lane_counts_after_the_others_have_written(const int *in, int *part, int *count, int *out) {
    int t = threadIdx.x, last = 0;
    part[32 * blockIdx.x + t] = in[32 * blockIdx.x + t];
    __threadfence();
    __syncwarp();
    if (t == 0) last = atomicAdd(count, 1) == gridDim.x - 1;
    last = __shfl_sync(0xffffffff, last, 0);
    if (!last) return;
    __threadfence();
    int sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += __ldcg(&part[32 * b + t]);
    out[t] = sum;
}

//! right | grid 2 | i32[32]=arange i32[32]=zeros i32[32]=zeros i32[1]=zeros i32[32]=zeros
extern "C" __global__ void what_is_stored_after_the_syncwarp_is_not_told(const int *in, int *mail, int *own, int *flag, int *out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        mail[t] = in[t];
        __syncwarp();
        own[t] = 1;
        if (t == 0) {
            __threadfence();
            atomicExch(flag, 1);
        }
    } else {
        if (t == 0) {
            while (!atomicAdd(flag, 0)) {}
            __threadfence();
        }
        __syncwarp();
        out[t] = mail[31 - t];
    }
}

//! right | grid 2 | block 64 | i32[64]=arange i32[64]=zeros i32[64]=zeros i32[64]=zeros
extern "C" __global__ void each_lane_tells_for_itself(const int *in, int *mail, volatile int *flag, int *out) {
    int t = threadIdx.x, other = (t + 7) % 64;
    if (blockIdx.x == 0) {
        mail[t] = in[t];
        __threadfence();
        for (int l = 31; l >= 0; --l)
            if (t % 32 == l) flag[t] = 1;
    } else {
        while (!flag[other]) {}
        __threadfence();
        out[t] = __ldcg(&mail[other]);
    }
}

//! right | grid 2 | block 64 | i32[64]=arange i32[64]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void each_warp_hears_the_same_flag(const int *in, int *mail, volatile int *flag, int *out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        mail[t] = in[t];
        __syncthreads();
        if (t == 0) {
            __threadfence();
            *flag = 1;
        }
    } else {
        while (!*flag) {}
        __threadfence();
        out[t] = __ldcg(&mail[63 - t]);
    }
}

//! global_race | grid 2 | block 64 | i32[64]=arange i32[64]=zeros i32[1]=zeros i32[64]=zeros
extern "C" __global__ void one_warp_of_two_hears_it(const int *in, int *mail, volatile int *flag, int *out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        mail[t] = in[t]; // BUG
        __syncthreads();
        if (t == 0) {
            __threadfence();
            *flag = 1;
        }
    } else {
        while (t < 32 && !*flag) {}
        __threadfence();
        out[t] = __ldcg(&mail[63 - t]); // BUG
    }
}
