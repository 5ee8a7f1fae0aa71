// q06: new over q05: clusters, as h16 has them.
#include "ptx/wgmma_fp8.cuh"

#include "gemm/h16_cluster.cuh"
