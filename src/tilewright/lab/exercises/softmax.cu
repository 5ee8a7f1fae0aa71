// y = the softmax of each row of x, m x n, one block per row. Three passes: the largest, the sum of exponentials, the
// quotients. Each reads the row from global memory again.
//
// Exercise: find the largest and the sum in one pass. When a larger element comes, what was summed so far is too large
// by exp(new largest - old largest): scale it down and go on. Attention does this with whole tiles.
//
// check: let m = 8
// check: let n = 1024
// check: grid m
// check: block 128
// check: arg x = f32[m, n]=random
// check: arg y = f32[m, n]=nan
// check: arg n = n
// check: reference y = np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
// check: tolerance 1e-5
// check: goal score 96

__global__ void softmax(const float* x, float* y, int n) {
  __shared__ float part[128];
  const float* row = x + blockIdx.x * n;
  float largest = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 128) largest = fmaxf(largest, row[i]);
  part[threadIdx.x] = largest;
  __syncthreads();
  for (int i = 0; i < 128; ++i) largest = fmaxf(largest, part[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 128) sum += expf(row[i] - largest);
  part[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 128; ++i) sum += part[i];
  for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = expf(row[i] - largest) / sum;
}
