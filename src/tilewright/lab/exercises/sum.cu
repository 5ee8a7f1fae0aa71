// total[0] = the sum of x, by one block. It is right; lanes that are left lie apart, so their words share banks.
//
// Exercise: halve the threads that are left so that those of a warp stay neighbours. Then use warp shuffles.
//
// check: let n = 4096
// check: grid 1
// check: block 256
// check: arg x = f32[n]=random
// check: arg total = f32[1]=nan
// check: arg n = n
// check: reference total = x.astype(np.float64).sum()
// check: tolerance 1e-3

__global__ void sum(const float* x, float* total, int n) {
  __shared__ float part[256];
  float mine = 0;
  for (int i = threadIdx.x; i < n; i += 256) mine += x[i];
  part[threadIdx.x] = mine;
  for (int step = 1; step < 256; step *= 2) {
    __syncthreads();
    int i = 2 * step * threadIdx.x;
    if (i < 256) part[i] += part[i + step];
  }
  if (threadIdx.x == 0) total[0] = part[0];
}
