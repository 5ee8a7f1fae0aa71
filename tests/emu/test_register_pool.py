"""setmaxnreg: registers given back, taken, and waited for; and what else Hopper's kernels are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hopper_prelude import fault, kernel, run

ROLES = """
    if (threadIdx.x < 128) { asm volatile("setmaxnreg.dec.sync.aligned.u32 LESS;"); }
    else { asm volatile("setmaxnreg.inc.sync.aligned.u32 MORE;"); }
    out[threadIdx.x] = threadIdx.x;
    asm volatile("bar.sync 1, 384;" ::: "memory"); // so that nobody ends before the others have theirs
"""


def roles(less: int, more: int, bounds: str = "__launch_bounds__(384, 1)") -> str:
    return kernel("int *out", ROLES.replace("LESS", str(less)).replace("MORE", str(more)), bounds)


@pytest.mark.parametrize(("less", "more"), [(40, 232), (24, 240)])
def test_what_one_warpgroup_gives_the_others_take(less, more):
    result = run(roles(less, more), ["i32[384]=zeros"], block=384)
    assert result.arrays[0].tolist() == list(range(384))


@pytest.mark.parametrize(("less", "more", "needed"), [(40, 240, 9216), (56, 232, 8192)])
def test_more_than_the_block_has_is_a_deadlock_that_counts(less, more, needed):
    hazard = fault(roles(less, more), ["i32[384]=zeros"], block=384)
    assert hazard.kind == "deadlock"
    lines = [line for line in hazard.details["what_is_waited_for"] if line.startswith("setmaxnreg")]
    assert any(
        f"want {more} registers per thread and have 168" in line and f"{needed} are needed" in line for line in lines
    )


def test_registers_of_a_warpgroup_that_ends_are_free_in_every_order_and_who_needs_them_is_warned():
    text = roles(40, 240).replace('asm volatile("bar.sync 1, 384;" ::: "memory");', "")
    result = run(text, ["i32[384]=zeros"], block=384, explore=10)
    assert result.arrays[0].tolist() == list(range(384))
    assert not result.differing
    (warning,) = result.hazards
    assert (warning.kind, warning.level) == ("register_pool", "warning")
    assert "with 2048 registers of a warpgroup that has ended" in warning.message


@pytest.mark.parametrize(("less", "more"), [(176, 232), (40, 160)])
def test_the_wrong_direction_is_a_fault(less, more):
    assert fault(roles(less, more), ["i32[384]=zeros"], block=384).kind == "register_count"


def test_without_a_known_start_it_does_nothing_as_ptxas_does():
    assert run(roles(56, 232, ""), ["i32[384]=zeros"], block=384).arrays[0][383] == 383


def test_a_matrix_is_transposed_and_stored_as_rows():
    text = kernel(
        "u32 *out",
        """
        __shared__ alignas(16) u16 tile[64];
        u32 held = (2 * threadIdx.x + 1) << 16 | 2 * threadIdx.x, turned; // (lane / 4, 2 (lane % 4)) and the next
        asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(held));
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared::cta.b16 [%0], {%1};"
            :: "r"(at(tile + 8 * (threadIdx.x % 8))), "r"(turned) : "memory");
        __syncwarp();
        out[threadIdx.x] = ((u32 *)tile)[threadIdx.x];
        """,
    )
    got = run(text, ["u32[32]=zeros"]).arrays[0].view(np.uint16).reshape(8, 8)
    assert np.array_equal(got, np.arange(64).reshape(8, 8).T)


def test_one_lane_is_elected_and_grids_depend_on_grids():
    text = kernel(
        "int *out",
        """
        asm volatile("griddepcontrol.wait;" ::: "memory");
        u32 leads;
        asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(leads));
        if (leads) atomicAdd(out, 100 + threadIdx.x);
        asm volatile("griddepcontrol.launch_dependents;");
        """,
    )
    assert run(text, ["i32[1]=zeros"], block=64).arrays[0].tolist() == [232]


@pytest.mark.parametrize("how", ["volatile", "relaxed.gpu", "acquire.sys", "relaxed.cluster", "mmio.relaxed.sys"])
def test_loads_and_stores_of_every_order(how):
    order = how.replace("acquire", "release")
    space = ".global" if how != "acquire.sys" else ""
    text = kernel(
        "u32 *a",
        f"""u32 v; asm volatile("ld.{how}{space}.u32 %0, [%1];" : "=r"(v) : "l"(a + threadIdx.x) : "memory");
        asm volatile("st.{order}{space}.u32 [%0], %1;" :: "l"(a + threadIdx.x), "r"(v + 1) : "memory");""",
    )
    assert run(text, ["u32[32]=arange"]).arrays[0].tolist() == list(range(1, 33))
