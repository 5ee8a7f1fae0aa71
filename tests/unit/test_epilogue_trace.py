"""Tracing of epilogues: what the code becomes, what is refused in the caller's terms, and what is traced again when."""

from __future__ import annotations

import functools
import math
import operator
import sys
import types

import numpy as np
import pytest

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.epilogue import exp, silu, where
from tilewright.epilogue.expression import expression_of, standard, trace
from tilewright.epilogue.keys import function_key
from tilewright.errors import InvalidEpilogue, InvalidOperand

A = np.ones((8, 4), np.float32)
B = np.ones((4, 6), np.float32)
X = np.ones((8, 6), np.float32)
FACTOR = 2.0


def helper(x):
    return x * FACTOR


def refused(words, **options):
    with pytest.raises(InvalidEpilogue) as caught:
        tw.explain(A, B, gpu="H200", **options)
    assert words in str(caught.value), caught.value
    return str(caught.value)


# --- what is traced ---------------------------------------------------------------------------------------------------


def test_an_operation_is_kept_once_and_what_the_result_does_not_need_not_at_all():
    def function(acc, x, unused):
        _ = exp(acc) * unused
        return silu(acc + x) + silu(acc + x)

    traced = trace(function, {"x": None, "unused": None})
    assert traced.inputs == ("x",)
    assert traced.code.count("fused_silu") == 1
    assert "expf" not in traced.code
    assert traced.description == "silu(acc + x) + silu(acc + x)"


def test_a_power_of_a_positive_number_is_an_exponential():
    assert trace(lambda acc: 2**acc, {}).numbers == ()
    traced = trace(lambda acc: 10**acc, {})
    assert traced.numbers == (float(np.float32(math.log2(10))),)
    assert "exp2f(" in traced.code


def test_constants_are_rounded_to_float32_and_what_decides_the_form_is_written_exactly():
    assert trace(lambda acc: acc * 0.1 - 3, {}).numbers == (float(np.float32(0.1)), 3.0)
    assert "args.number" not in trace(lambda acc: (acc * 1.0 + 0) / 4 - 1, {}).code
    special = trace(lambda acc: where(acc > 0, math.inf, -math.inf) + acc * math.nan * -0.0, {}).code
    for text in ("0x7f800000", "0xff800000", "0x7fffffff"):
        assert text in special


@pytest.mark.parametrize(
    ("divisor", "form"), [(4.0, "* 0x1.0000000000000p-2f"), (-0.5, "* (-0x1.0000000000000p+1f)"), (3.0, "fused_divide")]
)
def test_division_by_a_power_of_two_is_a_product(divisor, form):
    assert form in trace(lambda acc: acc / divisor, {}).code


def test_powers_multiply_by_squaring():
    assert trace(lambda acc: acc**7, {}).code.count("*") == 4
    assert "sqrtf" in trace(lambda acc: acc**0.5, {}).code
    assert "rsqrtf" in trace(lambda acc: acc**-0.5, {}).code
    assert "fused_divide" in trace(lambda acc: acc**-2, {}).code
    assert trace(lambda acc: acc**0 + 0 * acc, {}).code.startswith("const float t0 = value[i]")


def test_numpys_scalars_and_functions_mean_the_same():
    by_numpy = trace(lambda acc: np.float32(2) * np.exp(acc) + np.maximum(acc, np.int64(1)), {})
    assert by_numpy.code == trace(lambda acc: 2.0 * exp(acc) + ep.maximum(acc, 1), {}).code
    chosen = trace(lambda acc: np.where(acc > 0, acc, 0.0), {})
    assert chosen.code == trace(lambda acc: where(acc > 0, acc, 0.0), {}).code


