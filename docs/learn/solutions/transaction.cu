// y = 2 x, tile by tile, by Hopper's bulk copy: one thread asks for a tile, and the copy itself reports to a barrier
// in shared memory how many bytes have landed. The barrier opens when its thread has arrived and the bytes that it
// announced are there.
//
// Exercise: run the check. The emulator says which barrier nobody can open, and what it still waits for.
//
// check: let tiles = 4
// check: grid 1
// check: block 128
// check: arg x = f32[1024 * tiles]=random
// check: arg y = f32[1024 * tiles]=nan
// check: arg tiles = tiles
// check: reference y = 2 * x
// check: uses cp.async.bulk
// check: uses mbarrier
// check: goal score 100

__global__ void transaction(const float* x, float* y, int tiles) {
  __shared__ __align__(16) float tile[1024];
  __shared__ unsigned long long barrier;
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  unsigned bar = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async.shared::cta;");
  }
  __syncthreads();
  for (int t = 0; t < tiles; ++t) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(4096) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                   "l"(x + 1024 * t), "r"(4096), "r"(bar)
                   : "memory");
    }
    unsigned done = 0;
    while (!done)  // phases alternate: the parity of tile t is t % 2
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(bar), "r"(t % 2)
                   : "memory");
    for (int i = threadIdx.x; i < 1024; i += 128) y[1024 * t + i] = 2 * tile[i];
    __syncthreads();  // nobody reads the tile any more
  }
}
