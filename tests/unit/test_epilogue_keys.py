"""What counts as constant in an epilogue: the pure functions of a short list. All else is read again at each call."""

from __future__ import annotations

import math
import random
import sys
import time
import types

import numpy as np
import pytest

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.epilogue import expression, keys
from tilewright.epilogue.expression import expression_of
from tilewright.epilogue.keys import function_key

A = np.eye(4, dtype=np.float32)
GENERATOR = np.random.default_rng(3)
SETTINGS = {"factor": 2.0}


def draws_by_numpy(acc):
    return acc * np.random.rand()


def draws_by_an_import_within(acc):
    from numpy.random import rand

    return acc * rand()


def draws_by_the_standard_library(acc):
    return acc * random.random()


def draws_by_a_generator(acc):
    return acc * GENERATOR.random()


def draws_through_a_helper(acc):
    return acc * draw()


def draw():
    return np.random.standard_normal()


def reads_a_clock(acc):
    return acc * (time.perf_counter_ns() % 1000003)


@pytest.mark.parametrize(
    "function",
    [draws_by_numpy, draws_by_an_import_within, draws_by_the_standard_library, draws_by_a_generator,
     draws_through_a_helper, reads_a_clock],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_what_is_drawn_is_drawn_again_at_each_call(function):
    with tw.emulator():
        drawn = {float(tw.matmul(A, A, epilogue=function, rung="f01")[0, 0]) for _ in range(3)}
    assert len(drawn) == 3


@pytest.mark.parametrize("name", ["numpy", "numpy.linalg", "math", "tilewright", "torch_like", "jax.numpy"])
def test_a_changed_attribute_of_any_module_is_seen(name, monkeypatch):
    module = sys.modules.get(name) or types.ModuleType(name)
    functions = [
        types.FunctionType((lambda acc: acc * MODULE.tuned).__code__, {"MODULE": module}),  # noqa: F821
        (lambda held: lambda acc: acc * held.tuned)(module),
        lambda acc, held=module: acc * held.tuned,
    ]
    for value in (2.0, 3.0):
        monkeypatch.setattr(module, "tuned", value, raising=False)
        for function in functions:
            assert expression_of(function, {}).numbers == (value,)
            assert function_key(function) is not None


def test_a_module_that_another_one_holds_is_read_too(monkeypatch):
    outer, inner = types.ModuleType("outer"), types.ModuleType("inner")
    outer.inner = inner
    for value in (2.0, 3.0):
        inner.tuned = value
        assert expression_of(lambda acc: acc * outer.inner.tuned, {}).numbers == (value,)


def test_a_replaced_function_of_a_module_is_seen(monkeypatch):
    module = types.ModuleType("numpy.patched")
    function = lambda acc: module.scale(acc)  # noqa: E731
    module.scale = lambda acc: acc * 2.0
    before = function_key(function)
    module.scale = lambda acc: acc * 3.0
    assert function_key(function) != before is not None
    assert expression_of(function, {}).numbers == (3.0,)


def test_a_module_that_makes_its_attributes_is_asked_each_time():
    module, value = types.ModuleType("lazy"), [2.0]
    module.__getattr__ = lambda name: value[0]
    function = lambda acc: acc * module.tuned  # noqa: E731
    assert expression_of(function, {}).numbers == (2.0,)
    value[0] = 3.0
    assert expression_of(function, {}).numbers == (3.0,)


def test_a_function_that_numpy_wraps_is_not_numpys(monkeypatch):
    wrapped = np.frompyfunc(lambda x: x * SETTINGS["factor"], 1, 1)
    function = lambda acc: acc * wrapped(1.0)  # noqa: E731
    assert expression_of(function, {}).numbers == (2.0,)
    monkeypatch.setitem(SETTINGS, "factor", 3.0)
    assert expression_of(function, {}).numbers == (3.0,)


def test_a_built_in_function_that_is_shadowed_is_another(monkeypatch):
    function = lambda acc: acc * max(2.0, 3.0)  # noqa: E731
    assert expression_of(function, {}).numbers == (3.0,)
    monkeypatch.setitem(globals(), "max", min)
    assert expression_of(function, {}).numbers == (2.0,)


@pytest.mark.parametrize(
    "function",
    [
        lambda acc: np.exp(acc) + np.where(acc > 0, np.pi, np.float32(2)),
        lambda acc: ep.silu(acc) * math.sqrt(2) + max(1, abs(-2)),
        lambda acc: tw.epilogue.gelu(acc) * float(np.finfo(np.float32).eps),
        ep.silu,
        np.tanh,
    ],
)
def test_what_stays_as_it_is_has_a_key(function):
    assert function_key(function) is not None
    assert function_key(function) == function_key(function)


def test_a_relative_import_within_has_no_key():
    space: dict = {"__package__": "tilewright.epilogue"}
    exec("def function(acc):\n    from .ops import OPS\n    return acc * len(OPS)", space)
    assert function_key(space["function"]) is None


def test_what_is_traced_once_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(expression, "_MOST", 4)
    expression._traced.clear()

    def scaled(factor):
        return lambda acc: acc * factor

    first = expression_of(scaled(1.5), {})
    for factor in range(10):
        expression_of(scaled(float(factor)), {})
        assert expression_of(scaled(1.5), {}) is first, "it was used a moment ago"
    assert len(expression._traced) == 4
    assert keys._names.cache_info().maxsize is not None
