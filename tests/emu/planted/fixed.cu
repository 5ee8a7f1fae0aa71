// Loads that promise that nothing writes what they read during the kernel, of what it writes all the same.

//! fixed_read | grid 2 | block 64 | f32[128]=ones f32[128]=empty
extern "C" __global__ void ldg_of_the_neighbour(float *x, float *y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    x[i] = 2.0f * i; // BUG
    __syncthreads();
    y[i] = __ldg(&x[i ^ 1]); // BUG
}

//! right | grid 2 | block 64 | f32[128]=ones f32[128]=empty
extern "C" __global__ void load_of_the_neighbour(float *x, float *y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    x[i] = 2.0f * i;
    __syncthreads();
    y[i] = x[i ^ 1];
}

//! right | grid 2 | block 64 | f32[128]=ones
extern "C" __global__ void ldg_of_what_is_written_later(float *x) {
    int i = blockIdx.x * 64 + threadIdx.x;
    x[i] = __ldg(&x[i]) + 1;
}

//! fixed_read | block 32 | f32[64]=ones
extern "C" __global__ void ldg_of_the_own_store(float *x) {
    for (int k = 0; k < 2; ++k) {
        float *here = x + 32 * k + threadIdx.x, *before = x + threadIdx.x;
        *here = __ldg(before) + 1; // BUG
    }
}

//! fixed_read | block 64 | u32[4]=zeros u32[64]=empty
extern "C" __global__ void ldg_of_a_counter(unsigned *count, unsigned *y) {
    atomicAdd(count, 1u); // BUG
    __syncthreads();
    y[threadIdx.x] = __ldg(count); // BUG
}

__device__ __forceinline__ float4 cached(const float4 *p) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];" // BUG
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

//! fixed_read | block 32 | f32[256]=random f32[128]=empty
extern "C" __global__ void vectors_over_the_edge(float *x, float *y) {
    if (threadIdx.x == 31) x[127] = 0; // BUG
    __syncwarp();
    *(float4 *)(y + 4 * threadIdx.x) = cached((const float4 *)(x + 4 * threadIdx.x)); // BUG
}

//! right | block 32 | f32[256]=random f32[128]=empty
extern "C" __global__ void vectors_up_to_the_edge(float *x, float *y) {
    if (threadIdx.x == 31) x[128] = 0;
    __syncwarp();
    *(float4 *)(y + 4 * threadIdx.x) = cached((const float4 *)(x + 4 * threadIdx.x));
}

__device__ unsigned arrived;

//! fixed_read | grid 4 | block 32 | f32[128]=ones f32[4]=empty f32[1]=empty
extern "C" __global__ void ldg_of_other_blocks_sums(const float *__restrict__ x, float *parts, float *y) {
    float sum = x[blockIdx.x * 32 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (threadIdx.x) return;
    parts[blockIdx.x] = sum; // BUG
    __threadfence();
    if (atomicAdd(&arrived, 1) < gridDim.x - 1) return;
    __threadfence();
    float total = 0;
    for (int b = 0; b < gridDim.x; ++b) total += __ldg(parts + b); // BUG
    *y = total;
}
