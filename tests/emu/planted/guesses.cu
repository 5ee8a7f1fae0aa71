// A load before an atomicCAS in a loop only guesses what is there, as in the CUDA guide's atomicAdd() of doubles: the
// loop goes round again where it was wrong. Plain stores race with the guess all the same.

__device__ double add(double *to, double by) {
    auto *bits = reinterpret_cast<unsigned long long *>(to);
    unsigned long long old = *bits, expected;
    do {
        expected = old;
        old = atomicCAS(bits, expected, __double_as_longlong(by + __longlong_as_double(expected)));
    } while (expected != old);
    return __longlong_as_double(old);
}

__device__ void largest(float *to, float value) {
    int *bits = reinterpret_cast<int *>(to), old = *bits; // BUG
    while (__int_as_float(old) < value) {
        int expected = old;
        old = atomicCAS(bits, expected, __float_as_int(value)); // BUG
        if (old == expected) break;
    }
}

//! right | grid 4 | block 64 | f64[256]=random f64[1]=zeros
extern "C" __global__ void a_sum_of_doubles(const double *in, double *out) {
    add(out, in[blockIdx.x * 64 + threadIdx.x]);
}

//! right | grid 2 | block 64 | f64[128]=random f64[2]=empty
extern "C" __global__ void a_sum_of_doubles_in_shared_memory(const double *in, double *out) {
    __shared__ double sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    add(&sum, in[blockIdx.x * 64 + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

//! right | grid 2 | block 64 | f32[128]=random f32[2]=empty
extern "C" __global__ void the_largest_in_shared_memory(const float *in, float *out) {
    __shared__ float best;
    if (threadIdx.x == 0) best = -1e30f;
    __syncthreads();
    largest(&best, in[blockIdx.x * 64 + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = best;
}

//! right | block 96 | f32[64]=random f32[1]=empty
extern "C" __global__ void the_largest_by_two_of_three_warps(const float *in, float *out) {
    __shared__ float best;
    if (threadIdx.x == 64) best = -1e30f;
    __syncthreads();
    if (threadIdx.x >= 64) return;
    largest(&best, in[threadIdx.x]);
    asm volatile("bar.sync 1, 64;" ::: "memory");
    if (threadIdx.x == 0) out[0] = best;
}

//! right | grid 4 | block 64 | f32[256]=random f32[1]=zeros
extern "C" __global__ void the_largest_of_all_blocks(const float *in, float *out) {
    largest(out, in[blockIdx.x * 64 + threadIdx.x]);
}

//! right | block 64 | u16[64]=arange u32[4]=zeros
extern "C" __global__ void counts_of_halves_of_a_word(const unsigned short *in, unsigned *out) {
    int bin = in[threadIdx.x] % 8;
    unsigned *word = out + bin / 2, old = *word, expected;
    do {
        expected = old;
        old = atomicCAS(word, expected, expected + (1u << bin % 2 * 16));
    } while (expected != old);
}

//! shared_race | grid 2 | block 64 | f32[128]=random f32[2]=empty
extern "C" __global__ void the_largest_before_it_is_set(const float *in, float *out) {
    __shared__ float best;
    if (threadIdx.x == 32) best = -1e30f; // BUG
    largest(&best, in[blockIdx.x * 64 + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = best;
}

//! shared_race | block 96 | f32[64]=random f32[1]=empty
extern "C" __global__ void the_largest_with_a_barrier_for_one_of_two_warps(const float *in, float *out) {
    __shared__ float best;
    if (threadIdx.x == 0) best = -1e30f; // BUG
    __syncwarp();
    if (threadIdx.x >= 64) return;
    largest(&best, in[threadIdx.x]);
    asm volatile("bar.sync 1, 64;" ::: "memory");
    if (threadIdx.x == 0) out[0] = best;
}

//! global_race,lost_update,flag_race | grid 4 | block 32 | f32[128]=random f32[1]=zeros
extern "C" __global__ void the_largest_and_one_plain_store(const float *in, float *out) {
    if (blockIdx.x == 2 && threadIdx.x == 0) out[0] = in[64]; // BUG
    largest(out, in[blockIdx.x * 32 + threadIdx.x]);
}

//! lost_update | grid 4 | block 32 | f32[128]=random f32[1]=zeros
extern "C" __global__ void a_guess_that_nobody_asks_about(const float *in, float *out) {
    int *bits = reinterpret_cast<int *>(out), old = *bits; // BUG
    float value = in[blockIdx.x * 32 + threadIdx.x];
    if (__int_as_float(old) < value) atomicCAS(bits, old, __float_as_int(value)); // BUG
}

//! global_race,flag_race | grid 4 | block 32 | f32[128]=random f32[1]=zeros f32[128]=empty
extern "C" __global__ void a_guess_that_is_kept(const float *in, float *out, float *before) {
    int *bits = reinterpret_cast<int *>(out), old = *bits; // BUG
    before[blockIdx.x * 32 + threadIdx.x] = __int_as_float(old);
    int expected;
    do {
        expected = old;
        old = atomicCAS(bits, expected, __float_as_int(in[blockIdx.x * 32 + threadIdx.x])); // BUG
    } while (old != expected);
}
