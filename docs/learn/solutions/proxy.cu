// y = 2 x: the results are gathered in shared memory and leave as one bulk copy, which no thread has to carry out. The
// copy engine reads shared memory by a path of its own (the asynchronous proxy); what threads wrote reaches that path
// only through a fence.
//
// Exercise: run the check, and put the missing fence.proxy.async where it belongs: after the writes, before the
// barrier.
//
// check: let blocks = 4
// check: grid blocks
// check: block 128
// check: arg x = f32[1024 * blocks]=random
// check: arg y = f32[1024 * blocks]=nan
// check: reference y = 2 * x
// check: uses cp.async.bulk
// check: goal score 100

__global__ void proxy(const float* x, float* y) {
  __shared__ __align__(16) float tile[1024];
  for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = 2 * x[blockIdx.x * 1024 + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(tile));
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y + blockIdx.x * 1024), "r"(from),
                 "r"(4096)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
