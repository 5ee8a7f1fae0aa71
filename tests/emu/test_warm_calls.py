"""Remembered products apart from a GPU: which calls may take one, and what is given back where a launch fails."""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest
from test_epilogue_numbers import HostArrays, Started

from tilewright.arch import GPUS
from tilewright.arrays import streams
from tilewright.arrays.view import Operand
from tilewright.attn import warm as attention_warm
from tilewright.attn.call import read_attention
from tilewright.errors import DeviceError
from tilewright.gemm import rows, warm
from tilewright.gemm.call import Options, read_call
from tilewright.jit import device, device_calls, gpu_executor
from tilewright.run import libraries
from tilewright.run.ready import Ready
from tilewright.run.runner import Ran
from tilewright.run.warm import MISS, Remembered, WarmCall, WarmCalls, _key

OPTIONS = tuple(Options())


class Arrays(HostArrays):
    def mark_written(self, x):
        """NumPy keeps no versions."""


@pytest.fixture
def call(monkeypatch):
    """A function that makes a call with `out`: whether it was remembered. It is then."""
    library = Arrays()
    monkeypatch.setattr(libraries, "known", {np.ndarray: library})
    monkeypatch.setattr(libraries, "learn", lambda kind: library)
    monkeypatch.setattr(warm, "calls", type(warm.calls)())

    def make(a, b, out, c=None):
        if warm.warm_matmul(a, b, c, 1.0, None, out, OPTIONS) is not warm.MISS:
            return True
        with contextlib.suppress(ValueError):  # an overlap
            made = read_call(a, b, c, 1.0, None, out, Options())
            program = made.program(GPUS["H200"])
            ready = Ready.__new__(Ready)
            ready.program, ready.runs, ready.kernels = program, program.each_run(), ()
            ready._prepared = {0: (tuple(Started(stage, []) for stage in program.stages),)}
            warm.remember(made, out, Ran(ready, 0), None)
        return False

    return make


def test_out_that_overlaps_rows_that_run_backwards_is_never_taken_for_apart(call):
    memory, b = np.zeros((40, 16), np.float32), np.zeros((16, 16), np.float32)
    backwards, apart = memory[10:20][::-1], np.zeros((10, 16), np.float32)
    call(backwards, b, apart)
    assert not call(backwards, b, memory[5:15]), "it lies before the address of row 0, and shares rows with a"


def test_out_that_runs_backwards_over_an_operand_is_never_taken_for_apart(call):
    memory, b = np.zeros((40, 16), np.float32), np.zeros((16, 16), np.float32)
    call(memory[10:20], b, np.zeros((10, 16), np.float32)[::-1])
    assert not call(memory[10:20], b, memory[15:25][::-1])


def test_a_call_with_out_is_remembered_and_one_that_overlaps_is_not_taken(call):
    memory, b = np.zeros((40, 16), np.float32), np.zeros((16, 16), np.float32)
    assert not call(memory[10:20], b, memory[20:30])
    assert call(memory[10:20], b, memory[20:30])
    assert call(memory[10:20], b, memory[:10])
    assert not call(memory[10:20], b, memory[5:15])


@pytest.fixture
def attend(monkeypatch):
    """A function that calls attention with `out`: whether that was remembered. It is then."""
    library = Arrays()
    monkeypatch.setattr(libraries, "known", {np.ndarray: library})
    monkeypatch.setattr(libraries, "learn", lambda kind: library)
    monkeypatch.setattr(attention_warm, "calls", type(attention_warm.calls)())

    def make(q, k, v, out):
        given, options = (q, k, v, *[None] * 5), ()
        if attention_warm.warm_attention(given, options, (), out) is not attention_warm.MISS:
            return True
        with contextlib.suppress(ValueError):  # an overlap
            made = read_attention(q, k, v, out=out)
            program = made.program(GPUS["H200"])
            ready = Ready.__new__(Ready)
            ready.program, ready.runs, ready.kernels = program, program.each_run(), ()
            ready._prepared = {0: (tuple(Started(stage, []) for stage in program.stages),)}
            attention_warm.remember(made, (out,), Ran(ready, 0), given, options, out)
        return False

    return make


def rows_of(memory, first, last):
    return memory[None, None, first:last]


