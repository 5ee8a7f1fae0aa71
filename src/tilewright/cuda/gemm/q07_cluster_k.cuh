// q07: new over q03: clusters that share k, as h19 has them. Few rows make few tiles: wider ones, each shared, ask less
// of L2 than narrow ones of one block each.
#include "tile/promoted_tma.cuh"

#include "gemm/h19_cluster_k.cuh"
