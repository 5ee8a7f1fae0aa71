"""Scales of fp8 operands of a grouped product: of all of an operand, of groups, of lines, or of blocks along k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from ..arrays.dtypes import DTYPE_NAMES, FP8, ceil_div
from ..arrays.view import Operand, as_operand
from ..epilogue.expression import standard
from ..errors import InvalidOperand
from ..gemm.fusion import fold_numbers
from ..gemm.problem import SCALE_BLOCK, Epilogue, FusedOperand, Matrix


@dataclass(frozen=True)
class Scales:
    """The scales that products are multiplied by."""

    alpha: float = 1.0
    """The scales that are numbers."""
    views: tuple[Operand, ...] = ()
    """The arrays, in the order of the epilogue's operands."""
    epilogue: Epilogue | None = None


NO_SCALES = Scales()


@dataclass(frozen=True)
class _Laid:
    """An array of scales as the result sees it: strides from group to group, row to row and column to column, of blocks
    for those that have some."""

    view: Operand
    matrix: Matrix
    role: str = ""


def read_scales(given: Mapping[str, Any], axis: str, sizes: tuple[int, int, int], groups: int, a: Operand) -> Scales:
    """`given`: a_scale and b_scale, each a number, an array or None. `sizes`: m, n and k, the cut one as a whole.

    Raises InvalidOperand.
    """
    alpha, *arrays = fold_numbers(None, 1.0, given["a_scale"], given["b_scale"])
    laid: dict[str, _Laid] = {}
    for name, value in zip(given, arrays, strict=True):
        if given[name] is not None and a.dtype not in FP8:
            raise InvalidOperand(f"{name} scales fp8 operands; these are {DTYPE_NAMES[a.dtype]}. Scale the result.")
        if value is not None:
            laid[name] = _lay(as_operand(value, name, a.stream or 0), axis, sizes, groups)
    if not laid or groups == 0:
        return Scales(alpha)
    whole = [name for name in laid if not laid[name].role]
    expression = standard(frozenset(whole), None)
    order = [*expression.inputs, *(name for name in laid if laid[name].role)]
    operands = tuple(FusedOperand(name, "f32", laid[name].matrix, scales=laid[name].role) for name in order)
    code = expression.code if whole else ""
    epilogue = Epilogue(expression.description, code, operands, expression.nodes, expression.numbers)
    return Scales(alpha, tuple(laid[name].view for name in order), epilogue)


def _lay(scale: Operand, axis: str, sizes: tuple[int, int, int], groups: int) -> _Laid:
    if scale.dtype != "f32":
        raise InvalidOperand(f"{scale} scales {scale.name[0]}; scales are float32.")
    of, (m, n, k) = scale.name[0], sizes
    own = "m" if of == "a" else "n"
    lines = (m, 1) if of == "a" else (1, n)
    blocks = (m, ceil_div(k, SCALE_BLOCK)) if of == "a" else (ceil_div(k, SCALE_BLOCK), ceil_div(n, SCALE_BLOCK))
    no_blocks = axis == "k" or (axis == "n" and of == "b")
    *lead, rows, cols = (1, 1, 1, *scale.shape)[-max(len(scale.shape), 2) :]
    *far, down, across = (0, 0, 0, *scale.strides)[-max(len(scale.shape), 2) :]
    by_group = bool(lead) and lead[0] != 1
    fits = not lead or (len(lead) == 1 and lead[0] in (1, groups))
    fits = fits and (rows, cols) in ((1, 1), lines, *(() if no_blocks else (blocks,)))
    if fits and by_group and own == axis and (rows, cols) != (1, 1):
        fits = False  # its lines are cut into groups already
    if not fits:
        choices = ["()", f"({groups}, 1, 1) for groups", f"{lines} for {'rows' if of == 'a' else 'columns'}"]
        if own != axis:
            choices.append(f"({groups}, {', '.join(map(str, lines))}) for those of each group")
        if not no_blocks:
            choices.append(f"{blocks} for blocks of {'1 x' if of == 'a' else f'{SCALE_BLOCK} x'} {SCALE_BLOCK}"
                           + ("" if own == axis else f", ({groups}, ...) for those of each group"))  # fmt: skip
        raise InvalidOperand(f"{scale.name} has shape {scale.shape}; scales of {of} here are {'; '.join(choices)}.")
    role = of if (rows, cols) == blocks and (rows, cols) not in ((1, 1), lines) else ""
    steps = far[0] if by_group else 0, down if rows > 1 else 0, across if cols > 1 else 0
    begins = steps[{"m": 1, "n": 2}[axis]] * scale.item_bytes if axis == own else 0  # a group's own may be anywhere
    return _Laid(scale, Matrix(steps[1], steps[2], steps[0], gcd(16, scale.address, begins)), role)


def check_devices(first: Operand, others: Sequence[Operand]) -> None:
    """Raise InvalidOperand where one of `others` is not on the device of `first`."""
    for other in others:
        if other.device != first.device:
            places = ["the host" if one.device is None else f"GPU {one.device}" for one in (first, other)]
            raise InvalidOperand(f"{first.name} is on {places[0]} and {other.name} on {places[1]}. Move them to one "
                                 "device.")  # fmt: skip
