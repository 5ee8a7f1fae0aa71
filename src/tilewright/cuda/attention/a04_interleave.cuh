#pragma once
// a04: new over a03: an operand need not be in registers as a whole. A config's load_q, load_k, load_v of 2 bring slices
// of two fragments (16 columns of Q and K, 16 rows of V): load, multiply, load ... Each fragment is still loaded once a
// product, so that m x n products take m + n loads; row by row they would take m (1 + n).
// tile/piece_product.cuh does it; up to a03 a config may only ask for 0, the whole.
#include "attention/a03_eager_kv.cuh"

struct A04 : A03 {};
