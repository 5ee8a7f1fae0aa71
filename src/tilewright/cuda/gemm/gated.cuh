// gated: what lies between the products of a gated feed-forward, over dense arrays of one length.
//
//     forward     first = activation(inside) * other
//     backward    first and second = the gradients of inside and of other, from `grad`, that of the product
//
// A thread has 16 bytes of each array. gemm/gated.py makes gemm/gate.cuh from the activation's expression.
#include "gemm/gate.cuh"
#include "ptx/grid_dependency.cuh"
#include "ptx/number16.cuh"

/// gemm/params.py packs it.
struct GatedArgs {
  const void* grad;
  const void* inside;
  const void* other;
  void* first;
  void* second;
  long long count;
};

using Number = typename Cfg::type;
constexpr int each = 16 / sizeof(Number);

/// A thread's elements as floats; those after the first `left` are 0.
template <class T>
__device__ inline void read(const void* from, long long start, int left, float (&value)[each]) {
  const T* const first = static_cast<const T*>(from) + start;
  if (Cfg::aligned && left >= each) {
    const uint4 four = *reinterpret_cast<const uint4*>(first);
    const unsigned word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if constexpr (each == 4)
        value[i] = __uint_as_float(word[i]);
      else
        value[i] = half_of<T>(word[i / 2], i % 2);
    }
  } else {
#pragma unroll
    for (int i = 0; i < each; ++i) value[i] = i < left ? to_float(first[i]) : 0.f;
  }
}

template <class T>
__device__ inline void write(void* to, long long start, int left, const float (&value)[each]) {
  T* const first = static_cast<T*>(to) + start;
  if (Cfg::aligned && left >= each) {
    unsigned word[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (each == 4)
        word[w] = __float_as_uint(value[w]);
      else
        word[w] = pack<T>(value[2 * w], value[2 * w + 1]);
    }
    *reinterpret_cast<uint4*>(first) = make_uint4(word[0], word[1], word[2], word[3]);
  } else {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (i < left) first[i] = from_float<T>(value[i]);
  }
}

extern "C" __global__ void __launch_bounds__(Cfg::threads) gated(const __grid_constant__ GatedArgs args) {
  wait_for_earlier_grids();
  let_later_grids_start();
  const long long start = (blockIdx.x * (long long)Cfg::threads + threadIdx.x) * each;
  if (start >= args.count) return;
  const int left = args.count - start < each ? args.count - start : each;
  float inside[each], other[each], grad[each], first[each], second[each];
  read<Number>(args.inside, start, left, inside);
  read<Number>(args.other, start, left, other);
  if constexpr (Cfg::backward) read<Number>(args.grad, start, left, grad);
  gate(inside, other, grad, first, second);
  write<Number>(args.first, start, left, first);
  if constexpr (Cfg::backward) write<Number>(args.second, start, left, second);
}