def test_attention_with_out_is_remembered_and_one_that_overlaps_is_not_taken(attend):
    memory, k = np.zeros((64, 64), np.float16), np.zeros((1, 1, 8, 64), np.float16)
    q = rows_of(memory, 16, 32)
    assert not attend(q, k, k, rows_of(memory, 32, 48))
    assert attend(q, k, k, rows_of(memory, 32, 48))
    assert attend(q, k, k, rows_of(memory, 0, 16))
    assert not attend(q, k, k, rows_of(memory, 8, 24))


@pytest.mark.parametrize(("row", "apart"), [(4, True), (5, False), (12, False), (15, False), (16, True)])
def test_whether_out_is_apart_is_told_from_where_bytes_lie_not_from_addresses(row, apart):
    """The input's address is that of its last row in memory, 15; it reaches down to row 8. out has four rows."""
    memory = np.zeros((24, 16), np.float32)
    backwards, out = memory[8:16][::-1], memory[row : row + 4]
    call = WarmCall(Arrays(), Remembered(0, (), 0), (), ((-7 * 64, 64), (0, 4 * 64)))
    assert (call.run([backwards.ctypes.data], (), out) is not MISS) == apart


@pytest.fixture
def waited(monkeypatch):
    found = []
    monkeypatch.setattr(device_calls, "synchronize", found.append)
    return found


def on_gpu(name, kind="dlpack"):
    return Operand(name, kind, 1 << 20, (4, 4), (4, 1), "f32", 0)


def test_what_was_launched_is_waited_for_also_where_a_later_launch_raises(waited):
    """The producer of an array that no stream orders may take its memory back at once."""
    with pytest.raises(DeviceError), streams.in_order(on_gpu("a"), [on_gpu("b")]):
        raise DeviceError("no")
    assert waited == [0]


def test_a_remembered_call_that_fails_gives_back_what_it_borrowed(waited, monkeypatch):
    given_back = []
    pool = types.SimpleNamespace(take=lambda nbytes: 4096, give_back=given_back.append)
    monkeypatch.setattr(gpu_executor, "pool_of", lambda ordinal: pool)
    monkeypatch.setattr(device, "bound_to", lambda ordinal: contextlib.nullcontext())
    launches = Remembered(0, (), 512)
    object.__setattr__(launches, "start", lambda *at: (_ for _ in ()).throw(DeviceError("no")))
    known = warm.WarmProduct(launches, (4, 4), (4, 1), "f32", 64, 64, 0, 64, False)
    with pytest.raises(DeviceError):
        warm._in_place_warm(known, [on_gpu("a"), on_gpu("b"), None], [], None, on_gpu("out"), (1.0, 0.0))
    assert given_back == [4096]


def test_a_plan_that_another_thread_drops_meanwhile_is_no_error(monkeypatch):
    monkeypatch.setattr(rows, "_weights", type(rows._weights)(lambda: 8))
    b = np.zeros((16, 16), np.float32)

    def plan(m):
        return read_call(np.zeros((m, 16), np.float32), b, None, 1.0, None, None, Options()).plan(GPUS["H200"])

    for m in range(2, 2 + rows.ENOUGH):
        plan(m)
    (weight,) = rows._weights._entries.values()
    serves = rows._serves
    monkeypatch.setattr(rows, "_serves", lambda *of: weight.plans.clear() or serves(*of))
    monkeypatch.setattr(rows, "NEAREST", rows.ENOUGH)
    assert plan(100).source == "the kernels that are there"


def test_a_call_of_one_array_is_found_by_how_it_lies(monkeypatch):
    """As quantize makes it: nothing of it is a pair."""
    monkeypatch.setattr(libraries, "known", {np.ndarray: Arrays()})
    calls, x = WarmCalls(), np.zeros((4, 4), np.float32)
    assert calls.run((x,), ("e4m3",)) is MISS
    calls.put(
        _key(Arrays(), (x,), ("e4m3",), None)[0],
        WarmCall(Arrays(), Remembered(0, (), 0), (((4,), (1,), "f4"),), ((0, 64),)),
    )
    assert calls.run((x.copy(),), ("e4m3",))[0].shape == (4,)
    assert calls.run((x[:, ::2],), ("e4m3",)) is MISS
    assert calls.run((x,), ("e5m2",)) is MISS
