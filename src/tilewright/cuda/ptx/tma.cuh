#pragma once
// TMA: one thread has a box of a tensor copied between global and shared memory. sm_90+. SASS: UTMALDG, UTMASTG.
//
// The tensor, its strides, the box and the swizzle are in a tensor map, which the host encodes (jit/tensor_map.py) and
// the kernel takes as a `const __grid_constant__` parameter. Coordinates are elements, the contiguous dimension first.
// What of a box lies outside the tensor is loaded as zeros, and not stored. Swizzled boxes lie at multiples of eight
// rows of the swizzle's width (1024 bytes for 128), others at multiples of 128.
//
// A load adds the bytes of its whole box to an mbarrier, which has to expect them. Stores are closed into groups, and
// waited for by the thread that started them.

struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

__device__ inline void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Of two dimensions.
__device__ inline void tma_load(unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

/// Of three.
__device__ inline void tma_load(unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
               : "memory");
}

/// Of five.
__device__ inline void tma_load(unsigned to, const TensorMap& map, int x, int y, int z, int u, int v,
                                unsigned barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(barrier)
               : "memory");
}

/// To the same address in every block of the cluster whose bit is set, each told at its own barrier.
__device__ inline void tma_load_multicast(unsigned to, const TensorMap& map, int x, int y, unsigned barrier,
                                          unsigned short blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
               : "memory");
}
__device__ inline void tma_load_multicast(unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier,
                                          unsigned short blocks) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
               "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
               : "memory");
}

/// Shared memory that was written by ordinary stores needs fence_proxy_async (ptx/wgmma.cuh) by each thread that wrote
/// and a barrier first.
__device__ inline void tma_store(const TensorMap& map, int x, int y, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(from)
               : "memory");
}
__device__ inline void tma_store(const TensorMap& map, int x, int y, int z, unsigned from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
               "r"(y), "r"(z), "r"(from)
               : "memory");
}

/// Closes this thread's stores since the last commit into a group.
__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but this thread's `pending` newest groups have read their shared memory, which may be written then.
template <int pending>
__device__ inline void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/// Waits until all but the `pending` newest have written.
template <int pending>
__device__ inline void tma_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
