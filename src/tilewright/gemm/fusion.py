"""The fusion that a call asks for: an expression, and its operands as views laid over the result."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import DTYPE_NAMES, FP8, ceil_div
from ..arrays.scalar import scalar
from ..arrays.view import Operand, as_operand, broadcast
from ..epilogue.codegen import Expression, finish
from ..epilogue.expression import INDICES, SCALES, expression_of, standard, standard_graph, trace
from ..epilogue.functions import ACTIVATIONS
from ..errors import InvalidEpilogue, InvalidOperand, did_you_mean
from .problem import INDEX, SCALE_BLOCK
from .shapes import Shapes, with_matrix_axes

KEYWORDS = (
    "c", "alpha", "beta", "out", "out_dtype", "bias", "activation", "residual", "row_scale", "col_scale", "epilogue",
    "deterministic", "batch_invariant", "verify", "precision", "rung", "config", "a_scale", "b_scale",
)  # fmt: skip
"""matmul's own keywords: any other is an operand of an epilogue, or a misspelt one of these."""


class Request(NamedTuple):
    """A caller's request to fuse, not yet read."""

    function: Callable[..., Any] | None
    activation: str | None
    operands: Mapping[str, Any]


def request(
    function: Any, activation: str | None, bias: Any, residual: Any, row_scale: Any, col_scale: Any,
    operands: Mapping[str, Any], a_scale: Any = None, b_scale: Any = None,
) -> Request | None:  # fmt: skip
    """The request of a call; None when nothing is to be fused. On the warm path: every microsecond counts."""
    given = {}
    if a_scale is not None:
        given["a_scale"] = a_scale
    if b_scale is not None:
        given["b_scale"] = b_scale
    if bias is not None:
        given["bias"] = bias
    if residual is not None:
        given["residual"] = residual
    if row_scale is not None:
        given["row_scale"] = row_scale
    if col_scale is not None:
        given["col_scale"] = col_scale
    if function is not None:
        if activation is not None:
            raise InvalidEpilogue(
                f"activation={activation!r} next to an epilogue: its place in the expression is not known. Write it "
                f"there: epilogue=lambda acc, ...: tilewright.epilogue.{activation}(...)"
            )
        given.update(operands)
    elif operands:
        name = next(iter(operands))
        raise InvalidEpilogue(
            f"matmul has no argument {name!r}.{did_you_mean(name, KEYWORDS)} Operands of your own need an epilogue "
            f"that names them: epilogue=lambda acc, {', '.join(operands)}: ..."
        )
    elif activation is None and not given:
        return None
    return Request(function, activation, given)


def fold_numbers(a: Any, alpha: Any, a_scale: Any, b_scale: Any) -> tuple[Any, Any, Any]:
    """alpha times the scales that are numbers, and those that are arrays.

    Raises InvalidOperand where `a` is not fp8, or a number beyond float32.
    """
    arrays = []
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        if isinstance(scale, (numbers.Real, np.generic)):
            if getattr(dtype := getattr(a, "dtype", None), "itemsize", 1) > 1:
                raise InvalidOperand(f"{name} scales fp8 operands; a has dtype {dtype}. To scale, use alpha.")
            scalar(scale, name), scalar(alpha, "alpha")
            alpha, scale = float(alpha) * float(scale), None
        arrays.append(scale)
    return alpha, *arrays


@dataclass(frozen=True)
class Fusion:
    """A request read and checked."""

    expression: Expression
    views: tuple[Operand, ...]
    """For each of the expression's inputs, with the batch axes and both matrix axes of the result: arrays broadcast by
    strides of 0, and indices (dtype "index", at address 0, whose strides count). Last the scales of blocks, [..., rows,
    columns] of blocks."""
    given: tuple[Operand, ...]
    """All arrays as the caller gave them, also those that the result does not depend on."""
    scales: tuple[str, ...] = ()
    """The operands, "a" or "b", whose blocks the last of the views scale."""

    @property
    def roles(self) -> tuple[str, ...]:
        """For each of the views the operand whose blocks it scales; "" for most."""
        return ("",) * (len(self.views) - len(self.scales)) + self.scales


def check_activation(
    activation: Any, otherwise: str = "anything else is an epilogue: epilogue=lambda acc: ..."
) -> None:  # fmt: skip
    """Raise InvalidEpilogue for an unknown one; `otherwise` says how to have it."""
    if activation is not None and (type(activation) is not str or activation not in ACTIVATIONS):
        near = did_you_mean(activation, ACTIVATIONS) if isinstance(activation, str) else ""
        raise InvalidEpilogue(
            f"activation={activation!r} is not known.{near} Known: {', '.join(ACTIVATIONS)}; {otherwise}"
        )


