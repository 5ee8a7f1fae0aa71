"""Launches that are timed: they have all that a kernel needs, and their buffers live as long as they do."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest

from tilewright.attn.problem import AttentionProblem
from tilewright.attn.rungs import find_attention_rung
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import find_gpu
from tilewright.lab import attention_gpu, ground
from tilewright.lab.attention import AttentionStep
from tilewright.lab.attention_gpu import AttentionBuffers, launches_of
from tilewright.lab.ground import Buffers, program_launch
from tilewright.lab.ladder import Step

WHERE = find_gpu("H200")


class Array:
    """Stands for a DeviceArray."""

    def __init__(self, *_: object) -> None:
        self.address = 1 << 20


@pytest.fixture
def launched(monkeypatch):
    """What is launched: (parameters, maps)."""
    seen: list[tuple[bytes, tuple]] = []

    class Prepared:
        def __init__(self, kernel, launch, ordinal) -> None:
            pass

        def launch(self, params, stream, maps=()) -> None:
            seen.append((params, tuple(maps)))

    for module in (ground, attention_gpu):
        monkeypatch.setattr(module, "Prepared", Prepared)
        monkeypatch.setattr(module, "bound_to", lambda ordinal: contextlib.nullcontext())
    return seen


def product(name: str) -> tuple[Step, Buffers]:
    rung = find_rung(name)
    step = Step(rung, rung.default, GemmProblem.dense(256, 256, 256, dtype=rung.dtypes[0]))
    return step, Buffers(Array(), Array(), Array())


def test_a_kernel_of_tma_is_timed_with_its_tensor_maps(launched):
    step, buffers = product("h15")
    program_launch(step.program, [None] * len(step.program.stages), buffers, 0)(0)
    _, maps = launched[-1]
    assert len(maps) >= 2
    assert {address for _, _, address in maps} == {1 << 20}


def test_operands_of_a_product_live_as_long_as_its_launch(launched):
    step, buffers = product("f09")
    held = weakref.ref(buffers.a)
    launch = program_launch(step.program, [None], buffers, 0)
    del buffers
    gc.collect()
    assert held() is not None
    launch(0)
    del launch
    gc.collect()
    assert held() is None


def test_operands_of_attention_live_as_long_as_their_launch(launched):
    problem = AttentionProblem.dense(1, 1, 64, 64, 64)
    rung = find_attention_rung("a03")
    buffers = AttentionBuffers(Array(), Array(), Array(), Array())
    held = weakref.ref(buffers.q)
    step = AttentionStep(rung, rung.default(problem, WHERE.arch), problem)
    (launch,) = launches_of(step, None, [buffers], 0)
    del buffers
    gc.collect()
    assert held() is not None
    launch(0)
    assert np.frombuffer(launched[-1][0], np.uint64)[0] == 1 << 20
