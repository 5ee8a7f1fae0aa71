// c = a b by one tensor-core instruction: a 16 x 16 and b 16 x 8 in fp16, c 16 x 8 in fp32, one warp. With g = lane / 4
// and t = lane % 4 a lane holds, as mma.sync wants it:
//
//   a: rows g and g + 8, columns 2t, 2t + 1 and 2t + 8, 2t + 9      two neighbours of a row in one register
//   b: column g, rows 2t, 2t + 1 and 2t + 8, 2t + 9                 two neighbours of a COLUMN in one register
//   c: rows g and g + 8, columns 2t, 2t + 1
//
// b lies in rows, and the kernel reads neighbours of a row.
//
// Exercise: put the right two elements of b into each register.
//
// check: grid 1
// check: block 32
// check: arg a = f16[16, 16]=random
// check: arg b = f16[16, 8]=random
// check: arg c = f32[16, 8]=nan
// check: reference c = a.astype(np.float64) @ b.astype(np.float64)
// check: tolerance 1e-4
// check: uses mma.sync

__device__ unsigned pair(unsigned short low, unsigned short high) { return low | unsigned(high) << 16; }

__global__ void fragments(const void* a, const void* b, float* c) {
  auto in_a = static_cast<const unsigned short*>(a), in_b = static_cast<const unsigned short*>(b);  // bits of fp16
  int g = threadIdx.x / 4, t = threadIdx.x % 4;
  unsigned of_a[4], of_b[2];
  for (int i = 0; i < 4; ++i) {
    int row = g + 8 * (i % 2), column = 2 * t + 8 * (i / 2);
    of_a[i] = pair(in_a[row * 16 + column], in_a[row * 16 + column + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    int row = 2 * t + 8 * i;
    of_b[i] = pair(in_b[row * 8 + g], in_b[row * 8 + (g + 1) % 8]);
  }
  float sum[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "r"(of_b[0]), "r"(of_b[1]));
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = sum[i];
}
