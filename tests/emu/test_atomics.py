"""Atomics in every spelling, of pairs and vectors too; cuda::atomic and grid.sync as the headers compile them."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import kernel, run


@pytest.mark.parametrize(
    "spelling",
    ["atom.global.gpu.add.u32", "atom.acquire.gpu.global.add.u32", "atom.add.acq_rel.cta.u32",
     "atom.relaxed.sys.add.u32"],
)  # fmt: skip
def test_what_orders_an_atomic_may_stand_anywhere(spelling):
    text = kernel("u32 *a", f'u32 old; asm volatile("{spelling} %0, [%1], 3;" : "=r"(old) : "l"(a) : "memory");')
    assert run(text, ["u32[1]=ones"]).arrays[0].tolist() == [97]


def test_pairs_vectors_and_bf16_are_added_element_by_element():
    text = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + kernel(
        "float4 *a, float2 *b, __half2 *c, __nv_bfloat162 *d, __nv_bfloat16 *e, float4 *old",
        """atomicAdd(a + threadIdx.x % 2, make_float4(1, 2, 3, threadIdx.x));
            float2 o = atomicAdd(b, make_float2(1, -1)); if (threadIdx.x == 31) *old = make_float4(o.x, o.y, 0, 0);
            atomicAdd(c, __half2(1, 2));
            atomicAdd(d, __floats2bfloat162_rn(1.0f, 2.0f)); atomicAdd(e, __float2bfloat16(4.0f));""",
    )
    result = run(text, ["f32[8]=zeros", "f32[2]=zeros", "f16[2]=ones", "bf16[2]=ones", "bf16[1]=ones", "f32[4]=zeros"])
    a, b, c, d, e, old = result.arrays
    assert a.reshape(2, 4).tolist() == [[16, 32, 48, 240], [16, 32, 48, 256]]
    assert b.tolist() == [32, -32]
    assert old.tolist() == [31, -31, 0, 0]
    assert c.tolist() == [33, 65]
    assert [(int(v) << 16) for v in (*d, *e)] == [int(np.float32(v).view(np.uint32)) for v in (33, 65, 129)]


def test_a_vector_has_to_be_aligned_as_a_whole():
    from hopper_prelude import fault

    text = kernel("float *a", "atomicAdd((float4 *)(a + 1), make_float4(1, 1, 1, 1));")
    assert fault(text, ["f32[8]=zeros"]).kind == "misaligned"


def test_cuda_atomics_of_every_scope_run():
    pytest.importorskip("nvidia", reason="the wheels of CUDA's headers")
    text = """#include <cuda/atomic>
    extern "C" __global__ void k(int *a, unsigned *b) {
        __shared__ int s;
        if (threadIdx.x == 0) s = 0;
        __syncthreads();
        cuda::atomic_ref<int, cuda::thread_scope_device> x(*a);
        cuda::atomic_ref<unsigned, cuda::thread_scope_system> y(*b);
        cuda::atomic_ref<int, cuda::thread_scope_block> z(s);
        x.fetch_add(2, cuda::memory_order_relaxed);
        y.fetch_max(threadIdx.x, cuda::memory_order_acq_rel);
        z.fetch_add(1);
        int seen = x.load(cuda::memory_order_acquire);
        while (!x.compare_exchange_weak(seen, seen + 1, cuda::memory_order_release)) {}
        cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device);
        __syncthreads();
        if (threadIdx.x == 0) x.fetch_add(z.load() * 1000);
    }"""
    a, b = run(text, ["i32[1]=zeros", "u32[1]=zeros"], grid=2, block=64).arrays
    assert (a.tolist(), b.tolist()) == ([2 * (64 * 3 + 64000)], [63])


def test_grid_sync_runs():
    pytest.importorskip("nvidia", reason="the wheels of CUDA's headers")
    text = """#include <cooperative_groups.h>
    extern "C" __global__ void k(int *a, int *out) {
        a[blockIdx.x * 32 + threadIdx.x] = blockIdx.x + threadIdx.x;
        cooperative_groups::this_grid().sync();
        out[blockIdx.x * 32 + threadIdx.x] = a[(3 - blockIdx.x) * 32 + 31 - threadIdx.x];
    }"""
    out = run(text, ["i32[128]=zeros", "i32[128]=zeros"], grid=4).arrays[1].reshape(4, 32)
    assert np.array_equal(out, (3 - np.arange(4))[:, None] + 31 - np.arange(32))
