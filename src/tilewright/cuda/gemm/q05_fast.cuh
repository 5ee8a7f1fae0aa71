// q05: h15 with wgmma's fp8 form. The sums all along k are the tensor cores' own. They keep 13 bits after the leading
// one of them and cut the rest, so the error grows with k (docs/precision.md); no instruction but products.
#include "ptx/wgmma_fp8.cuh"

#include "gemm/h15_tma_store.cuh"
