#pragma once
// a08: new over a07: the swizzle as per-thread strides of +-64 and +-32 bytes, computed once, so that addresses are a few
// registers and constants. The block copies K and V together: a step is a multiple of 8 rows, and every chunk of a
// thread lies at a constant distance from its first.
#include "attention/a07_autotuned.cuh"

struct A08 : A07 {
  template <class Tile, int order>
  using Reader = StridedReader<Tile, order>;
  template <class Tile, int threads, bool edge>
  using CopyQ = StridedCopy<Tile, threads, edge>;
  template <class Tile, int threads, bool edge>
  using CopyKV = StridedCopy<Tile, threads, edge>;
};
