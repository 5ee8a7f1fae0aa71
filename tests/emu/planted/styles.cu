// Kernels in other styles: functors, lambdas, unions, templates of which one argument is the mistake.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Tiles.

template <int STEPS, bool LAST> struct Tiled {
    float (*tile)[33];
    __device__ float walk(const float *in) const {
        float sum = 0;
        for (int k = 0; k < STEPS; ++k) {
            tile[threadIdx.y][threadIdx.x] = in[k * 64 + threadIdx.y * 32 + threadIdx.x]; // BUG
            __syncthreads();
            sum += tile[1 - threadIdx.y][threadIdx.x]; // BUG
            if (LAST || k + 1 < STEPS) __syncthreads();
        }
        tile[threadIdx.y][threadIdx.x] = sum; // BUG
        __syncthreads();
        return tile[0][threadIdx.x] + tile[1][threadIdx.x];
    }
};

//! shared_race | block 32 2 | f32[192]=random f32[64]=zeros
extern "C" __global__ void no_barrier_in_the_last_step(const float *in, float *out) {
    __shared__ float tile[2][33];
    out[threadIdx.y * 32 + threadIdx.x] = Tiled<3, false>{tile}.walk(in);
}

//! right | block 32 2 | f32[192]=random f32[64]=zeros
extern "C" __global__ void a_barrier_in_every_step(const float *in, float *out) {
    __shared__ float tile[2][33];
    out[threadIdx.y * 32 + threadIdx.x] = Tiled<3, true>{tile}.walk(in);
}

template <int FLIP> __device__ void double_buffer(const float *in, float *out, int steps) {
    __shared__ float buffer[2][64];
    int now = 0;
    buffer[0][threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int k = 1; k <= steps; ++k) {
        if (k < steps) buffer[now ^ FLIP][threadIdx.x] = in[k * 64 + threadIdx.x]; // BUG
        sum += buffer[now][63 - threadIdx.x]; // BUG
        now ^= 1;
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

//! shared_race,uninitialised_shared_read | block 64 | f32[256]=random f32[64]=zeros 4
extern "C" __global__ void a_swap_that_does_not_swap(const float *in, float *out, int steps) { double_buffer<0>(in, out, steps); }

//! right | block 64 | f32[256]=random f32[64]=zeros 4
extern "C" __global__ void a_swap_that_swaps(const float *in, float *out, int steps) { double_buffer<1>(in, out, steps); }

union Phases {
    struct { int keys[64]; } sort;
    struct { float sums[64]; } add;
};

template <bool FENCED> __device__ void two_uses(const int *in, float *out) {
    __shared__ Phases u;
    const int t = threadIdx.x;
    u.sort.keys[t] = in[t];
    __syncthreads();
    int key = u.sort.keys[63 - t]; // BUG
    if (FENCED) __syncthreads();
    u.add.sums[t] = key * 0.5f; // BUG
    __syncthreads();
    out[t] = u.add.sums[t ^ 32];
}

//! shared_race | block 64 | i32[64]=arange f32[64]=zeros
extern "C" __global__ void a_union_of_two_phases(const int *in, float *out) { two_uses<false>(in, out); }

//! right | block 64 | i32[64]=arange f32[64]=zeros
extern "C" __global__ void a_union_with_a_barrier_between(const int *in, float *out) { two_uses<true>(in, out); }

template <typename Body> __device__ void each(int n, Body body) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) body(i);
}

//! shared_race | block 64 | f32[128]=random f32[128]=zeros
extern "C" __global__ void lambdas_without_a_barrier(const float *in, float *out) {
    __shared__ float s[128];
    each(128, [&](int i) { s[i] = in[i]; }); // BUG
    each(128, [&](int i) { out[i] = s[127 - i]; }); // BUG
}

//! right | block 64 | f32[128]=random f32[128]=zeros
extern "C" __global__ void lambdas_with_a_barrier(const float *in, float *out) {
    __shared__ float s[128];
    each(128, [&](int i) { s[i] = in[i]; });
    __syncthreads();
    each(128, [&](int i) { out[i] = s[127 - i]; });
}

//! shared_race | block 64 | shared_bytes 1024 | f32[64]=random f32[64]=zeros
extern "C" __global__ void parts_of_the_dynamic_memory_overlap(const float *in, float *out) {
    extern __shared__ float pool[];
    float *first = pool, *second = pool + 48; // 64 were meant
    first[threadIdx.x] = in[threadIdx.x]; // BUG
    second[threadIdx.x] = 2 * in[threadIdx.x]; // BUG
    __syncthreads();
    out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

//! uninitialised_shared_read | block 64 | f32[64]=random f32[64]=zeros 50
extern "C" __global__ void a_tail_that_the_guard_leaves_out(const float *in, float *out, int n) {
    __shared__ float s[64];
    if (threadIdx.x < n) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += s[i]; // BUG
    out[threadIdx.x] = sum;
}

//! right | block 64 | f32[64]=random f32[64]=zeros 50
extern "C" __global__ void a_tail_that_is_zero(const float *in, float *out, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x < n ? in[threadIdx.x] : 0.f;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += s[i];
    out[threadIdx.x] = sum;
}

//! uninitialised_shared_read | block 64 | i32[64]=ones i32[64]=zeros
extern "C" __global__ void half_of_the_bins_are_cleared(const int *in, int *out) {
    __shared__ int bins[64];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[(threadIdx.x * 7) % 64], in[threadIdx.x]); // BUG
    __syncthreads();
    out[threadIdx.x] = bins[threadIdx.x]; // BUG
}

