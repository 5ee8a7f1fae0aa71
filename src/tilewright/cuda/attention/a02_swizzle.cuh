#pragma once
// a02: new over a01: chunks of 16 bytes change places within their row (tile/head_tile.cuh). The eight rows that ldmatrix
// reads at once then lie in eight different parts of the banks: one pass instead of eight.
#include "attention/a01_base.cuh"

struct A02 : A01 {
  static constexpr bool swizzled = true;
};
