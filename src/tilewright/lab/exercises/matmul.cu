// c = a b, n x n, one element per thread. It is right, and reads each element n times from global memory.
//
// Exercise: bring tiles of a and b into shared memory, then give each thread several elements of c.
//
// check: let n = 64
// check: grid n / 32, n / 32
// check: block 32, 32
// check: arg a = f32[n, n]=random
// check: arg b = f32[n, n]=random
// check: arg c = f32[n, n]=nan
// check: arg n = n
// check: reference c = a.astype(np.float64) @ b
// check: tolerance 1e-4

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}
