// q03: new over q02: the TMA, roles and stores of h15. No warpgroup waits for another, so that one adds up while
// another's products run.
#include "tile/promoted_tma.cuh"

#include "gemm/h15_tma_store.cuh"
