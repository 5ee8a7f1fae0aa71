#pragma once
// a10: new over a09: the first tile apart. It starts out and the sums instead of following them, so that nothing is
// zeroed (the first product adds to the zero register) and nothing is rescaled.
#include "attention/a09_fragment_order.cuh"

struct A10 : A09 {
  template <class Block>
  static __device__ void walk(Block& block) {
    block.start_q();
    block.start_k(0);
    cp_async_commit();
    A03::pass<true>(block, 0);
    for (int n = 1; n < block.tiles(); ++n) A03::pass<false>(block, n);
  }
};