def test_indices_stay_whole_and_become_floats_where_floats_are():
    code = trace(lambda acc, row, col: where((col - row) % 3 <= row // 2, acc, acc * row), {}).code
    assert "long long" in code
    assert "static_cast<float>" in code
    assert "fused_remainder" in code
    assert "fused_quotient" in code


def test_numbers_and_defaults_are_parameters():
    traced = trace(lambda acc, s, t=0.25: acc * s + t, {"s": 1.5})
    assert traced.inputs == ()
    assert traced.numbers == (1.5, 0.25)
    assert trace(lambda acc, s, t=-7.5: acc * s + t, {"s": 3}).code == traced.code


def test_the_usual_ones_come_in_the_order_that_is_told():
    names = frozenset(("bias", "residual", "row_scale", "col_scale"))
    assert standard(names, "gelu").description == "gelu(((acc * row_scale) * col_scale) + bias) + residual"


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "words", "instead"),
    [
        (lambda acc: acc if acc > 0 else 0.0, "Python control flow", "epilogue.where"),
        (lambda acc: max(acc, 0.0), "Python control flow", "maximum"),
        (lambda acc: where(0 < acc < 1, acc, 0), "a < b < c", "& | ~"),
        (lambda acc: math.exp(acc), "math.*", "tilewright.epilogue"),
        (lambda acc: acc[0], "one element, not an array", ""),
        (lambda acc: acc @ acc, "one element, not an array", ""),
        (lambda acc: acc.sum(), "no .sum", ""),
        (lambda acc: np.sin(acc), "np.sin cannot be traced", ""),
        (lambda acc: acc + X, "ndarray", "as operands"),
        (lambda acc: acc**1.5, "exponent 1.5", "exp(n * log(x))"),
        (lambda acc: acc**100, "exponent 100", "(x ** 50) ** 2"),
        (lambda acc: 0**acc, "base 0 of a traced exponent is not a positive number", "Only those have"),
        (lambda acc: acc**acc, "exponent is not a number", "exp("),
        (lambda acc: acc + (acc > 0), "truth value", "where"),
        (lambda acc: where(acc, acc, 0), "not a condition", "Compare"),
        (lambda acc: (acc > 0) & acc, "joins truth values", "Compare"),
        (lambda acc: acc // 2, "// is for indices", "/"),
        (lambda acc, row: acc + row % 0, "% is for indices", ""),
        (lambda acc: acc * 1e39, "beyond float32", ""),
        (lambda acc: ~acc, "~ of a number", ""),
        (lambda acc: acc + exp(1.0), "got no traced value", "math.exp"),
        (lambda acc: np.clip(acc, -1, 1), "np.clip cannot be traced", "maximum"),
        (lambda acc: np.stack([acc, acc]), "np.stack cannot be traced", ""),
        (lambda acc: acc * np.bool_(True), "truth value", "where"),
        (lambda acc: divmod(acc, 2), "no number yet", ""),
        (lambda acc: f"{acc:.2f}", "no number yet", ""),
        (lambda acc: {acc: 1}, "no number yet", "where"),
        (lambda acc: pow(acc, 2, 3), "modulus", ""),
        (lambda acc: acc * 10**30, "integer 1000000000000000000000000000000 is out of range", "float"),
        (lambda acc: acc * 1j, "complex", ""),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_line_and_what_to_write(function, words, instead):
    text = refused(words, epilogue=function)
    assert "test_epilogue_trace.py:" in text
    assert instead in text


def test_parameters_and_operands_must_match():
    refused("names the operand 'x', and the call does not pass it", epilogue=lambda acc, x: acc + x)
    refused("the operand x is not a parameter of the lambda", epilogue=lambda acc: acc, x=X)
    refused("the operand bias is not a parameter of", epilogue=lambda acc: acc, bias=X)
    refused("matmul has no argument 'x'", x=X)
    refused("activation='relu' next to an epilogue", epilogue=lambda acc: acc, activation="relu")
    refused("activation='swish' is not known. Known: relu, gelu", activation="swish")
    refused("is not known. Known: relu, gelu", activation=["relu"])
    refused("'c', which is an argument of the product itself", epilogue=lambda acc, c: acc + c, c=X)
    refused("returned None", epilogue=lambda acc: None)
    refused("returned a tuple", epilogue=lambda acc: (acc, acc))
    refused("has no first parameter", epilogue=lambda: 0.0)
    refused("takes *more", epilogue=lambda acc, *more: acc)
    refused("is not a function", epilogue="relu")
    refused("is both its first parameter", epilogue=lambda x: x, x=X)
    refused("truth value", epilogue=lambda acc: acc > 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"bias": np.ones(8, np.float32)},
            "bias (8,) does not broadcast to the result's shape (8, 6) (one number per col",
        ),
        ({"row_scale": np.ones(6, np.float32)}, "one number per row: (8,) or (8, 1)"),
        ({"residual": X.T}, "residual (6, 8) does not broadcast"),
        ({"bias": np.ones(6, np.int64)}, "bias (shape (6,)) has dtype int64"),
        ({"bias": 1.0}, "bias=1.0 is a number, not an array"),
        ({"row_scale": X}, "row_scale (8, 6) does not broadcast to the result's shape (8, 6) (one number per row"),
        ({"epilogue": lambda acc, x: acc + x, "x": np.ones((2, 8, 6), np.float32)}, "x (2, 8, 6) does not broadcast"),
        ({"epilogue": lambda acc, x: acc + x, "x": "text"}, "x is of type str"),
    ],
)
def test_operands_that_do_not_fit_are_told_in_the_callers_terms(options, words):
    with pytest.raises(InvalidOperand) as caught:
        tw.explain(A, B, gpu="H200", **options)
    assert words in str(caught.value)


