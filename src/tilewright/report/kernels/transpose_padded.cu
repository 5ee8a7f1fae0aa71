// With one column of padding, a column of the tile meets every bank once.
//
// check: let n = 64
// check: grid n / 32, n / 32
// check: block 32, 8
// check: arg x = f32[n, n]=random
// check: arg y = f32[n, n]=nan
// check: arg n = n
// check: reference y = x.T

__global__ void transpose_padded(const float* x, float* y, int n) {
  __shared__ float tile[32][33];
  for (int i = threadIdx.y; i < 32; i += 8)
    tile[i][threadIdx.x] = x[(blockIdx.y * 32 + i) * n + blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8)
    y[(blockIdx.x * 32 + i) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][i];
}
