// widen: an fp8 operand as fp16, which holds every e4m3 and e5m2, in lines that start at multiples of 16 bytes; zeros
// up to their pitch. A thread writes eight numbers.
#include "ptx/grid_dependency.cuh"
#include "ptx/number8.cuh"

/// PackArgs of gemm/pack.cuh: element (line, i) is at from[line * line_stride + i * step], and at to[line * pitch + i].
struct PackArgs {
  const void* from;
  void* to;
  long long from_batch, to_batch, line_stride, step, pitch;
  int lines, padded, length;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) widen(const __grid_constant__ PackArgs args) {
  const unsigned long long index = blockIdx.x * (unsigned long long)Cfg::threads + threadIdx.x;
  const unsigned chunks = args.pitch / 8;
  wait_for_earlier_grids();
  let_later_grids_start();
  if (index >= args.lines * (unsigned long long)chunks) return;  // with no lines there is a block all the same
  const int line = int(index / chunks), first = int(index % chunks) * 8;
  const auto* from = static_cast<const typename Cfg::in_type*>(args.from) + line * args.line_stride;
  unsigned word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int at = first + 2 * i + e;
      pair[e] = at < args.length ? to_float(from[at * args.step]) : 0;
    }
    word[i] = pack<f16>(pair[0], pair[1]);
  }
  auto* to = static_cast<unsigned short*>(args.to) + line * args.pitch + first;
  *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
}
