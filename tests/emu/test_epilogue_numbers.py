"""Numbers in an epilogue are parameters: one kernel, given each call's own, wherever the function keeps them."""

from __future__ import annotations

import functools
import math
import threading
import types
from collections import Counter

import numpy as np
import pytest
from epilogue_cases import values
from test_rungs import SMALL

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.arch import GPUS
from tilewright.epilogue import expression, numbers
from tilewright.epilogue.expression import trace
from tilewright.errors import MissingDependency
from tilewright.gemm import warm
from tilewright.gemm.call import Options, read_call
from tilewright.gemm.fusion import request
from tilewright.gemm.rung import Rung
from tilewright.jit import compile_source
from tilewright.lab.sass import disassemble, find_disassembler
from tilewright.run import libraries
from tilewright.run.ready import Ready
from tilewright.run.runner import Ran

A, B = values(20, 12), values(12, 24)
EXACT = A.astype(np.float64) @ B
RATE = 0.0
HELD = types.SimpleNamespace(rate=0.0)
LISTED = [0.0]
MODULE = types.ModuleType("rates")


def through_a_helper(x):
    return x * RATE


class Scaled:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, acc):
        return acc * self.rate

    def method(self, acc):
        return acc * self.rate


def set_global(rate):
    globals()["RATE"] = rate


def in_a_closure(rate):
    return lambda acc: acc * rate


def in_a_nested_function(rate):
    def outer(acc):
        def inner(x):
            return x * rate

        return inner(acc)

    return outer


def in_a_default(rate):
    return lambda acc, factor=rate: acc * factor


def in_a_keyword_default(rate):
    return lambda acc, *, factor=rate: acc * factor


def in_a_global(rate):
    set_global(rate)
    return lambda acc: acc * RATE


def in_a_global_of_a_helper(rate):
    set_global(rate)
    return lambda acc: through_a_helper(acc)


def in_an_attribute(rate):
    HELD.rate = rate
    return lambda acc: acc * HELD.rate


def in_a_list(rate):
    LISTED[0] = rate
    return lambda acc: acc * LISTED[0]


def in_a_module(rate):
    MODULE.rate = rate
    return lambda acc: acc * MODULE.rate


def in_a_partial(rate):
    return functools.partial(lambda factor, acc: acc * factor, rate)


def in_a_numpy_scalar(rate):
    number = np.float32(rate)
    return lambda acc: acc * number


def in_a_numpy_scalar_on_the_left(rate):
    number = np.float64(rate)
    return lambda acc: number * acc


def in_an_object_that_is_called(rate):
    return Scaled(rate)


def in_a_method(rate):
    return Scaled(rate).method


def computed(rate):
    return lambda acc: acc * math.sqrt(rate * rate)


