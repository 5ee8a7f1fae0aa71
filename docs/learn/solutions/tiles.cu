// c = a b, n x n, through shared memory. 256 threads make a 64 x 64 tile of c, 16 x 16 elements at a time, so every
// element of a and b is copied n / 16 times.
//
// Exercise: let them make all 64 x 64 at once, 4 x 4 elements per thread, in registers.
//
// check: let n = 128
// check: grid n / 64, n / 64
// check: block 16, 16
// check: arg a = f32[n, n]=random
// check: arg b = f32[n, n]=random
// check: arg c = f32[n, n]=nan
// check: arg n = n
// check: reference c = a.astype(np.float64) @ b
// check: tolerance 1e-4
// check: uses ld.shared
// check: goal score 95

__global__ void tiles(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[16][66], tile_b[16][64];  // a transposed; 66: 16 columns of two rows in 32 banks
  int row = blockIdx.y * 64, column = blockIdx.x * 64, thread = threadIdx.y * 16 + threadIdx.x;
  float sum[4][4] = {};
  for (int first = 0; first < n; first += 16) {
    for (int i = thread; i < 64 * 16; i += 256) {
      tile_a[i % 16][i / 16] = a[(row + i / 16) * n + first + i % 16];
      tile_b[i / 64][i % 64] = b[(first + i / 64) * n + column + i % 64];
    }
    __syncthreads();
    for (int k = 0; k < 16; ++k) {
      float of_a[4], of_b[4];
      for (int i = 0; i < 4; ++i) {
        of_a[i] = tile_a[k][threadIdx.y + 16 * i];
        of_b[i] = tile_b[k][threadIdx.x + 16 * i];
      }
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += of_a[i] * of_b[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) c[(row + threadIdx.y + 16 * i) * n + column + threadIdx.x + 16 * j] = sum[i][j];
}
