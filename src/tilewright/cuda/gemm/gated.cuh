// gated: what lies between the products of a gated feed-forward, over dense arrays of one length.
//
//     forward     first = activation(inside) * other
//     backward    first and second = the gradients of inside and of other, from `grad`, that of the product
//
// A thread has 16 bytes of each array. gemm/gated.py makes gemm/gate.cuh from the activation's expression.
#include "gemm/gate.cuh"
#include "ptx/grid_dependency.cuh"
#include "tile/run16.cuh"

/// gemm/params.py packs it.
struct GatedArgs {
  const void* grad;
  const void* inside;
  const void* other;
  void* first;
  void* second;
  long long count;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads) gated(const __grid_constant__ GatedArgs args) {
  using Number = typename Cfg::type;
  constexpr int each = 16 / sizeof(Number);
  constexpr bool wide = Cfg::aligned;
  wait_for_earlier_grids();
  let_later_grids_start();
  const long long start = (blockIdx.x * (long long)Cfg::threads + threadIdx.x) * each;
  if (start >= args.count) return;
  const int left = args.count - start < each ? args.count - start : each;
  float inside[each], other[each], grad[each], first[each], second[each];
  read_run<wide>(static_cast<const Number*>(args.inside) + start, left, inside);
  read_run<wide>(static_cast<const Number*>(args.other) + start, left, other);
  if constexpr (Cfg::backward) read_run<wide>(static_cast<const Number*>(args.grad) + start, left, grad);
  gate(inside, other, grad, first, second);
  write_run<wide>(static_cast<Number*>(args.first) + start, left, first);
  if constexpr (Cfg::backward) write_run<wide>(static_cast<Number*>(args.second) + start, left, second);
}
