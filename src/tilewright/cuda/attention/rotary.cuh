// rotary: rows turned by their positions. Of a row's numbers i and j = i + d / 2 are a pair:
//
//     out[i] = x[i] cos[i] - x[j] sin[i]        out[j] = x[j] cos[j] + x[i] sin[j]
//
// Cfg::back is the gradient of x from that of the result, the transposed turn:
//
//     out[i] = x[i] cos[i] + x[j] sin[j]        out[j] = x[j] cos[j] - x[i] sin[i]
//
// A thread has Cfg::each neighbours i of one row of one head, and their partners.
#include "ptx/grid_dependency.cuh"
#include "tile/run16.cuh"

/// attn/rotary.py packs it. Strides in elements; numbers of a row are neighbours. What is written lies dense, [batch,
/// rows, heads, d].
struct RotaryArgs {
  const void* from;
  const void* cos;
  const void* sin;
  void* to;
  long long from_batch, from_row, from_head, cos_batch, cos_row, sin_batch, sin_row;
  int batch, rows, heads;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) rotary(const __grid_constant__ RotaryArgs args) {
  using Number = typename Cfg::type;
  using Angle = typename Cfg::angle_type;
  constexpr int half = Cfg::d / 2, each = Cfg::each, across = (half + each - 1) / each;
  wait_for_earlier_grids();
  let_later_grids_start();
  using Index = typename Cfg::index;
  const Index number = blockIdx.x * Index(Cfg::threads) + threadIdx.x;
  const int i = number % across * each, left = half - i;
  const Index line = number / across, position = line / args.heads;
  const int head = line % args.heads, row = position % args.rows, entry = position / args.rows;
  if (entry >= args.batch) return;

  const Number* const x =
      static_cast<const Number*>(args.from) + entry * args.from_batch + row * args.from_row + head * args.from_head + i;
  const Angle* const cos = static_cast<const Angle*>(args.cos) + entry * args.cos_batch + row * args.cos_row + i;
  const Angle* const sin = static_cast<const Angle*>(args.sin) + entry * args.sin_batch + row * args.sin_row + i;
  float low[each], high[each], low_cos[each], high_cos[each], low_sin[each], high_sin[each];
  read_run<Cfg::wide>(x, left, low);
  read_run<Cfg::wide>(x + half, left, high);
  read_run<Cfg::wide>(cos, left, low_cos);
  read_run<Cfg::wide>(cos + half, left, high_cos);
  read_run<Cfg::wide>(sin, left, low_sin);
  read_run<Cfg::wide>(sin + half, left, high_sin);
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const float a = low[n], b = high[n];
    low[n] = Cfg::back ? fmaf(a, low_cos[n], b * high_sin[n]) : fmaf(a, low_cos[n], -b * low_sin[n]);
    high[n] = Cfg::back ? fmaf(b, high_cos[n], -a * low_sin[n]) : fmaf(b, high_cos[n], a * high_sin[n]);
  }
  Number* const to = static_cast<Number*>(args.to) + line * (long long)Cfg::d + i;
  write_run<Cfg::wide>(to, left, low);
  write_run<Cfg::wide>(to + half, left, high);
}
