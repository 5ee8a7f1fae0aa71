#pragma once
// a15: new over a14: tiles are cut into slices of 64 columns (32 where d_head is an odd multiple of 32): a row of a slice
// is a row of banks, whatever d_head is.
#include "attention/a14_store_policy.cuh"

struct A15 : A14 {
  static constexpr int slice(int d_head) { return d_head % 64 == 0 ? 64 : 32; }
};
