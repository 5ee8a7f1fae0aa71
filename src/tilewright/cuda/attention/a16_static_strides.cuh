#pragma once
// a16: new over a15: row strides and the head group are constants, compiled in with the call's config.
#include "attention/a15_head_slices.cuh"

struct A16 : A15 {
  static constexpr bool static_strides = true;
};
