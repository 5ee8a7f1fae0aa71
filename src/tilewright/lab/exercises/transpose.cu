// y = x transposed, n x n. It is right, and every store asks for 32 sectors where 4 would do.
//
// Exercise: pass a tile through shared memory. Then look at the conflicts.
//
// check: let n = 128
// check: grid n / 32, n / 32
// check: block 32, 8
// check: arg x = f32[n, n]=random
// check: arg y = f32[n, n]=nan
// check: arg n = n
// check: reference y = x.T

__global__ void transpose(const float* x, float* y, int n) {
  int column = blockIdx.x * 32 + threadIdx.x;
  for (int i = threadIdx.y; i < 32; i += 8) {
    int row = blockIdx.y * 32 + i;
    y[column * n + row] = x[row * n + column];
  }
}