WAYS = (
    in_a_closure, in_a_nested_function, in_a_default, in_a_keyword_default, in_a_global, in_a_global_of_a_helper,
    in_an_attribute, in_a_list, in_a_module, in_a_partial, in_a_numpy_scalar, in_a_numpy_scalar_on_the_left,
    in_an_object_that_is_called, in_a_method, computed,
)  # fmt: skip
RATES = (0.5, 0.25, 3.0, 1e-3, 7.0, 0.5)


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled for products."""
    found = []
    compile_ = Rung.compile
    monkeypatch.setattr(Rung, "compile", lambda self, *given: found.append(given) or compile_(self, *given))
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_changed_number_is_seen_and_compiles_nothing(way, compiled):
    with tw.emulator():
        for rate in RATES:
            out = tw.matmul(A, B, epilogue=way(rate), rung="f02")
            np.testing.assert_allclose(out, EXACT * float(np.float32(rate)), rtol=1e-5, atol=1e-6)
    assert len(compiled) <= 1


def test_one_function_whose_number_changes_between_calls_is_read_at_each(compiled):
    rate = 0.0

    def function(acc):
        return acc * rate + HELD.rate

    with tw.emulator():
        for rate in (0.5, 2.0, 4.0):
            for HELD.rate in (3.0, 5.0):
                out = tw.matmul(A, B, epilogue=function, rung="f02")
                np.testing.assert_allclose(out, EXACT * rate + HELD.rate, rtol=1e-5, atol=1e-5)
    assert len(compiled) <= 1


@pytest.mark.parametrize("kind", [float, int, np.float32, np.float64, np.int64])
def test_a_number_among_the_operands_is_a_parameter(kind, compiled):
    with tw.emulator():
        for rate in (2, 3, 5, 2):
            out = tw.matmul(A, B, epilogue=lambda acc, s: acc * s, s=kind(rate), rung="f02")
            np.testing.assert_allclose(out, EXACT * rate, rtol=1e-5, atol=1e-5)
    assert len(compiled) <= 1


def test_numbers_that_decide_the_form_are_right_too():
    """Identities, masks, and divisors whose reciprocals are exact; each may be another kernel, none a stale number."""
    x = values(24)
    with tw.emulator():
        for rate in (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -4.0, 3.0, math.inf, math.nan):
            out = tw.matmul(A, B, epilogue=lambda acc, x, r=rate: ep.where(acc > r, acc * r, x), x=x, rung="f02")
            with np.errstate(invalid="ignore"):
                exact = np.where(rate < EXACT, EXACT * rate, x)
            np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)
            if rate:
                out = tw.matmul(A, B, epilogue=lambda acc, r=rate: acc / r, rung="f02")
                np.testing.assert_allclose(out, EXACT / rate, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rung", "config"), [("f02", None), ("f12", SMALL["f12_multistage"])], ids=["f02", "f12"])
def test_a_parameter_gives_the_bits_that_a_literal_gives(rung, config, monkeypatch):
    """Also where a product is taken into a sum. Which of two products is, compilers choose, with literals too; and of a
    difference PTX leaves the choice to the assembler (below)."""
    x, r = values(24), values(20, 24)
    functions = [
        lambda acc, x, r: acc * 0.3 + x,
        lambda acc, x, r: ep.silu(acc * 1.3 + x) * 0.7 + r / 3.0,
        lambda acc, x, r: ep.where(acc > 0.2, ep.minimum(acc, 6.0) ** 3, 0.01 * acc) / (r * r + 0.5),
        lambda acc, x, r: ep.gelu(2 * acc + x),
    ]

    def bits(number):
        with tw.emulator():
            return tw.matmul(A, B, epilogue=functions[number], rung=rung, config=config, x=x, r=r).view(np.uint32)

    by_parameter = [bits(number) for number in range(len(functions))]
    expression._traced.clear()
    monkeypatch.setattr(numbers, "_is_structural", lambda value: True)
    for number, wanted in enumerate(by_parameter):
        np.testing.assert_array_equal(bits(number), wanted)
        assert not expression.expression_of(functions[number], {"x": None, "r": None}).numbers
    expression._traced.clear()


def test_machine_code_fuses_as_much_with_parameters_as_with_literals(monkeypatch):
    try:
        find_disassembler()
    except MissingDependency as error:
        pytest.skip(str(error))

    def operations(function):
        code = trace(function, {"x": None, "r": None}).code.replace("value[i]", "value")
        source = (
            '#include "tile/fused_math.cuh"\nstruct alignas(8) Args { float number[4]; };\n'
            'extern "C" __global__ void k(const __grid_constant__ Args args, const float* in, float* out) {\n'
            "float value = in[0]; const float in0[] = {in[1]}, in1[] = {in[2]}; constexpr int i = 0;\n"
            f"{code}\nout[0] = value; }}"
        )
        found = compile_source("constexpr bool fused_brief = false;\n" + source, entry="k", arch="sm_90a")
        return Counter(i.opcode for i in disassemble(found.cubin) if i.opcode.startswith(("FFMA", "FMUL", "FADD")))

    functions = [
        lambda acc, x, r: acc * 0.3 + x * 0.7 - r * 1.7, lambda acc, x, r: x - 2.5 * (acc - 0.1) * r,
        lambda acc, x, r: 0.4 - acc * x + r, lambda acc, x, r: acc * 0.3 - x * r, lambda acc, x, r: -0.3 * x - acc * r,
        lambda acc, x, r: acc * r - 0.1,
    ]  # fmt: skip
    by_parameter = [operations(function) for function in functions]
    monkeypatch.setattr(numbers, "_is_structural", lambda value: True)
    assert [operations(function) for function in functions] == by_parameter


def test_many_numbers_stand_in_their_order_beside_operands_and_indices(compiled):
    bias, r = values(24), values(20, 24)

    def function(n):
        p, q, s, t, u = n
        return lambda acc, bias, r, row: (acc * p + bias * q) * s + r * t + row * u

    with tw.emulator():
        for n in ((0.5, 2.0, 3.0, 5.0, 7.0), (11.0, 0.1, -3.0, 0.7, -0.2), (0.3, 0.2, 0.1, 9.0, 6.0)):
            out = tw.matmul(A, B, epilogue=function(n), bias=bias, r=r, rung="f02")
            p, q, s, t, u = n
            exact = (EXACT * p + bias * q) * s + r * t + np.arange(20)[:, None] * u
            np.testing.assert_allclose(out, exact, rtol=2e-5, atol=2e-5)
    assert len(compiled) <= 1


@pytest.mark.parametrize("options", [{"verify": True}, {"rung": "f12", "verify": True}])
def test_a_result_is_verified_with_its_own_numbers(options):
    with tw.emulator():
        for rate in (0.5, 3.0, 7.0):
            tw.matmul(A, B, epilogue=in_a_closure(rate), **options)


def test_parts_of_k_and_batches_of_several_launches_take_the_numbers():
    a, b = values(3, 2, 9, 40), values(2, 40, 8)
    with tw.emulator():
        for rate in (0.5, 3.0):
            out = tw.matmul(a, b, epilogue=in_a_closure(rate), rung="f02")
            np.testing.assert_allclose(out, a.astype(np.float64) @ b * rate, rtol=1e-4, atol=1e-4)


def test_threads_with_numbers_of_their_own_get_their_own_results():
    wrong = []

    def work(rate):
        with tw.emulator():
            for _ in range(5):
                out = tw.matmul(A, B, epilogue=in_a_closure(rate), rung="f02")
                if not np.allclose(out, EXACT * rate, rtol=1e-4, atol=1e-5):
                    wrong.append(rate)

    threads = [threading.Thread(target=work, args=(rate,)) for rate in (0.5, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_explain_shows_the_numbers_of_its_own_call():
    for rate in (0.5, 3.0):
        assert f"acc * {rate:g}" in str(tw.explain(A, B, epilogue=in_a_closure(rate), gpu="H200"))


# --- the warm path, which writes numbers into parameters that are kept ------------------------------------------------


class Started:
    """A prepared launch that keeps the numbers it was started with."""

    def __init__(self, stage, launched) -> None:
        self.lock = threading.Lock()
        held = bytearray(stage.params.data)
        self.words, self.floats = memoryview(held).cast("Q"), memoryview(held).cast("f")
        self._places = [at // 4 for at, name in stage.params.scalars if name.startswith("number")]
        self._launched = launched
        self.placed: dict[int, object] = {}

    def put_map(self, at: int, description: object, address: int) -> None:
        """Tensor maps are the driver's: none is here."""

    def start(self, stream: int) -> None:
        self._launched.append(tuple(self.floats[place] for place in self._places))