template <int PAD> struct Swizzle {
    __device__ static int at(int row, int column) { return row * 32 + (column ^ (row & PAD)); }
};

//! uninitialised_shared_read | block 32 4 | f32[128]=random f32[128]=zeros
extern "C" __global__ void rows_of_two_layouts(const float *in, float *out) {
    __shared__ float s[32 * 5];
    s[threadIdx.y * 32 + threadIdx.x] = in[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 32 + threadIdx.x] = s[threadIdx.y * 33 + threadIdx.x]; // BUG
}

//! right | block 32 4 | f32[128]=random f32[128]=zeros
extern "C" __global__ void one_swizzle_for_both(const float *in, float *out) {
    __shared__ float s[32 * 4];
    s[Swizzle<7>::at(threadIdx.y, threadIdx.x)] = in[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    out[threadIdx.y * 32 + threadIdx.x] = s[Swizzle<7>::at(3 - threadIdx.y, threadIdx.x)];
}

//! shared_race | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_scan_in_place(const int *in, int *out) {
    __shared__ int s[64];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    for (int d = 1; d < 64; d <<= 1) {
        if (threadIdx.x >= d) s[threadIdx.x] += s[threadIdx.x - d]; // BUG
        __syncthreads();
    }
    out[threadIdx.x] = s[threadIdx.x];
}

//! right | block 64 | i32[64]=arange i32[64]=zeros
extern "C" __global__ void a_scan_that_reads_first(const int *in, int *out) {
    __shared__ int s[64];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    for (int d = 1; d < 64; d <<= 1) {
        int before = threadIdx.x >= d ? s[threadIdx.x - d] : 0;
        __syncthreads();
        s[threadIdx.x] += before;
        __syncthreads();
    }
    out[threadIdx.x] = s[threadIdx.x];
}

//! shared_race | block 64 | i32[64]=arange i32[64]=zeros i32[1]=zeros
extern "C" __global__ void a_count_that_is_still_counted(const int *in, int *out, int *total) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0; // BUG
    int mine = in[threadIdx.x] & 1;
    __syncthreads();
    if (mine) out[atomicAdd(&count, 1)] = in[threadIdx.x]; // BUG
    if (threadIdx.x == 0) *total = count; // BUG
}

// Barriers.

//! barrier_divergence | block 64 | i32[64]=arange i32[64]=zeros 40
extern "C" __global__ void a_barrier_for_those_in_range(const int *in, int *out, int n) {
    __shared__ int s[64];
    if (threadIdx.x < n) {
        s[threadIdx.x] = in[threadIdx.x];
        __syncthreads(); // BUG
        out[threadIdx.x] = s[n - 1 - threadIdx.x]; // BUG
    } // BUG
} // BUG

//! barrier_divergence,deadlock | block 96 | i32[96]=arange i32[96]=zeros
extern "C" __global__ void a_loop_that_ends_at_different_times(const int *in, int *out) {
    int left = in[threadIdx.x] / 32 + 1;
    while (left-- > 0) __syncthreads(); // BUG
    out[threadIdx.x] = left;
} // BUG

//! deadlock,barrier_counts | block 64 | i32[64]=zeros
extern "C" __global__ void roles_meet_at_different_barriers(int *out) {
    if (threadIdx.x < 32) asm volatile("bar.arrive 1, 64;" ::: "memory"); // BUG
    else asm volatile("bar.sync 2, 64;" ::: "memory"); // BUG
    out[threadIdx.x] = 1;
} // BUG

//! right | block 64 | i32[64]=zeros
extern "C" __global__ void roles_meet_at_one_barrier(int *out) {
    if (threadIdx.x < 32) asm volatile("bar.arrive 1, 64;" ::: "memory");
    else asm volatile("bar.sync 1, 64;" ::: "memory");
    out[threadIdx.x] = 1;
}

//! endless_loop | grid 4 | i32[4]=zeros
extern "C" __global__ void one_block_stays_away(int *out) {
    if (blockIdx.x != 2) cg::this_grid().sync(); // BUG
    out[blockIdx.x] = 1;
} // BUG

//! global_race | grid 4 | i32[4]=zeros i32[4]=zeros
extern "C" __global__ void neighbours_before_the_grid_met(int *here, int *there) {
    auto grid = cg::this_grid();
    if (threadIdx.x == 0) here[blockIdx.x] = blockIdx.x; // BUG
    if (threadIdx.x == 0) there[blockIdx.x] = here[(blockIdx.x + 1) % 4]; // BUG
    grid.sync();
}

