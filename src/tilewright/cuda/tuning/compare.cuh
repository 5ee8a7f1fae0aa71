// Compares two products of the same operands in device memory: how many elements differ by more than is allowed.
//
// `found` as [m, n] of Cfg::out_type, `expected` as [m, n] of fp32, both with rows contiguous and batch entries one
// after the other. Element by element |found - expected| <= allowed + h, where h is half the distance of numbers of
// out_type at the expected value. Where the product feeds an epilogue, `above` and `below` are the results expected of
// sums moved up and down by their allowed error. An element may be off by as much more as it moves. A result that is
// not finite is wrong: a NaN compares false.
//
//     result.wrong   elements beyond their bound
//     result.worst   the bits of the largest difference (they order like the values, which are not negative)
#include "ptx/number16.cuh"

struct CompareArgs {
  const void* found;
  const float* expected;
  const float* above;  // both null, or both [m, n] as expected
  const float* below;
  struct {
    unsigned long long wrong;
    unsigned worst;
  }* result;
  long long elements;
  float allowed;
};

extern "C" __global__ void __launch_bounds__(256) compare(const __grid_constant__ CompareArgs args) {
  const typename Cfg::out_type* found = static_cast<const typename Cfg::out_type*>(args.found);
  unsigned long long wrong = 0;
  float worst = 0;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < args.elements; i += stride) {
    const float expected = args.expected[i];
    const float off = fabsf(to_float(found[i]) - expected);
    float allowed = args.allowed;
    if (args.above) {
      const float up = fabsf(args.above[i] - expected), down = fabsf(args.below[i] - expected);
      allowed += up > down ? up : down;
      if (!(up + down <= 3.4e38f)) allowed = __int_as_float(0x7fffffff);  // not finite: whatever was found is wrong
    }
    // a number of `digits` binary digits in [2^e, 2^(e+1)) lies 2^(e + 1 - digits) from the next
    const float power = __uint_as_float(__float_as_uint(fabsf(expected) + allowed) & 0x7f800000u);
    const float half = Cfg::digits < 24 ? power * (1.0f / (1 << Cfg::digits)) : 0.0f;
    if (!(off <= allowed + half)) ++wrong;
    if (off > worst) worst = off;
  }
  if (wrong) atomicAdd(&args.result->wrong, wrong);
  if (worst > 0) atomicMax(&args.result->worst, __float_as_uint(worst));
}
