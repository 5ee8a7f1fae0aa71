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
  __shared__ float tile_a[16][17], tile_b[16][16];
  for (int part = 0; part < 16; ++part) {
    int row = blockIdx.y * 64 + part / 4 * 16 + threadIdx.y;
    int column = blockIdx.x * 64 + part % 4 * 16 + threadIdx.x;
    float sum = 0;
    for (int first = 0; first < n; first += 16) {
      tile_a[threadIdx.y][threadIdx.x] = a[row * n + first + threadIdx.x];
      tile_b[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * n + column];
      __syncthreads();
      for (int k = 0; k < 16; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
      __syncthreads();
    }
    c[row * n + column] = sum;
  }
}
