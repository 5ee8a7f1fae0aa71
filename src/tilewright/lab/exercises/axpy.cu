// y = alpha x + y for n numbers, one thread each. n is not a multiple of the block, and nothing stops the last threads.
//
// Exercise: run the check, read the fault, and guard the access.
//
// check: let n = 1000
// check: grid (n + 127) / 128
// check: block 128
// check: arg x = f32[n]=random
// check: arg y = f32[n]=random
// check: arg alpha = 2.5
// check: arg n = n
// check: reference y = np.float32(2.5) * x + y
// check: goal score 100

__global__ void axpy(const float* x, float* y, float alpha, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = alpha * x[i] + y[i];
}
