#pragma once
// One value of all threads of a block.

/// Over the block; `scratch`: a float a warp. All threads must be here, and between two calls a barrier.
template <int warps, class Join>
__device__ inline float join_block(float value, float* scratch, Join join) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value = join(value, __shfl_xor_sync(~0u, value, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
#pragma unroll
  for (int warp = 1; warp < warps; ++warp) value = join(value, scratch[warp]);
  return value;
}
