// q04: new over q03: clusters, as h16 has them.
#include "tile/promoted_tma.cuh"

#include "gemm/h16_cluster.cuh"
