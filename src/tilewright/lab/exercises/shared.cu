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
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
