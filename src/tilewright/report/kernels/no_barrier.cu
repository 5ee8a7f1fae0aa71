// The barrier is missing: warps read rows of the tile that others may not have written.
//
// check: let n = 64
// check: grid n / 32, n / 32
// check: block 32, 8
// check: arg x = f32[n, n]=random
// check: arg y = f32[n, n]=nan
// check: arg n = n
// check: reference y = x.T

__global__ void no_barrier(const float* x, float* y, int n) {
  __shared__ float tile[32][33];
  for (int i = threadIdx.y; i < 32; i += 8)
    tile[i][threadIdx.x] = x[(blockIdx.y * 32 + i) * n + blockIdx.x * 32 + threadIdx.x];
  for (int i = threadIdx.y; i < 32; i += 8)
    y[(blockIdx.x * 32 + i) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][i];
}
