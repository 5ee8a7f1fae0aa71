// c = a b, n x n: one element of c per thread, each element of a and b read from global memory n times.
//
// Exercise: copy a 32 x 32 tile of a and one of b to shared memory, wait, multiply from there, wait, go on.
//
// check: let n = 96
// check: grid n / 32, n / 32
// check: block 32, 32
// check: arg a = f32[n, n]=random
// check: arg b = f32[n, n]=random
// check: arg c = f32[n, n]=nan
// check: arg n = n
// check: reference c = a.astype(np.float64) @ b
// check: tolerance 1e-4
// check: uses ld.shared
// check: goal score 94

__global__ void shared(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  __shared__ float tile_a[32][32], tile_b[32][32];
  float sum = 0;
  for (int first = 0; first < n; first += 32) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + first + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * n + column];
    __syncthreads();  // the tiles are whole
    for (int k = 0; k < 32; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();  // nobody reads them any more
  }
  c[row * n + column] = sum;
}
