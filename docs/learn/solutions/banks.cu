// y = x transposed, n x n, through a tile in shared memory. Global memory is read and written in full lines; but a
// column of the tile lies in one bank, so a warp that reads it takes 32 turns.
//
// Exercise: move each line of the tile by another amount, by a pad or a swizzle. One or two lines change.
//
// check: let n = 128
// check: grid n / 32, n / 32
// check: block 32, 8
// check: arg x = f32[n, n]=random
// check: arg y = f32[n, n]=nan
// check: arg n = n
// check: reference y = x.T
// check: uses ld.shared
// check: goal score 100

__global__ void banks(const float* x, float* y, int n) {
  __shared__ float tile[32][33];  // line i starts in bank i
  int column = blockIdx.x * 32, row = blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += 8) tile[i][threadIdx.x] = x[(row + i) * n + column + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += 8) y[(column + i) * n + row + threadIdx.x] = tile[threadIdx.x][i];
}
