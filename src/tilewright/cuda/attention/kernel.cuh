#pragma once
// The entry of every attention kernel: included behind the rung's file, which Cfg names.

#include "attention/block.cuh"

extern "C" __global__ void __launch_bounds__(Cfg::threads, Cfg::min_blocks)
    attention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using Rung = typename Cfg::rung;
  Block<Cfg, Rung> block(args, shared_address(shared));
  if constexpr (Score<Cfg>::may_hide_rows) {
    if (block.tiles() <= 0) return block.store_nothing();
  }
  Rung::walk(block);
  block.store();
}
