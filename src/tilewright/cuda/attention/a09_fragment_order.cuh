#pragma once
// a09: new over a08: K's pieces are read across, not down (tile/piece_reader.cuh). mma.sync takes two neighbouring
// registers as its right operand; read down, they are two apart and each pair must be moved together.
#include "attention/a08_strided_swizzle.cuh"

struct A09 : A08 {
  static constexpr int k_order = across;
};
