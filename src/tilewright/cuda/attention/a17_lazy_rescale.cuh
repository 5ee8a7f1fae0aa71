#pragma once
// a17: new over a16: out and sums follow a row's maximum only when it has outgrown the old one by 2^8 (tile/softmax.cuh).
// After a few tiles it hardly ever does: 2 d_head multiplications a row and tile become one comparison.
#include "attention/a16_static_strides.cuh"

struct A17 : A16 {
  static constexpr bool lazy = true;
};
