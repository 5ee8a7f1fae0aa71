"""Numbers in attention's function of a score are parameters, as those of an epilogue are."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest
from test_epilogue_numbers import HostArrays, Started

import tilewright as tw
from tilewright.arch import GPUS
from tilewright.attn import warm
from tilewright.attn.call import read_attention
from tilewright.attn.rung import AttentionRung
from tilewright.attn.score import modification_of
from tilewright.run import libraries
from tilewright.run.ready import Ready
from tilewright.run.runner import Ran

HELD = types.SimpleNamespace(slope=0.0)


def operands(seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((1, 2, 48, 64)).astype(np.float16) for _ in range(3))


def sloping(shift):
    return lambda s, b, h, i, j: s * shift - HELD.slope * abs(i - j)


def expected(q, k, v, slope, shift):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / math.sqrt(64)
    i, j = np.arange(48)[:, None], np.arange(48)
    s = s * shift - slope * abs(i - j)
    weights = np.exp(s - s.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("rung", ["a01", "a17"])
def test_a_changed_number_is_seen_and_compiles_nothing(rung, monkeypatch):
    compiled = []
    compile_ = AttentionRung.compile
    monkeypatch.setattr(AttentionRung, "compile", lambda self, *at: compiled.append(at) or compile_(self, *at))
    q, k, v = operands()
    with tw.emulator():
        for slope, shift in ((0.1, 3.0), (0.7, 0.2), (0.05, 2.5)):
            HELD.slope = slope
            out = tw.attention(q, k, v, score=sloping(shift), rung=rung)
            np.testing.assert_allclose(out.astype(np.float64), expected(q, k, v, slope, shift), atol=3e-3)
    assert len(compiled) == 1


def test_masks_and_numbers_that_meet_indices_stay_in_the_text():
    def masked(period, slope):
        return modification_of(lambda s, b, h, i, j: tw.epilogue.where(j % period == 1, s - slope * h, -math.inf))

    assert masked(4, 0.25).numbers == (0.25,)
    assert "0xff800000" in masked(4, 0.25).code == masked(4, 2.5).code != masked(5, 0.25).code


@pytest.fixture
def remember_and_call(monkeypatch):
    library = HostArrays()
    monkeypatch.setattr(libraries, "known", {np.ndarray: library})
    monkeypatch.setattr(libraries, "learn", lambda kind: library)
    monkeypatch.setattr(warm, "calls", type(warm.calls)())
    q, k, v = operands()
    launched = []

    def call(score=None, **asked):
        """None where the call was not known and is now, else the numbers it launched with."""
        modify = modification_of(score)
        given, options = (q, k, v, *[None] * 5), (modify.code, *asked.values())
        if warm.warm_attention(given, options, modify.numbers, None) is not warm.MISS:
            return launched[-1]
        made = read_attention(q, k, v, modify=modify, **asked)
        program = made.program(GPUS["H200"])
        ready = Ready.__new__(Ready)
        ready.program, ready.runs, ready.kernels = program, program.each_run(), ()
        ready._prepared = {0: ((Started(program.stages[0], launched),),)}
        warm.remember(made, (np.empty_like(q),), Ran(ready, 0), given, options, None)
        return None

    return call


def test_a_warm_call_sees_changed_numbers(remember_and_call):
    call = remember_and_call
    HELD.slope = 0.5
    assert call(sloping(2.0)) is None
    for shift, HELD.slope in ((2.0, 0.5), (3.0, 0.25), (0.7, 0.1)):
        assert call(sloping(shift)) == pytest.approx((shift, HELD.slope))
    assert call(lambda s, b, h, i, j: s + 0.5 * i) is None, "another function"


class Changing:
    """A number that an optimizer changes in place, as a tensor on a GPU."""

    def __init__(self, value) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value

    def __index__(self) -> int:
        return int(self.value)


@pytest.mark.parametrize(
    "asked", [{"scale": Changing(2.0)}, {"softcap": Changing(3.0)}, {"window": (Changing(4.0), 0)}], ids=" ".join
)
def test_a_number_that_may_change_in_place_is_read_at_every_call(asked, remember_and_call):
    for _ in range(3):
        assert remember_and_call(**asked) is None


def test_numbers_that_stay_are_remembered(remember_and_call):
    asked = {"scale": np.float32(0.5), "softcap": 3, "window": (4, 0)}
    assert remember_and_call(**asked) is None
    assert remember_and_call(**asked) == ()
