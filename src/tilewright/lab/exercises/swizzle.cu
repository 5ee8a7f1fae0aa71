// ldmatrix reads eight lines of 16 bytes at a time. In a tile whose lines are 128 bytes long, those eight lie in the
// same four banks, so each read takes eight turns.
//
//   line 0:  piece 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7        piece p of line r now lies at place p of its line.
//   line 1:  piece 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7        Swizzled it lies at place p ^ (r % 8): eight lines, all banks.
//
// The kernel copies a 16 x 64 tile of fp16 to shared memory and reads it back as fragments.
//
// Exercise: change `place`, and only that.
//
// check: grid 1
// check: block 32
// check: arg x = f16[16, 64]=random
// check: arg y = f16[16, 64]=nan
// check: reference y = x
// check: uses ldmatrix
// check: goal score 92

__device__ int place(int line, int piece) { return line * 8 + piece; }  // in units of 16 bytes

__global__ void swizzle(const void* x, void* y) {
  __shared__ uint4 tile[16 * 8];
  int lane = threadIdx.x;
  for (int i = lane; i < 16 * 8; i += 32) tile[place(i / 8, i % 8)] = static_cast<const uint4*>(x)[i];
  __syncthreads();
  for (int block = 0; block < 4; ++block) {  // 16 x 16 elements: four matrices of 8 x 8
    unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(&tile[place(lane % 16, 2 * block + lane / 16)]));
    unsigned part[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
                 : "r"(from)
                 : "memory");
    for (int i = 0; i < 4; ++i)
      static_cast<unsigned*>(y)[(lane / 4 + 8 * (i % 2)) * 32 + 8 * block + 4 * (i / 2) + lane % 4] = part[i];
  }
}