def test_an_operand_that_overlaps_out_must_be_out_itself():
    memory = np.zeros(60, np.float32)
    out = memory[:48].reshape(8, 6)
    tw.explain(A, B, out=out, residual=out, gpu="H200")
    for other in (memory[6:54].reshape(8, 6), memory[:6]):
        with pytest.raises(InvalidOperand, match="overlaps"):
            tw.explain(A, B, out=out, residual=other, gpu="H200")


# --- what is traced once ----------------------------------------------------------------------------------------------


def test_a_function_is_traced_once_while_nothing_it_names_changes():
    calls = []

    def make(scale):
        return lambda acc, x: calls.append(0) or acc * scale + x

    def make_pure(scale):
        return lambda acc, x: acc * scale + x

    for _ in range(3):
        expression_of(make(2.0), {"x": None})
    assert len(calls) == 3, "a list in its closure could change what it computes"
    assert expression_of(make_pure(2.0), {"x": None}) is expression_of(make_pure(2.0), {"x": None})


def test_a_changed_closure_default_global_or_number_is_another_expression(monkeypatch):
    def make(scale, shift=0.0):
        return lambda acc, y=shift: acc * scale + y

    assert function_key(make(2.0)) == function_key(make(2.0))
    assert function_key(make(2.0)) != function_key(make(3.0))
    assert function_key(make(2.0)) != function_key(make(2))
    assert function_key(make(0.0)) != function_key(make(-0.0))
    assert function_key(make(math.nan)) == function_key(make(math.nan))
    assert function_key(make(2.0, 1.0)) != function_key(make(2.0))
    direct, through = (lambda acc: acc * FACTOR), (lambda acc: helper(acc))
    before = function_key(direct), function_key(through)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert before[0] != function_key(direct)
    assert before[1] != function_key(through)
    assert expression_of(direct, {}).numbers == expression_of(through, {}).numbers == (5.0,)
    scaled = lambda acc, s: acc * s  # noqa: E731
    assert [expression_of(scaled, {"s": s}).numbers for s in (2.0, 3.0, None)] == [(2.0,), (3.0,), ()]


def test_one_code_over_other_globals_is_another_expression():
    def function(acc):
        try:
            return acc + LEFT
        except NameError:
            return acc - RIGHT  # noqa: F821

    left, right = (types.FunctionType(function.__code__, {name: 2.0}) for name in ("LEFT", "RIGHT"))
    assert None is not function_key(left) != function_key(right)
    assert function_key(left) == function_key(types.FunctionType(function.__code__, {"LEFT": 2.0}))


