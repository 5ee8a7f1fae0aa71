"""Shuffles from lanes that take no part, callers outside their own mask, and barriers that count differently."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import EmulatorFault, PtxError

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def found(source: str, threads: int) -> list[str]:
    """The kinds of hazard that a kernel `k(float *out)` shows."""
    result = tw.emulate(source, "k", 1, threads, [np.zeros(max(threads, 32), np.float32)], hazards="collect")
    return [hazard.kind for hazard in result.hazards]


REDUCTION = """
__global__ void k(float *out) {
    float v = threadIdx.x;
    for (int d = %s; d > 0; d /= 2) v += %s;
    if (threadIdx.x == 0) out[0] = v;
}"""


@pytest.mark.parametrize("shuffle", ["__shfl_xor_sync(~0u, v, d)", "__shfl_down_sync(~0u, v, d)"])
def test_a_reduction_over_lanes_that_do_not_exist_is_found(shuffle):
    assert found(REDUCTION % (16, shuffle), 32) == []
    assert found(REDUCTION % (8, shuffle), 16) == []
    assert found(REDUCTION % (16, shuffle), 16) == ["shuffle_source"]
    assert found(REDUCTION % (16, shuffle), 48) == ["shuffle_source"]


def test_a_shuffle_from_a_lane_that_ended_is_found_with_its_line():
    source = """__global__ void k(float *out) {
        if (threadIdx.x == 3) return;
        out[threadIdx.x] = __shfl_sync(~0u, (float)threadIdx.x, 3);
    }"""
    with pytest.raises(EmulatorFault, match="lane 0 reads the value of lane 3, which does not take part") as caught:
        tw.emulate(source, "k", 1, 32, [np.zeros(32, np.float32)])
    assert (caught.value.hazard.kind, caught.value.hazard.line) == ("shuffle_source", 3)


@pytest.mark.parametrize(
    "call",
    ["__shfl_sync(0xffff, v, 0)", "__ballot_sync(0xffff, v > 2)", "__any_sync(m, v > 2)", "__reduce_add_sync(m, i)",
     "(__syncwarp(m), v)", "__match_any_sync(0xffff, i)"],
)  # fmt: skip
def test_a_caller_outside_its_own_mask_is_found(call):
    source = f"""__global__ void k(float *out) {{
        int i = threadIdx.x; float v = i; unsigned m = i < 40 ? 0x7fff : 0;
        out[i] = {call};
    }}"""
    assert "member_mask" in found(source, 32)


def test_masks_of_tiles_and_of_whole_warps_are_right():
    source = """__global__ void k(float *out) {
        int i = threadIdx.x; unsigned m = 0xffu << (i & 24);
        float v = __shfl_xor_sync(m, (float)i, 4);
        v += __ballot_sync(__activemask(), i & 1);
        if (i < 20) v += __reduce_add_sync(0xfffff, i);
        out[i] = v;
    }"""
    assert found(source, 32) == []


COUNTS = """
__global__ void k(float *out) {
    int warp = threadIdx.x / 32;
    if (warp == 0) asm volatile("bar.%s 1, %d;" ::: "memory");
    else asm volatile("bar.%s 1, %d;" ::: "memory");
    out[threadIdx.x] = warp;
}"""


def test_barriers_that_count_differently_are_found():
    assert found(COUNTS % ("sync", 64, "sync", 64), 64) == []
    assert found(COUNTS % ("arrive", 64, "sync", 64), 64) == []
    assert "barrier_counts" in found(COUNTS % ("sync", 64, "sync", 96), 64)
    assert "barrier_counts" in found(COUNTS % ("arrive", 128, "sync", 160), 160)


def test_a_barrier_that_no_block_has_is_refused():
    body = ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<3>;\nmov.u32 %r1, %ntid.x;\n"
    with pytest.raises(PtxError, match="a block has 0 to 15"):
        tw.emulate(f"{HEADER}{body}bar.sync 16;\nret;\n}}", "k", 1, 32, [0])
    with pytest.raises(EmulatorFault, match="barrier 32: a block has 16, 0 to 15"):
        tw.emulate(f"{HEADER}{body}bar.sync %r1;\nret;\n}}", "k", 1, 32, [0])
