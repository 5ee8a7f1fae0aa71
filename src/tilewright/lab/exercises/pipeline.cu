// y = x * x, tile by tile: while one tile is squared, cp.async brings the next one to the other half of shared memory.
// The wait leaves one copy under way, the next tile's. With the last tile there is no next one.
//
// Exercise: run the check, read which copy nobody waited for, and mend the wait.
//
// check: let tiles = 6
// check: let n = 512 * tiles
// check: grid 1
// check: block 128
// check: arg x = f32[n]=random
// check: arg y = f32[n]=nan
// check: arg tiles = tiles
// check: reference y = x * x
// check: uses cp.async
// check: goal score 100

__device__ void copy(float* tile, const float* x) {  // 16 bytes per thread, without a register in between
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * threadIdx.x) : "memory");
}

__global__ void pipeline(const float* x, float* y, int tiles) {
  __shared__ __align__(16) float tile[2][512];
  copy(tile[0], x);
  asm volatile("cp.async.commit_group;");
  for (int t = 0; t < tiles; ++t) {
    if (t + 1 < tiles) {
      copy(tile[(t + 1) % 2], x + 512 * (t + 1));
      asm volatile("cp.async.commit_group;");
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");  // all but the newest group have landed
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 128) y[512 * t + i] = tile[t % 2][i] * tile[t % 2][i];
    __syncthreads();
  }
}
