#pragma once
// a06: new over a05: scores stay unscaled; 2^(score * factor - max * factor) takes one FFMA and one MUFU an element, where
// scaling, subtracting and changing the base took three. Cfg::scale_first is false from here on, but for scales that
// are not positive: the largest score must stay the largest.
#include "attention/a05_smem_rf_double_buffer.cuh"

struct A06 : A05 {
  static constexpr bool fused = true;
};
