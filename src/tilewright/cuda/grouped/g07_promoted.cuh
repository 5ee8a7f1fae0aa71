// g07: q03 over groups: fp8 by wgmma, whose sums go to fp32 every 128 of k; tiles are drawn as in g03.
#include "tile/promoted_tma.cuh"

#include "grouped/g03_tma.cuh"
