// y = x, an m x n matrix in rows. It is right, and lanes next to each other read addresses n floats apart.
//
// Exercise: give neighbouring lanes neighbouring columns. Two lines change.
//
// check: let m = 64
// check: let n = 96
// check: grid n / 32, m / 32
// check: block 32, 32
// check: arg x = f32[m, n]=random
// check: arg y = f32[m, n]=nan
// check: arg n = n
// check: reference y = x
// check: goal score 100

__global__ void copy(const float* x, float* y, int n) {
  int row = blockIdx.y * 32 + threadIdx.y;
  int column = blockIdx.x * 32 + threadIdx.x;
  y[row * n + column] = x[row * n + column];
}
