#pragma once
// a11: new over a10: the results' way through shared memory takes the swizzle as strides too.
#include "attention/a10_peel_first.cuh"

struct A11 : A10 {
  template <class Tile>
  using Writer = StridedWriter<Tile>;
};
