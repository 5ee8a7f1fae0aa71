// An experiment: a07 without a02's swizzle, all else as it is. The eight rows that ldmatrix reads at once lie in one
// bank again, and addresses are sums of constants.
#include "attention/rungs.cuh"

struct A07Unswizzled : A07 {
  static constexpr bool swizzled = false;
};

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    attention_unswizzled(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Block<Cfg, A07Unswizzled> block(args, shared_address(shared));
  if constexpr (Score<Cfg>::may_hide_rows) {
    if (block.tiles() <= 0) return block.store_nothing();
  }
  A07Unswizzled::walk(block);
  block.store();
}
