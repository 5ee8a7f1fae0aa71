// turn: an operand of bytes whose lines lie across, transposed to lines that 16-byte accesses can read, zeros after it
// up to whole tiles: pack (gemm/pack.cuh) for what it would read byte by byte.
//
// A block takes 128 lines x 128 bytes of them. A thread reads 4 x 4 bytes, a word from each of four neighbours along
// the line, and turns them in registers:
//
//     a0 a1 a2 a3        a0 b0 c0 d0
//     b0 b1 b2 b3   to   a1 b1 c1 d1     each row a word
//     c0 c1 c2 c3        a2 b2 c2 d2
//     d0 d1 d2 d3        a3 b3 c3 d3
//
// The words pass through shared memory, and leave 16 bytes of a line per thread.
#include "ptx/grid_dependency.cuh"

/// PackArgs of gemm/pack.cuh: element (line, i) is at from[line + i * step], and at to[line * pitch + i].
struct PackArgs {
  const void* from;
  void* to;
  long long from_batch, to_batch, line_stride, step, pitch;
  int lines, padded, length;
};

constexpr int side = 128, row = side / 4 + 4;  // words of a line in shared memory, so that 16 bytes start anew

/// Bytes `line` to `line` + 3 of place `i` along their lines; zeros where there is none.
__device__ inline unsigned word_of(const PackArgs& args, const unsigned char* from, int line, int i) {
  if (i >= args.length) return 0;
  const unsigned char* at = from + i * args.step + line;
  if (Cfg::aligned && line + 4 <= args.lines) return *reinterpret_cast<const unsigned*>(at);
  unsigned word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (line + j < args.lines) word |= unsigned(at[j]) << 8 * j;
  return word;
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) turn(const __grid_constant__ PackArgs args) {
  __shared__ __align__(16) unsigned turned[side][row];
  const auto* from = static_cast<const unsigned char*>(args.from) + blockIdx.y * args.from_batch;
  auto* to = static_cast<unsigned char*>(args.to) + blockIdx.y * args.to_batch;
  const unsigned across = (args.padded + side - 1) / side;
  const int line0 = blockIdx.x % across * side, i0 = blockIdx.x / across * side;
  wait_for_earlier_grids();
  let_later_grids_start();
#pragma unroll
  for (int part = threadIdx.x; part < side / 4 * (side / 4); part += Cfg::threads) {
    const int line = part % (side / 4) * 4, i = part / (side / 4) * 4;
    unsigned w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = word_of(args, from, line0 + line, i0 + i + j);
    const unsigned low_ab = __byte_perm(w[0], w[1], 0x5140), high_ab = __byte_perm(w[0], w[1], 0x7362);
    const unsigned low_cd = __byte_perm(w[2], w[3], 0x5140), high_cd = __byte_perm(w[2], w[3], 0x7362);
    turned[line][i / 4] = __byte_perm(low_ab, low_cd, 0x5410);
    turned[line + 1][i / 4] = __byte_perm(low_ab, low_cd, 0x7632);
    turned[line + 2][i / 4] = __byte_perm(high_ab, high_cd, 0x5410);
    turned[line + 3][i / 4] = __byte_perm(high_ab, high_cd, 0x7632);
  }
  __syncthreads();
#pragma unroll
  for (int chunk = threadIdx.x; chunk < side * (side / 16); chunk += Cfg::threads) {
    const int line = chunk / (side / 16), i = chunk % (side / 16) * 16;
    if (line0 + line < args.padded && i0 + i < args.pitch)
      *reinterpret_cast<uint4*>(to + (line0 + line) * args.pitch + i0 + i) =
          *reinterpret_cast<const uint4*>(&turned[line][i / 4]);
  }
}
