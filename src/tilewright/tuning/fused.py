"""Epilogues in tuning: the usual ones by name for a dense problem, and the reference for their results.

A candidate's sum may be off by what rounding k products allows (verify.allowed_error). How far that moves an element
after the epilogue depends on the element: a scale multiplies it, silu does by up to 1.1, relu may drop it. So the
reference is made three times: of the sum, and of the sum moved by that much either way. An element may be off by as far
as the reference moved there, plus what computing the expression in fp32 may lose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays.dtypes import FP8, ITEM_BYTES
from ..epilogue.evaluate import evaluate
from ..epilogue.expression import standard
from ..epilogue.functions import ACTIVATIONS
from ..errors import InvalidEpilogue
from ..gemm.problem import Epilogue, FusedOperand, GemmProblem, Matrix, row_major

OPERANDS = ("bias", "residual", "row_scale", "col_scale")
IN_FP32 = 2.0**-20
"""What an expression's fp32 result may be off by, of the largest number on the way: a few of its functions' ulp."""
IN_BRIEF = 2.0**-15
"""The same where results have 16 bits: functions are off by 2^-16 (tilewright.epilogue), and the largest number may be
larger than those looked at."""


def read_words(text: str) -> tuple[frozenset[str], str | None]:
    """(operands, activation) of words such as "bias,silu,residual". Raises InvalidEpilogue for others."""
    operands: set[str] = set()
    activation: str | None = None
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word in OPERANDS:
            if word in operands:
                raise InvalidEpilogue(f"--epilogue: {word} is named twice. Name each operand once.")
            operands.add(word)
        elif word not in ACTIVATIONS:
            known = ", ".join((*OPERANDS, *ACTIVATIONS))
            raise InvalidEpilogue(f"--epilogue: {word!r} is not known. Known: {known}; join them by commas.")
        elif activation is not None:
            raise InvalidEpilogue(f"--epilogue: {activation} and {word} are two activations. Name one.")
        else:
            activation = word
    if not operands and activation is None:
        raise InvalidEpilogue(f"--epilogue: {text!r} names nothing. Write bias,silu,residual, or omit it.")
    return frozenset(operands), activation


def with_epilogue(problem: GemmProblem, operands: frozenset[str], activation: str | None) -> GemmProblem:
    """The problem with activation(sum * row_scale * col_scale + bias) + residual, of what is named.

    Operands are dense and of A's dtype (of fp8 the result's); bias and col_scale hold a number per column,
    row_scale one per row.
    """
    traced = standard(operands, activation)
    lies = {"row_scale": Matrix(1, 0), "residual": row_major(problem.m, problem.n, problem.batch)}
    dtype = problem.out_dtype if problem.dtype in FP8 else problem.dtype
    reads = tuple(FusedOperand(name, dtype, lies.get(name, Matrix(0, 1))) for name in traced.inputs)
    return replace(problem, epilogue=Epilogue(traced.description, traced.code, reads, traced.nodes, traced.numbers))


def moved(epilogue: Epilogue) -> Epilogue:
    """The same epilogue of the sum plus a number, to which one more operand points."""
    shift = FusedOperand("shift", "f32", Matrix(0, 0))
    return Epilogue(
        f"{epilogue.description} of acc + shift", f"value[i] += in{len(epilogue.operands)}[i];\n{epilogue.code}",
        (*epilogue.operands, shift), numbers=epilogue.numbers,
    )  # fmt: skip


@dataclass(frozen=True)
class Exact:
    """Elements in float64 after an epilogue. `off`: how far an fp32 result may be from each; `largest`: the largest
    number on the way."""

    values: np.ndarray[Any, Any]
    off: np.ndarray[Any, Any]
    largest: float


def exact(epilogue: Epilogue, sums: np.ndarray[Any, Any], error: float, inputs: dict[str, np.ndarray]) -> Exact:
    """Apply the epilogue to exact sums, where a kernel's may be off by `error`. `inputs`: its operands by name.

    Raises InvalidEpilogue for one whose operations are not known, or that is not finite on these numbers.
    """
    if not epilogue.nodes:
        raise InvalidEpilogue(
            f"{epilogue.description}: only its code is known, so no result could be verified. Let matmul's arguments "
            "make it: tilewright.tune(a, b, epilogue=...)."
        )
    nodes, numbers = epilogue.nodes, epilogue.numbers
    values, largest = evaluate(nodes, sums, inputs, numbers)
    sides = [evaluate(nodes, sums + shift, inputs, numbers)[0] for shift in (error, -error)]
    if not all(np.isfinite(side).all() for side in (values, *sides)):
        raise InvalidEpilogue(
            f"{epilogue.description} is not finite for all random normal operands (sums up to "
            f"{np.abs(sums).max():.3g}), so no result could be verified. Tune with an epilogue that is."
        )
    off = np.maximum(*(np.abs(side - values) for side in sides)) + IN_FP32 * largest
    return Exact(values, off, largest)


def in_fp32(out_dtype: str) -> float:
    """The part of the largest number on the way that computing the expression may lose."""
    return IN_FP32 if ITEM_BYTES[out_dtype] == 4 else IN_BRIEF
