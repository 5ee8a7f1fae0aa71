"""mbarrier: counts and phases as the PTX manual has them, what is misuse, and waits that nobody can end."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import fault, kernel, run

SETUP = """__shared__ u64 bar; if (threadIdx.x == 0) { init(&bar, COUNT); init_fence(); } __syncthreads();"""


def one(body: str, count: int | str = 1, signature: str = "int *out", setup: str = SETUP) -> str:
    return kernel(signature, setup.replace("COUNT", str(count)) + body)


def test_phases_end_with_the_last_arrival_and_turn_their_parity():
    text = one(
        """
        if (threadIdx.x == 0) {
            out[0] = test_parity(&bar, 1), out[1] = test_parity(&bar, 0); // fresh: the phase before has parity 1
            arrive(&bar);
            out[2] = test_parity(&bar, 0);
            arrive(&bar);
            out[3] = test_parity(&bar, 0), out[4] = test_parity(&bar, 1);
            arrive(&bar), arrive(&bar);
            out[5] = test_parity(&bar, 0), out[6] = test_parity(&bar, 1); // two phases on: the parity is the old one
        }
        """,
        2,
    )
    assert run(text, ["i32[7]=zeros"]).arrays[0].tolist() == [1, 0, 0, 1, 0, 0, 1]


def test_states_tell_pending_arrivals_and_their_phase():
    text = one(
        """
        if (threadIdx.x) return;
        u64 s0 = arrive_state(&bar), s1 = arrive_state(&bar, 2), s2 = arrive_state(&bar, 4);
        int pending; asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(s0)); out[0] = pending;
        asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(s1)); out[1] = pending;
        asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(s2)); out[2] = pending;
        out[3] = test_state(&bar, s2);
        u64 s3 = arrive_state(&bar);
        out[4] = test_state(&bar, s3);
        """,
        7,
    )
    assert run(text, ["i32[5]=zeros"]).arrays[0].tolist() == [7, 6, 4, 1, 0]


def test_all_threads_arrive_in_one_instruction_and_phases_follow_one_another():
    text = kernel(
        "int *out",
        """
        __shared__ u64 bar; __shared__ int sum;
        if (threadIdx.x == 0) { init(&bar, 128); sum = 0; }
        __syncthreads();
        for (int phase = 0; phase < 5; ++phase) {
            atomicAdd(&sum, 1);
            u64 state = arrive_state(&bar);
            while (!test_state(&bar, state)) {}
        }
        if (threadIdx.x == 100) out[0] = sum;
        """,
    )
    assert run(text, ["i32[1]=zeros"], block=128).arrays[0].tolist() == [640]


def test_what_one_warp_wrote_before_its_arrival_another_reads_after_its_wait():
    body = """
        __shared__ u64 bar; __shared__ int box[32];
        if (threadIdx.x == 0) init(&bar, 32);
        __syncthreads();
        if (threadIdx.x < 32) { box[threadIdx.x] = threadIdx.x; arrive(&bar); }
        else { WAIT out[threadIdx.x - 32] = box[threadIdx.x - 32]; }
    """
    right = kernel("int *out", body.replace("WAIT", "wait(&bar, 0);"))
    assert run(right, ["i32[32]=zeros"], block=64).arrays[0].tolist() == list(range(32))
    assert fault(kernel("int *out", body.replace("WAIT", "")), ["i32[32]=zeros"], block=64).kind == "shared_race"
    relaxed = right.replace("mbarrier.arrive.shared::cta", "mbarrier.arrive.relaxed.cta.shared::cta")
    assert fault(relaxed, ["i32[32]=zeros"], block=64).kind == "shared_race"


def test_dropping_out_leaves_fewer_arrivals_to_later_phases():
    text = one(
        """
        if (threadIdx.x) return;
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(at(&bar)) : "memory");
        arrive(&bar);
        out[0] = test_parity(&bar, 0);
        arrive(&bar);
        out[1] = test_parity(&bar, 1);
        """,
        2,
    )
    assert run(text, ["i32[2]=zeros"]).arrays[0].tolist() == [1, 1]


def test_a_phase_waits_for_its_bytes_whichever_comes_first():
    text = one(
        """
        if (threadIdx.x) return;
        complete(&bar, 48); // before it is expected: the count is below zero meanwhile
        arrive_expect(&bar, 64);
        out[0] = test_parity(&bar, 0);
        complete(&bar, 16);
        out[1] = test_parity(&bar, 0);
        """
    )
    assert run(text, ["i32[2]=zeros"]).arrays[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("body", "count", "says"),
    [
        ("if (threadIdx.x == 0) { arrive_state(&bar, 2); }", 1, "2 arrivals where 1 are pending"),
        ("if (threadIdx.x == 0) init(&bar, 1);", 1, "mbarrier.init over an mbarrier that is in use"),
        ("if (threadIdx.x == 0) { inval(&bar); arrive(&bar); }", 1, "after its inval"),
        ("if (threadIdx.x == 0) { *(int *)&bar = 3; }", 1, "write of bytes of an mbarrier"),
        ("if (threadIdx.x == 0) { expect(&bar, 1048575); expect(&bar, 1); }", 1, "beyond 1048575"),
        ("", 0, "mbarrier.init with a count of 0"),
        ("", 1 << 20, "mbarrier.init with a count of 1048576; 1 to 1048575 are allowed"),
        ("u64 s = arrive_state(&bar); for (int i = 0; i < 2; ++i) arrive(&bar); out[0] = test_state(&bar, s);", 32,
         "a state of phase 0 is asked for in phase 3"),
    ],
)  # fmt: skip
def test_misuse_is_a_fault(body, count, says):
    hazard = fault(one(body, "n", "int *out, u32 n"), ["i32[1]=zeros", count])
    assert (hazard.kind, says in hazard.message) == ("mbarrier_misuse", True), hazard.message


def test_an_mbarrier_without_init_is_a_fault():
    hazard = fault(kernel("int *out", "__shared__ u64 bar; arrive(&bar);"), ["i32[1]=zeros"])
    assert hazard.kind == "mbarrier_misuse"
    assert "where no mbarrier has been initialised" in hazard.message


def test_an_init_that_other_warps_do_not_wait_for_is_a_race():
    text = one("arrive(&bar);", 64)
    hazard = fault(text.replace("__syncthreads();", "__syncwarp();"), ["i32[1]=zeros"], block=64)
    assert hazard.kind == "shared_race"
    assert "mbarrier.arrive" in hazard.message
    hazard = fault(text.replace("__syncthreads();", ""), ["i32[1]=zeros"], block=64)
    assert hazard.kind == "lane_race"
    assert "mbarrier.arrive" in hazard.message


def test_its_bytes_are_free_after_inval():
    text = one(
        "if (threadIdx.x == 0) { inval(&bar); *(int *)&bar = 3; out[0] = *(volatile int *)&bar; init(&bar, 1); }"
    )
    assert run(text, ["i32[1]=zeros"]).arrays[0].tolist() == [3]


@pytest.mark.parametrize("spin", ["while (!test_parity(&bar, 0)) {}", "wait(&bar, 0);"])
def test_a_wait_that_nobody_can_end_is_a_deadlock_that_says_what_is_missing(spin):
    hazard = fault(one(f"if (threadIdx.x == 0) arrive_expect(&bar, 512); {spin}", 3), ["i32[1]=zeros"])
    assert hazard.kind == "deadlock"
    (line,) = hazard.details["what_is_waited_for"]
    assert "in phase 0 (parity 0), 2 of 3 arrivals pending, 512 bytes missing; waited for: phase 0" in line


def test_a_peek_that_fails_goes_on_and_does_other_work():
    text = one(
        """
        if (threadIdx.x < 32) {
            bool there = try_parity(&bar, 0); // cannot be: this very warp arrives later
            out[threadIdx.x] = there;
            arrive(&bar);
            if (!there) wait(&bar, 0);
            out[threadIdx.x] += 2;
        }
        """,
        32,
    )
    assert run(text, ["i32[32]=zeros"]).arrays[0].tolist() == [2] * 32


def test_arrivals_of_cp_async_come_when_the_copies_have_landed():
    body = """
        __shared__ u64 bar; __shared__ int tile[32];
        if (threadIdx.x == 0) init(&bar, 32);
        __syncthreads();
        if (threadIdx.x < 32) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                :: "r"(at(tile + threadIdx.x)), "l"(from + threadIdx.x));
            asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&bar)) : "memory");
        } else { WAIT out[threadIdx.x - 32] = tile[threadIdx.x - 32]; }
    """
    a = np.arange(32, dtype=np.int32)
    right = kernel("const int *from, int *out", body.replace("WAIT", "wait(&bar, 0);"))
    assert run(right, [a, "i32[32]=zeros"], block=64).arrays[1].tolist() == a.tolist()
    wrong = fault(kernel("const int *from, int *out", body.replace("WAIT", "")), [a, "i32[32]=zeros"], block=64)
    assert wrong.kind in ("async_copy_not_waited", "uninitialised_shared_read")
    counted = right.replace(".noinc", "").replace("arrive.noinc", "arrive")
    assert (
        fault(counted, [a, "i32[32]=zeros"], block=64).kind == "deadlock"
    )  # nobody makes the 32 arrivals of its count


@pytest.mark.parametrize("header", ["barrier", "pipeline"])
def test_cudas_own_classes_run(header):
    pytest.importorskip("nvidia", reason="the wheels of CUDA's headers")
    bodies = {
        "barrier": """
            __shared__ cuda::barrier<cuda::thread_scope_block> bar; __shared__ int box[64];
            if (threadIdx.x == 0) init(&bar, 64);
            __syncthreads();
            for (int turn = 0; turn < 3; ++turn) {
                box[threadIdx.x] = turn + threadIdx.x;
                bar.arrive_and_wait();
                out[threadIdx.x] += box[63 - threadIdx.x];
                bar.arrive_and_wait();
            }
        """,
        "pipeline": """
            __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state; __shared__ int box[64];
            auto group = cooperative_groups::this_thread_block();
            auto pipe = cuda::make_pipeline(group, &state);
            pipe.producer_acquire();
            cuda::memcpy_async(box + threadIdx.x, out + threadIdx.x, 4, pipe);
            pipe.producer_commit();
            pipe.consumer_wait();
            __syncthreads();
            int got = box[63 - threadIdx.x];
            pipe.consumer_release();
            out[threadIdx.x] = got + 1;
        """,
    }
    text = (
        f"#include <cooperative_groups.h>\n#include <cuda/{header}>\n"
        f'extern "C" __global__ void k(int *out) {{ {bodies[header]} }}'
    )
    got = run(text, [np.arange(64, dtype=np.int32)], block=64).arrays[0]
    t = np.arange(64)
    expected = t + 3 * (63 - t) + 3 if header == "barrier" else 64 - t
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize(("at", "kinds"), [(4, {"misaligned"}), (4099, {"out_of_bounds", "misaligned"})])
def test_a_place_where_no_mbarrier_can_be_is_named_and_passed_over(at, kinds):
    text = kernel(
        "int *out, u32 at",
        """asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at)); out[threadIdx.x] = 1;""",
    )
    result = run(text, ["i32[32]=zeros", at], hazards="collect", shared_bytes=64)
    assert {hazard.kind for hazard in result.hazards} == kinds
    assert result.arrays[0].tolist() == [1] * 32
