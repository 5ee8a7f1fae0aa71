"""Wrappers of Hopper's instructions for small test kernels, and how those are run."""

from __future__ import annotations

import pytest

from tilewright import emu
from tilewright.errors import EmulatorFault

PRELUDE = """
typedef unsigned int u32; typedef unsigned long long u64; typedef unsigned short u16;
struct __align__(64) CUtensorMap { char opaque[128]; };
__device__ __forceinline__ u32 at(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void init(u64 *b, u32 n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void inval(u64 *b) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(b)) : "memory");
}
__device__ __forceinline__ void init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void arrive(u64 *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(b)) : "memory");
}
__device__ __forceinline__ u64 arrive_state(u64 *b, u32 n = 1) {
    u64 s; asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;" : "=l"(s) : "r"(at(b)), "r"(n) : "memory");
    return s;
}
__device__ __forceinline__ void arrive_expect(u64 *b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void expect(u64 *b, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void complete(u64 *b, u32 bytes) {
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool test_parity(u64 *b, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ bool try_parity(u64 *b, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(b)), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ bool test_state(u64 *b, u64 state) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(at(b)), "l"(state) : "memory");
    return done;
}
__device__ __forceinline__ void wait(u64 *b, u32 parity) { while (!try_parity(b, parity)) {} }
__device__ __forceinline__ void load(void *to, const void *from, u32 bytes, u64 *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ __forceinline__ void store(void *to, const void *from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(to), "r"(at(from)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void wait_done() {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void load_box(void *to, const CUtensorMap *map, int x, int y, u64 *b) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(at(b)) : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap *map, int x, int y, const void *from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
        :: "l"(map), "r"(x), "r"(y), "r"(at(from)) : "memory");
}
__device__ __forceinline__ u32 rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ u32 peer(const void *p, u32 rank) {
    u32 r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(p)), "r"(rank)); return r;
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() { cluster_arrive(); cluster_wait(); }
"""


def kernel(signature: str, body: str, attributes: str = "") -> str:
    """A source with one kernel k."""
    return f'{PRELUDE}extern "C" __global__ void {attributes} k({signature}) {{\n{body}\n}}\n'


def run(text: str, args: list, *, grid=1, block=32, **options) -> emu.EmulateResult:
    """What the kernel leaves."""
    return emu.emulate(text, "k", grid, block, args, **options)


def fault(text: str, args: list, *, grid=1, block=32, **options) -> emu.Hazard:
    """What the kernel is stopped for."""
    with pytest.raises(EmulatorFault) as caught:
        run(text, args, grid=grid, block=block, **options)
    assert caught.value.hazard is not None
    return caught.value.hazard
