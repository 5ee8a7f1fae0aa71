"""Atomics of many lanes at few addresses: one after another, in the order of the lanes, with results and without."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import emu

N = 512
PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 values, .param .u64 places, .param .u64 memory, .param .u64 out)
{{
.reg .b32 %r<4>; .reg .b64 %rd<9>; .reg .{register} %v; .reg .{register} %old;
mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 256, %r0;
ld.param.u64 %rd0, [values]; ld.param.u64 %rd1, [places]; ld.param.u64 %rd2, [memory]; ld.param.u64 %rd3, [out];
mad.wide.u32 %rd0, %r0, {size}, %rd0; mad.wide.u32 %rd3, %r0, {size}, %rd3; mad.wide.u32 %rd1, %r0, 4, %rd1;
ld.global.{store} %v, [%rd0]; ld.global.u32 %r2, [%rd1]; mad.wide.u32 %rd4, %r2, {size}, %rd2;
atom.global.{op}.{kind} %old, [%rd4], %v;
{keep}
ret;
}}
"""


def one_after_another(op: str, memory: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    old = np.zeros_like(values)
    for k, (place, value) in enumerate(zip(places.tolist(), values, strict=True)):
        old[k] = memory[place]
        if op == "add":
            memory[place] += value
        elif op == "exch":
            memory[place] = value
        else:
            memory[place] = {"min": min, "max": max, "xor": lambda a, b: a ^ b}[op](memory[place], value)
    return old


@pytest.mark.parametrize("keep", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("spread", [1, 7, 400])
@pytest.mark.parametrize(
    ("op", "kind"),
    [("add", "u32"), ("add", "s32"), ("add", "u64"), ("add", "f32"), ("add", "f64"), ("min", "s32"), ("max", "u64"),
     ("xor", "b32"), ("exch", "b32")],
)  # fmt: skip
def test_lanes_at_one_address_go_in_their_order(op, kind, spread, keep):
    rng = np.random.default_rng(spread)
    dtype = {"u": "u", "s": "i", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8)
    places = rng.integers(0, spread, N).astype(np.uint32)
    if kind[0] == "f":
        values = (rng.standard_normal(N) * 2.0 ** rng.integers(-20, 20, N)).astype(dtype)
        memory = rng.standard_normal(spread).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, N, dtype=dtype, endpoint=True)
        memory = rng.integers(limits.min, limits.max, spread, dtype=dtype, endpoint=True)
    bits = int(kind[1:])
    text = PTX.format(
        op=op, kind=kind, size=bits // 8, register=kind if kind[0] == "f" else f"b{bits}",
        store=kind if kind[0] == "f" else f"b{bits}",
        keep=f"st.global.{kind if kind[0] == 'f' else f'b{bits}'} [%rd3], %old;" * keep,
    )  # fmt: skip
    result = emu.emulate(text, "k", 2, 256, [values, places, memory, np.zeros(N, dtype)])
    with np.errstate(over="ignore"):
        old = one_after_another(op, memory, places, values)
    np.testing.assert_array_equal(result.arrays[2], memory)
    np.testing.assert_array_equal(result.arrays[3], old if keep else np.zeros(N, dtype))


def test_sums_in_global_memory_that_are_subnormal_are_flushed_though_nobody_asks_for_results():
    text = PTX.format(op="add", kind="f32", size=4, register="f32", store="f32", keep="")
    tiny = np.float32(2.0**-130)
    values = np.full(N, tiny, np.float32)
    result = emu.emulate(text, "k", 2, 256, [values, np.zeros(N, np.uint32), np.zeros(1, np.float32), values.copy()])
    assert result.arrays[2][0] == 0
