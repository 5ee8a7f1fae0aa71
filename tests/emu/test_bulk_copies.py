"""cp.async.bulk: bytes in a row by the asynchronous proxy, their groups, reductions, and what is wrong around them."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import fault, kernel, run

ROUND_TRIP = """
    __shared__ alignas(128) float tile[512]; __shared__ u64 full; float *own = to + 512 * blockIdx.x;
    if (threadIdx.x == 0) { init(&full, 1); init_fence(); }
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive_expect(&full, 2048); load(tile, from, 1024, &full); load(tile + 256, from + 256, 1024, &full);
    }
    wait(&full, 0);
    for (int i = threadIdx.x; i < 512; i += 64) tile[i] *= 2; // change
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) { store(own, tile, 2048); commit(); wait_read<0>(); }
    __syncthreads();
    tile[threadIdx.x] = 7;
    if (threadIdx.x == 0) wait_done<0>();
"""
AFTER_THE_LOAD = ROUND_TRIP[ROUND_TRIP.index("wait(&full") : ROUND_TRIP.index("    if (threadIdx.x == 0) { store")]
SIGNATURE = "const float *from, float *to"
VALUES = np.arange(512, dtype=np.float32)


def test_bytes_go_in_and_out_and_are_counted():
    result = run(kernel(SIGNATURE, ROUND_TRIP), [VALUES, "f32[1536]=nan"], block=64, grid=3)
    assert np.array_equal(result.arrays[1].reshape(3, 512), np.tile(2 * VALUES, (3, 1)))
    assert result.hazards == []
    counters = result.counters
    assert (counters.bulk_load_requests, counters.bulk_load_bytes) == (6, 3 * 2048)
    assert "bulk copies: 6 of 6,144 bytes into shared memory, " in str(counters)
    assert (counters.bulk_store_requests, counters.bulk_store_bytes) == (3, 3 * 2048)


@pytest.mark.parametrize(
    ("old", "new", "kind", "says"),
    [
        ("wait(&full, 0);", "", "async_copy_not_waited", "is still writing"),
        ("wait(&full, 0);", "if (threadIdx.x < 32) wait(&full, 0);", "async_copy_not_waited", "has written"),
        ("wait(&full, 0);", "tile[threadIdx.x] = 1; wait(&full, 0);", "async_copy_not_waited", "write at"),
        ("2048); load", "1024); load", "async_copy_not_waited", "is still writing"),
        ("2048); load", "4096); load", "deadlock", "2048 bytes missing"),
        ("proxy_fence();", "", "proxy_fence_missing", "a bulk store reads"),
        ("proxy_fence();\n    __syncthreads();", "proxy_fence();", "shared_race", "bulk store's read at"),
        ("wait_read<0>();", "", "bulk_not_waited", "which a bulk store still reads"),
        ("commit(); wait_read<0>(); }", "commit(); } wait_read<0>();", None, ""),
        ("commit(); wait_read<0>(); }", "commit(); } if (threadIdx.x == 1) wait_read<0>();", "bulk_not_waited", ""),
        ("wait_read<0>(); }\n    __syncthreads();", "wait_read<0>(); }", "shared_race", "a bulk store's read"),
        ("load(tile, from, 1024", "load(tile + 2, from, 1024", "misaligned", "not a multiple of 16"),
        ("load(tile, from, 1024", "load(tile, from + 1, 1024", "misaligned", "not a multiple of 16"),
        ("load(tile, from, 1024", "load(tile, from, 1000", "bulk_operand", "1000 bytes"),
        ("load(tile, from, 1024", "load(tile, from + 256, 2048", "out_of_bounds", "bulk read of 2048 bytes"),
        ("store(own, tile, 2048);", "store(own, tile, 2048); store(own, tile, 0);", None, ""),
        ("store(own, tile, 2048)", "store(own + 256, tile, 2048)", "out_of_bounds", "bulk write of 2048 bytes"),
        ("store(own, tile, 2048)", "store(own, tile + 256, 2048)", "out_of_bounds", "are beyond"),
        (AFTER_THE_LOAD, "return;", "bulk_not_waited", "ends while a bulk copy into its shared memory"),
    ],
)  # fmt: skip
def test_each_wrong_turn_is_named(old, new, kind, says):
    assert ROUND_TRIP.count(old) == 1
    text, args = kernel(SIGNATURE, ROUND_TRIP.replace(old, new)), [VALUES, "f32[512]=nan"]
    if kind is None:
        assert run(text, args, block=64).hazards == []
        return
    hazard = fault(text, args, block=64)
    assert (hazard.kind, says in hazard.message or says in str(hazard)) == (kind, True), str(hazard)


def test_what_works_but_breaks_the_rules_is_a_warning():
    body = ROUND_TRIP.replace("init_fence();", "").replace("if (threadIdx.x == 0) wait_done<0>();", "")
    text = kernel(SIGNATURE, body).replace("wait_read<0>(); }\n    __syncthreads();\n    tile[threadIdx.x] = 7;", "}")
    result = run(text, [VALUES, "f32[512]=nan"], block=64)
    assert np.array_equal(result.arrays[1], 2 * VALUES)
    assert {(h.kind, h.level) for h in result.hazards} == {
        ("mbarrier_fence_missing", "warning"),
        ("bulk_exit", "warning"),
    }


def test_the_reader_may_run_the_proxy_fence():
    body = ROUND_TRIP.replace("proxy_fence();\n", "").replace("{ store(own", "{ proxy_fence(); store(own")
    assert run(kernel(SIGNATURE, body), [VALUES, "f32[512]=nan"], block=64).hazards == []


def test_groups_are_waited_for_from_the_oldest():
    body = """
        __shared__ alignas(128) int tile[3][32];
        for (int k = 0; k < 3; ++k) tile[k][threadIdx.x] = 10 * k + threadIdx.x;
        proxy_fence();
        __syncwarp();
        if (threadIdx.x == 0) {
            for (int k = 0; k < 3; ++k) { store(to + 32 * k, tile[k], 128); commit(); }
            wait_read<1>();
            tile[AT][0] = -1;
            wait_done<0>();
        }
    """
    right = run(kernel("int *to", body.replace("AT", "1")), ["i32[96]=zeros"]).arrays[0].reshape(3, 32)
    assert np.array_equal(right, 10 * np.arange(3)[:, None] + np.arange(32))
    assert fault(kernel("int *to", body.replace("AT", "2")), ["i32[96]=zeros"]).kind == "bulk_not_waited"


@pytest.mark.parametrize(
    ("form", "kind", "expected"),
    [
        ("add.u32", "u32", lambda old, new: old + new),
        ("min.s32", "i32", np.minimum),
        ("xor.b64", "u64", np.bitwise_xor),
        ("add.f32", "f32", lambda old, new: old + new),
        ("add.noftz.f16", "f16", lambda old, new: old + new),
        ("inc.u32", "u32", lambda old, new: np.where(old >= new, 0, old + 1).astype(np.uint32)),
    ],
)
def test_reductions_meet_what_is_there(form, kind, expected):
    body = f"""
        extern __shared__ __align__(128) int tile[];
        for (int i = threadIdx.x; i < 64; i += 32) tile[i] = ((const int *)from)[i];
        proxy_fence();
        __syncwarp();
        if (threadIdx.x == 0) {{
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%0], [%1], 256;"
                :: "l"(to), "r"(at(tile)) : "memory");
            commit(); wait_done<0>();
        }}
    """
    dtype = {"u32": np.uint32, "i32": np.int32, "u64": np.uint64, "f32": np.float32, "f16": np.float16}[kind]
    random = np.random.default_rng(3)
    old, new = (random.integers(0, 100, 256 // np.dtype(dtype).itemsize).astype(dtype) for _ in range(2))
    result = run(kernel("const void *from, void *to", body), [new, old], shared_bytes=256)
    assert np.array_equal(result.arrays[1], expected(old, new))


def test_an_mbarrier_may_wait_for_many_copies_of_many_threads():
    text = kernel(
        SIGNATURE,
        """
        __shared__ alignas(128) float tile[512]; __shared__ u64 full;
        if (threadIdx.x == 0) { init(&full, 32); init_fence(); }
        __syncthreads();
        if (threadIdx.x < 32) {
            arrive_expect(&full, 64);
            load(tile + 16 * threadIdx.x, from + 16 * threadIdx.x, 64, &full);
        }
        while (!test_parity(&full, 0)) {}
        for (int i = threadIdx.x; i < 512; i += 64) to[i] = tile[511 - i];
        """,
    )
    assert np.array_equal(run(text, [VALUES, "f32[512]=nan"], block=64).arrays[1], VALUES[::-1])


@pytest.mark.parametrize("missing", [None, 0, 31, 45])
def test_each_of_many_mbarriers_vouches_for_its_own_bytes(missing):
    text = kernel(
        "const int *from, int *to, int missing",
        """
        __shared__ alignas(16) int tile[48][4]; __shared__ u64 full[48];
        if (threadIdx.x == 0) for (int k = 0; k < 48; ++k) init(full + k, 1);
        init_fence();
        __syncthreads();
        if (threadIdx.x == 0)
            for (int k = 47; k >= 0; --k) { arrive_expect(full + k, 16); load(tile[k], from + 4 * k, 16, full + k); }
        if (threadIdx.x >= 32) {
            for (int k = 0; k < 48; ++k) if (k != missing) wait(full + k, 0);
            for (int k = 0; k < 48; ++k) if (threadIdx.x < 36) to[4 * k + threadIdx.x - 32] = tile[k][threadIdx.x - 32];
        }
        if (missing >= 0 && threadIdx.x < 32) wait(full + missing, 0); // seen by the other warp alone
        """,
    )
    args = [np.arange(192, dtype=np.int32), "i32[192]=zeros", -1 if missing is None else missing]
    if missing is None:
        assert run(text, args, block=64).arrays[1].tolist() == list(range(192))
        return
    hazard = fault(text, args, block=64)
    assert (hazard.kind, hazard.address // 16) == ("async_copy_not_waited", missing)
