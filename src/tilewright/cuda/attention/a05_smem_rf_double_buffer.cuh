#pragma once
// a05: new over a04: two sets of fragments. While one slice is multiplied the next is loaded; a config may ask for it.
#include "attention/a04_interleave.cuh"

struct A05 : A04 {
  template <class Cfg>
  using Product = typename Select<Cfg::buffer, StepAhead, StepByStep>::type;
};