def read_fusion(asked: Request, shapes: Shapes, a: Operand, added: tuple[Operand, float] | None = None) -> Fusion:
    """`added`: c and beta, where c is an operand of the expression.

    Raises InvalidOperand and InvalidEpilogue in the caller's terms.
    """
    check_activation(asked.activation)
    arrays: dict[str, Operand] = {}
    known: dict[str, float | int | bool | None] = {}
    laid: dict[str, Operand] = {}
    blocks: dict[str, Operand] = {}
    for name, value in asked.operands.items():
        if name in SCALES:
            arrays[name] = as_operand(value, name, a.stream or 0)
            view, of_blocks = _scale(arrays[name], shapes, a)
            if of_blocks:
                blocks[name[0]] = view
            else:
                laid[name] = view
                known[name] = None
            continue
        if asked.function is not None and isinstance(value, (numbers.Real, np.generic)):
            known[name] = _number(name, value)
        elif isinstance(value, (numbers.Number, np.generic)):
            raise InvalidOperand(
                f"{name}={value!r} is a number, not an array. To scale, use alpha; a number of your own belongs in an "
                "epilogue: epilogue=lambda acc: acc + 2.0"
            )
        else:
            arrays[name] = as_operand(value, name, a.stream or 0)
            known[name] = None
    given = tuple(arrays.values())
    if added is not None:
        arrays["c"], known["c"] = added[0], None
    for name, array in arrays.items():
        if name not in SCALES:
            if array.dtype in FP8:
                raise InvalidOperand(f"{array}: fp8 is for a, b and the result. Convert it to float32 or bfloat16.")
            laid[name] = with_matrix_axes(_over_result(name, array, shapes), shapes)
    expression = _expression(asked, known, added[1] if added is not None else None)
    views = tuple(laid[name] if name in laid else _index(name, shapes, a) for name in expression.inputs)
    return Fusion(expression, (*views, *blocks.values()), given, tuple(blocks))


def _expression(asked: Request, known: Mapping[str, float | int | bool | None], beta: float | None) -> Expression:
    """The expression of operands by name. `beta`: that of c, where c is one of them."""
    if asked.function is None:
        names = frozenset(known)
        return (
            standard(names, asked.activation)
            if beta is None
            else finish(*standard_graph(names, asked.activation, beta))
        )
    if beta is None:
        return expression_of(asked.function, known)
    return trace(asked.function, {**known, "beta": beta})


def _scale(scale: Operand, shapes: Shapes, a: Operand) -> tuple[Operand, bool]:
    """A scale with the batch axes and two axes more; whether these count blocks. Else they are the result's."""
    of, shape = scale.name[0], scale.shape
    if a.dtype not in FP8:
        raise InvalidOperand(
            f"{scale.name} scales fp8 operands; these are {DTYPE_NAMES[a.dtype]}. Use alpha, row_scale or col_scale."
        )
    if scale.dtype != "f32":
        raise InvalidOperand(f"{scale} scales {of}; scales are float32.")
    if (shapes.a_is_vector if of == "a" else shapes.b_is_vector) and len(shape) == 1:
        scale = (
            scale.view((1, *shape), (0, *scale.strides)) if of == "a" else scale.view((*shape, 1), (*scale.strides, 0))
        )
    elif shape == (1,):
        scale = scale.view((), ())
    k_blocks = ceil_div(shapes.k, SCALE_BLOCK)
    lines, blocks = (
        ((shapes.m, 1), (shapes.m, k_blocks)) if of == "a"
        else ((1, shapes.n), (k_blocks, ceil_div(shapes.n, SCALE_BLOCK)))
    )  # fmt: skip
    last = scale.shape[-2:]
    try:
        if last in ((), (1, 1), lines):
            return broadcast(scale, shapes.full), False
        if last == blocks:
            return broadcast(scale, (*shapes.batch, *blocks)), True
    except InvalidOperand:
        pass
    raise InvalidOperand(
        f"{scale.name} has shape {shape}; scales of {of} are () for all of it, {lines} for its "
        f"{'rows' if of == 'a' else 'columns'}, or {blocks} for its blocks of "
        f"{'1 x' if of == 'a' else f'{SCALE_BLOCK} x'} {SCALE_BLOCK}; batch axes {shapes.batch} may lead."
    )


def _number(name: str, value: Any) -> float | int | bool:
    try:
        plain = value.item() if isinstance(value, np.generic) else value
        return plain if isinstance(plain, (bool, int)) else float(plain)
    except (TypeError, ValueError) as error:
        raise InvalidOperand(f"{name}={value!r} is not a real number: {error}.") from error


def _over_result(name: str, array: Operand, shapes: Shapes) -> Operand:
    """The operand broadcast to the result's shape, by NumPy's rule; a row_scale's last axis is the result's rows'."""
    laid = array
    has_rows_and_columns = not (shapes.a_is_vector or shapes.b_is_vector)
    if name == "row_scale" and has_rows_and_columns and array.shape and not _is_column(array.shape, shapes.m):
        laid = array.view((*array.shape, 1), (*array.strides, 0))
    try:
        return broadcast(laid, shapes.result)
    except InvalidOperand:
        able = {
            "bias": f"one number per column: ({shapes.n},), or per row: ({shapes.m}, 1)",
            "row_scale": f"one number per row: ({shapes.m},) or ({shapes.m}, 1)",
            "col_scale": f"one number per column: ({shapes.n},)",
        }.get(name, "axes must be equal, or 1, counted from the last")
        raise InvalidOperand(
            f"{name} {array.shape} does not broadcast to the result's shape {shapes.result} ({able}; batch axes may "
            "lead)."
        ) from None


def _is_column(shape: tuple[int, ...], m: int) -> bool:
    return len(shape) >= 2 and shape[-1] == 1 and shape[-2] in (1, m)


def _index(name: str, shapes: Shapes, a: Operand) -> Operand:
    """An index as a view: its value at an element is where a stride would lead."""
    steps = {
        "batch": (*dense_strides(shapes.batch), 0, 0),
        "row": (*(0 for _ in shapes.batch), 1, 0),
        "col": (*(0 for _ in shapes.batch), 0, 1),
    }[INDICES[INDICES.index(name)]]
    strides = tuple(0 if extent <= 1 else step for extent, step in zip(shapes.full, steps, strict=True))
    return Operand(name, a.kind, 0, shapes.full, strides, INDEX, a.device, stream=a.stream)