//! right | grid 4 | i32[4]=zeros i32[4]=zeros
extern "C" __global__ void neighbours_after_the_grid_met(int *here, int *there) {
    auto grid = cg::this_grid();
    if (threadIdx.x == 0) here[blockIdx.x] = blockIdx.x;
    grid.sync();
    if (threadIdx.x == 0) there[blockIdx.x] = here[(blockIdx.x + 1) % 4];
}

// Lanes.

template <int LANES> __device__ int exchange(int value, int *room) {
    auto tile = cg::tiled_partition<LANES>(cg::this_thread_block());
    room[threadIdx.x] = value; // BUG
    tile.sync();
    return room[threadIdx.x ^ 8]; // BUG
}

//! lane_race | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_tile_smaller_than_what_is_shared(const int *in, int *out) {
    __shared__ int room[32];
    out[threadIdx.x] = exchange<8>(in[threadIdx.x], room);
}

//! right | i32[32]=arange i32[32]=zeros
extern "C" __global__ void a_tile_as_large_as_what_is_shared(const int *in, int *out) {
    __shared__ int room[32];
    out[threadIdx.x] = exchange<16>(in[threadIdx.x], room);
}

//! shuffle_source | i32[32]=arange i32[32]=zeros
extern "C" __global__ void half_a_warp_with_a_full_mask(const int *in, int *out) {
    int v = in[threadIdx.x];
    if (threadIdx.x < 16) {
        v += __shfl_xor_sync(0xffffffffu, v, 16); // BUG
        out[threadIdx.x] = v; // BUG
    } // BUG
} // BUG

// Global memory.

struct SpinLock {
    int *word;
    template <bool FENCES> __device__ void with(int *account, int amount) const {
        while (atomicCAS(word, 0, 1) != 0) {}
        if (FENCES) __threadfence();
        *account += amount; // BUG
        if (FENCES) __threadfence();
        atomicExch(word, 0); // BUG
    }
};

//! fence_missing,lost_update,global_race | grid 4 | i32[1]=zeros i32[1]=zeros
extern "C" __global__ void a_lock_that_orders_nothing(int *lock, int *account) {
    if (threadIdx.x == 0) SpinLock{lock}.with<false>(account, 5);
}

//! right | grid 4 | i32[1]=zeros i32[1]=zeros
extern "C" __global__ void a_lock_that_orders(int *lock, int *account) {
    if (threadIdx.x == 0) SpinLock{lock}.with<true>(account, 5);
}

//! lost_update,global_race,flag_race | grid 4 | i32[8]=zeros
extern "C" __global__ void bins_of_all_blocks(int *bins) {
    int &bin = bins[threadIdx.x % 8];
    if (threadIdx.x < 8) ++bin; // BUG
}

//! global_race | grid 3 | block 64 | f32[130]=zeros
extern "C" __global__ void halos_that_overlap(float *a) {
    float *mine = a + blockIdx.x * 32;
    mine[threadIdx.x] = blockIdx.x; // BUG
}

//! global_race | grid 2 | block 64 | f32[130]=random
extern "C" __global__ void a_stencil_in_place(float *a) {
    int i = blockIdx.x * 64 + threadIdx.x + 1;
    float sum = a[i - 1] + a[i + 1]; // BUG
    __syncthreads();
    a[i] = 0.5f * sum; // BUG
}

//! right | grid 2 | block 64 | f32[130]=random f32[130]=zeros
extern "C" __global__ void a_stencil_out_of_place(const float *a, float *b) {
    int i = blockIdx.x * 64 + threadIdx.x + 1;
    b[i] = 0.5f * (a[i - 1] + a[i + 1]);
}

template <typename T> struct Span {
    T *data;
    int size;
    __device__ T &operator[](int i) const { return data[i]; } // BUG
};

//! out_of_bounds | block 64 | f32[100]=random f32[100]=zeros 100
extern "C" __global__ void a_span_that_checks_nothing(float *in, float *out, int n) {
    Span<float> x{in, n}, y{out, n};
    for (int i = threadIdx.x; i <= n; i += blockDim.x) y[i] = x[i]; // BUG
}

//! misaligned | f32[132]=random f32[128]=zeros
extern "C" __global__ void four_at_a_time_from_the_second(const float *in, float *out) {
    reinterpret_cast<float4 *>(out)[threadIdx.x] = *reinterpret_cast<const float4 *>(in + 1 + 4 * threadIdx.x); // BUG
}

//! out_of_bounds,illegal | i32[32]=arange i32[32]=zeros
extern "C" __global__ void read_after_free(const int *in, int *out) {
    int *own = (int *)malloc(16);
    own[0] = in[threadIdx.x];
    free(own);
    out[threadIdx.x] = own[0]; // BUG
}

//! illegal | i32[32]=arange i32[32]=zeros
extern "C" __global__ void freed_twice(const int *in, int *out) {
    int *own = new int[2];
    own[1] = in[threadIdx.x];
    out[threadIdx.x] = own[1];
    delete[] own;
    if (out[threadIdx.x] >= 0) delete[] own; // BUG
}
