// pack: one operand copied to lines that 16-byte accesses can read. Of args: `a` has m lines of k elements, element
// (line, i) at a[line * a_row + i * a_col]; it goes to out[line * out_row + i]. What lies behind a line's end in `out`
// is left as it is: nobody reads it.
#include "gemm/args.cuh"
#include "ptx/grid_dependency.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads) pack(const __grid_constant__ GemmArgs args) {
  using Item = Cfg::item_type;
  const Item* from = static_cast<const Item*>(args.a) + blockIdx.y * args.a_batch;
  Item* to = static_cast<Item*>(args.out) + blockIdx.y * args.out_batch;
  // Elements are counted through all lines: a block takes Cfg::threads * Cfg::each of them, neighbours by neighbours.
  const unsigned long long first = blockIdx.x * (unsigned long long)(Cfg::threads * Cfg::each) + threadIdx.x;
  int line = first / args.k, i = first % args.k;
  Item held[Cfg::each];
  int lines[Cfg::each], places[Cfg::each];
  wait_for_earlier_grids();
  let_later_grids_start();
#pragma unroll
  for (int e = 0; e < Cfg::each; ++e) {  // all loads are under way before the first store
    lines[e] = line, places[e] = i;
    if (line < args.m) held[e] = from[line * args.a_row + i * args.a_col];
    i += Cfg::threads;
    if (i >= args.k) line += i / args.k, i %= args.k;
  }
#pragma unroll
  for (int e = 0; e < Cfg::each; ++e)
    if (lines[e] < args.m) to[lines[e] * args.out_row + places[e]] = held[e];
}