def test_what_hides_state_is_traced_at_every_call():
    class Scale:
        value = 2.0

        def __call__(self, acc):
            return acc * self.value

    scale = Scale()
    by_object = lambda acc: acc * scale.value  # noqa: E731
    assert function_key(scale) is None
    assert function_key(by_object) is None
    assert expression_of(by_object, {}).numbers == (2.0,)
    scale.value = 3.0
    assert expression_of(by_object, {}).numbers == expression_of(scale, {}).numbers == (3.0,)


def imports_within(acc):
    import settings_of_a_test

    return acc * settings_of_a_test.factor


def fetches_by_name(acc):
    return acc * getattr(sys.modules["settings_of_a_test"], "factor")  # noqa: B009


def fetches_from_globals(acc):
    return acc * globals()["settings"].factor


def keeps_it_itself(acc):
    return acc * keeps_it_itself.factor


NAMELESS: dict = {}
exec("def inner(x): return x * factor\ndef nameless(acc): return inner(acc)", NAMELESS)


@functools.wraps(silu)
def seems_to_be_silu(x):
    return x * settings.factor  # noqa: F821


def wraps_another(acc):
    return seems_to_be_silu(acc)


@pytest.mark.parametrize(
    "function",
    [imports_within, fetches_by_name, fetches_from_globals, keeps_it_itself, NAMELESS["nameless"], wraps_another],
    ids=lambda function: function.__name__,
)
def test_what_is_fetched_unseen_is_seen_to_change(function, monkeypatch):
    module = types.ModuleType("settings_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(globals(), "settings", module)
    for factor in (2.0, 3.0):
        module.factor = keeps_it_itself.factor = NAMELESS["factor"] = factor
        assert expression_of(function, {}).numbers == (factor,)


def test_an_import_of_what_stays_as_it_is_hides_nothing():
    def scaled(acc):
        import math

        return acc * math.pi

    assert function_key(scaled) is not None


def test_a_function_of_numpys_is_what_it_is_called():
    assert trace(np.exp, {}).code == trace(lambda acc: np.exp(acc), {}).code
    with pytest.raises(InvalidEpilogue, match=r"np.sin cannot be traced"):
        trace(np.sin, {})


def test_a_values_from_an_earlier_trace_is_refused():
    kept = []
    trace(lambda acc: kept.append(acc) or acc, {})
    with pytest.raises(InvalidEpilogue, match="earlier trace"):
        trace(lambda acc: acc + kept[0], {})


def test_every_comparison_and_operator_has_its_own_form():
    forms = {
        "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    }  # fmt: skip
    for text, compare in forms.items():
        assert f"t0 {text} " in trace(lambda acc, compare=compare: where(compare(acc, 2.0), acc, 0), {}).code
    code = trace(lambda acc: where(~((acc > 0) | (acc < -1)) & (acc != 0), -acc, abs(+acc)), {}).code
    for text in ("||", "&&", "!t", "-t0", "fabsf"):
        assert text in code


# --- what is told -----------------------------------------------------------------------------------------------------


def test_explain_tells_the_epilogue_and_how_its_operands_lie():
    text = str(tw.explain(A, B, epilogue=lambda acc, s, x, row: silu(acc) * s + x * row, gpu="H200",
                          s=np.ones((8, 1), np.float16), x=X))  # fmt: skip
    line = next(line for line in text.splitlines() if line.startswith("epilogue"))
    assert "(silu(acc) * s) + (x * row)" in line
    assert "s: f16, one per row" in text.replace("\n         ", " ")
    assert "row: an index" in text.replace("\n         ", " ")
    assert "epilogue" not in str(tw.explain(A, B, gpu="H200"))


def test_the_epilogues_operands_count_in_the_least_traffic():
    bare = tw.explain(A, B, gpu="H200").problem.bytes
    assert tw.explain(A, B, gpu="H200", residual=X).problem.bytes == bare + 8 * 6 * 4
    assert tw.explain(A, B, gpu="H200", bias=np.ones(6, np.float16)).problem.bytes == bare + 6 * 2