class HostArrays(libraries.Arrays):
    """NumPy arrays in the place of a library's on a GPU."""

    types = (np.ndarray,)

    def pair(self, a, b):
        return self.signature(a), self.signature(b)

    def signature(self, x):
        return x.shape, x.strides, x.dtype.char

    def address(self, x):
        return x.ctypes.data

    def device(self):
        return 0

    def strides(self, x):
        return ()

    def new(self, shape, strides, dtype):
        return np.empty(shape, dtype)

    def stream(self, ordinal):
        return 0


@pytest.fixture
def warm_numbers(monkeypatch):
    """A function that makes a warm call: None where it was not known and is now, else the numbers it launched with."""
    library = HostArrays()
    monkeypatch.setattr(libraries, "known", {np.ndarray: library})
    monkeypatch.setattr(libraries, "learn", lambda kind: library)
    monkeypatch.setattr(warm, "calls", type(warm.calls)())
    launched = []

    def call(function, **operands):
        asked = request(function, None, None, None, None, None, operands)
        if warm.warm_matmul(A, B, None, 1.0, None, None, tuple(Options()), asked) is not warm.MISS:
            return launched[-1]
        made = read_call(A, B, None, 1.0, None, None, Options(), asked)
        program = made.program(GPUS["H200"])
        ready = Ready.__new__(Ready)
        ready.program, ready.runs, ready.kernels = program, program.each_run(), ()
        ready._prepared = {0: ((Started(program.stages[0], launched),),)}
        warm.remember(made, np.empty((20, 24), np.float32), Ran(ready, 0), asked)
        return None

    return call


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_warm_call_sees_a_changed_number(way, warm_numbers):
    assert warm_numbers(way(2.0)) is None
    for rate in RATES:
        assert warm_numbers(way(rate)) == (pytest.approx(rate, rel=1e-7),)


def test_a_warm_call_sees_changed_numbers_among_the_operands(warm_numbers):
    function = lambda acc, s, x, t: acc * s + x * t  # noqa: E731
    x = values(24)
    assert warm_numbers(function, s=2.0, x=x, t=3.0) is None
    for s, t in ((2.0, 3.0), (4.0, 5), (7, 0.5)):
        assert warm_numbers(function, s=s, x=x, t=t) == (s, t)
    assert warm_numbers(function, s=1.0, x=x, t=3.0) is None, "another form"
    assert warm_numbers(function, s=x, x=x, t=3.0) is None, "an array is no number"


def test_a_function_of_another_form_is_another_warm_call(warm_numbers):
    flag = True

    def function(acc):
        return acc * 3.0 if flag else acc + 3.0

    assert warm_numbers(function) is None
    flag = False
    assert warm_numbers(function) is None
    for flag in (True, False):  # noqa: B007
        assert warm_numbers(function) == (3.0,)


def test_a_function_that_says_something_else_each_time_is_remembered_by_what_it_said(warm_numbers, monkeypatch):
    """A key of a later trace would stand for a kernel that computes something else."""
    forms = iter([lambda acc: acc * 2.0, lambda acc: acc * 2.0, lambda acc: acc - 2.0])
    kept = []
    monkeypatch.setattr(warm.calls, "put", lambda key, call: kept.append(key))

    def function(acc, forms=forms):
        return next(forms)(acc)

    assert warm_numbers(function) is None
    assert "* args.number[0]" in str(kept[0])
    assert next(forms)(1.0) == -1.0
