#pragma once
// a14: new over a13: results are stored to be evicted first; L2 keeps keys and values, which other blocks read again.
#include "attention/a13_reverse_kv.cuh"

struct A14 : A13 {
  using Store = StreamingStore;
};
