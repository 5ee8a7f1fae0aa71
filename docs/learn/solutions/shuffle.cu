// total[i] = the sum of row i of x, m x n, one warp per row. It is right, and passes 32 partial sums through shared
// memory with a barrier for each halving.
//
// Exercise: hand the partial sums from lane to lane with __shfl_down_sync: no shared memory, no barrier.
//
// check: let m = 32
// check: let n = 512
// check: grid m / 4
// check: block 32, 4
// check: arg x = f32[m, n]=random
// check: arg total = f32[m]=nan
// check: arg n = n
// check: reference total = x.astype(np.float64).sum(1)
// check: tolerance 1e-4
// check: uses shfl.sync
// check: goal score 98

__global__ void shuffle(const float* x, float* total, int n) {
  int row = blockIdx.x * 4 + threadIdx.y;
  float mine = 0;
  for (int i = threadIdx.x; i < n; i += 32) mine += x[row * n + i];
  for (int half = 16; half > 0; half /= 2) mine += __shfl_down_sync(0xffffffffu, mine, half);
  if (threadIdx.x == 0) total[row] = mine;
}
