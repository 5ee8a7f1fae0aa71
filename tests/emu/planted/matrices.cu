// Where a matrix of wmma begins: load_matrix_sync and store_matrix_sync ask for a multiple of 32 bytes.
#include <mma.h>
using namespace nvcuda::wmma;

template <int M, int N, class Layout>
__device__ void multiply(const half *a, const half *b, float *c, int ld) {
    fragment<matrix_a, M, N, 16, half, row_major> left;
    fragment<matrix_b, M, N, 16, half, Layout> right;
    fragment<accumulator, M, N, 16, float> sum;
    fill_fragment(sum, 0.f);
    load_matrix_sync(left, a, 16);                // BUG
    load_matrix_sync(right, b, ld);               // BUG
    mma_sync(sum, left, right, sum);
    store_matrix_sync(c, sum, N, mem_row_major);  // BUG
}

//! right | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void tiles_at_rows_of_16(const half *a, const half *b, float *c) {
    multiply<16, 16, row_major>(a + 16, b + 16 * 8, c, 16);
}

//! matrix_alignment | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void a_tile_of_a_eight_on(const half *a, const half *b, float *c) {
    multiply<16, 16, row_major>(a + 8, b, c, 16); // BUG
}

//! matrix_alignment | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void a_tile_of_a_two_on(const half *a, const half *b, float *c) {
    multiply<16, 16, col_major>(a + 2, b, c, 16); // BUG
}

//! matrix_alignment | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void a_tile_of_b_eight_columns_on(const half *a, const half *b, float *c) {
    multiply<16, 16, row_major>(a, b + 8, c, 24); // BUG
}

//! matrix_alignment | f16[512]=random f16[512]=random f32[260]=empty
extern "C" __global__ void a_tile_of_c_four_on(const half *a, const half *b, float *c) {
    multiply<16, 16, row_major>(a, b, c + 4, 16); // BUG
}

//! right | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void tiles_of_eight_columns(const half *a, const half *b, float *c) {
    multiply<32, 8, row_major>(a, b + 8, c, 24);
}

//! matrix_alignment | f16[512]=random f16[512]=random f32[256]=empty
extern "C" __global__ void tiles_of_eight_columns_four_on(const half *a, const half *b, float *c) {
    multiply<32, 8, row_major>(a, b + 4, c, 24); // BUG
}

//! right | f16[512]=random f32[256]=empty
extern "C" __global__ void a_matrix_in_shared_memory_of_any_place(const half *x, float *c) {
    __shared__ alignas(16) half tiles[8 + 512];
    for (int i = threadIdx.x; i < 512; i += 32) tiles[8 + i] = x[i];
    __syncthreads();
    multiply<16, 16, row_major>(tiles + 8, tiles + 264, c, 16);
}
