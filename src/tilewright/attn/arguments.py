"""The arguments of attention as callers give them: views held to one another, and options. All raise InvalidOperand."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import DTYPE_NAMES, SHORT_NAMES
from ..arrays.extents import check_out
from ..arrays.scalar import flag, scalar
from ..arrays.view import Operand, as_operand, broadcast, refuse_proxy
from ..errors import InvalidOperand
from .config import D_HEADS
from .problem import DTYPES
from .score import Modification


def read_views(q: Any, k: Any, v: Any, out: Any, axes: tuple[str, ...]) -> list[Operand]:
    """q, k, v and out, if given, held to one another."""
    able = "float16 and bfloat16, which tensor cores multiply"
    first = read_view(q, "q", 0, DTYPES, able)
    given = [first, *(read_view(x, name, first.stream or 0, DTYPES, able) for x, name in ((k, "k"), (v, "v")))]
    if out is not None:
        given.append(read_view(out, "out", first.stream or 0, DTYPES, able))
    for operand in given:
        if operand.dtype != first.dtype:
            names = DTYPE_NAMES[first.dtype], DTYPE_NAMES[operand.dtype]
            advice = "Pass an out of q's dtype, or none." if operand.name == "out" else "Convert one to the other's."
            raise InvalidOperand(f"q is {names[0]} and {operand.name} is {names[1]}. {advice}")
        if len(operand.shape) != len(axes):
            raise InvalidOperand(
                f"{operand.name} has shape {operand.shape}; it must have the {len(axes)} axes [{', '.join(axes)}]."
            )
        check_one_device(first, operand)
    heads, d = axes.index("heads"), len(axes) - 1
    k_view, v_view = given[1:3]
    if k_view.shape[:-1] != v_view.shape[:-1]:
        raise InvalidOperand(f"k {k_view.shape} and v {v_view.shape} must agree in all but their last axis.")
    if first.shape[d] != k_view.shape[d]:
        raise InvalidOperand(f"q {first.shape} and k {k_view.shape} differ in d_head, their last axis.")
    for one in (first, v_view):
        if not 1 <= one.shape[d] <= max(D_HEADS):
            raise InvalidOperand(f"{one.name} {one.shape} has d_head {one.shape[d]}; kernels take 1 to {max(D_HEADS)}.")
    shared, own = k_view.shape[heads], first.shape[heads]
    if own % shared if shared else own:
        raise InvalidOperand(
            f"q {first.shape} has {own} heads and k {k_view.shape} has {shared}: q's must be a multiple of k's, which "
            "are shared evenly."
        )
    if out is not None and given[3].shape != (shape := out_shape_of(first, v_view)):
        whose = "exactly q's" if shape == first.shape else "q's rows of v's d_head"
        raise InvalidOperand(f"out has shape {given[3].shape}; the result has {whose}, {shape}.")
    return given


def out_shape_of(q: Operand, v: Operand) -> tuple[int, ...]:
    return (*q.shape[:-1], v.shape[-1])


def read_view(value: Any, name: str, stream: int, dtypes: Sequence[str], able: str) -> Operand:
    """The view of an argument of one of `dtypes`; `able` says which these are."""
    refuse_proxy(value, name)
    dtype = DTYPE_NAMES[value.dtype] if isinstance(value, Operand) else getattr(value, "dtype", None)
    found = str(dtype).removeprefix("torch.") if dtype is not None else None
    operand = as_operand(value, name, stream) if found is None or SHORT_NAMES.get(found) in dtypes else None
    if operand is not None and operand.dtype in dtypes:
        return operand
    if operand is not None:
        found = DTYPE_NAMES[operand.dtype]
    advice = _advice(name, str(dtype), dtypes)
    shape = tuple(getattr(value, "shape", ()))
    raise InvalidOperand(f"{name} (shape {shape}) is {found}; attention takes {able}. {advice}")


def _advice(name: str, dtype: str, dtypes: Sequence[str]) -> str:
    """Return what to do with an argument whose dtype is not one of `dtypes`."""
    if name == "out":
        return "Pass an out of q's dtype, or none."
    of_torch = dtype.startswith("torch.")
    able = dtypes if of_torch else [one for one in dtypes if one != "bf16"]  # NumPy has none
    wanted = DTYPE_NAMES["bf16" if of_torch and "bf16" in able else able[-1]]
    cast = f"{name}.to(torch.{wanted})" if of_torch else f"{name}.astype({wanted!r})"
    if name == "bias" and "int" in dtype:
        mask = "bias.bool()" if of_torch else "bias.astype(bool)"
        return f"For a mask, pass {mask}: its zeros and ones would be added to the scores. For scores, pass {cast}."
    return f"Convert it: {cast}."


def check_one_device(q: Operand, other: Operand) -> None:
    if q.device != other.device:
        places = ["the host" if o.device is None else f"GPU {o.device}" for o in (q, other)]
        raise InvalidOperand(f"q is on {places[0]} and {other.name} on {places[1]}. Move them to one device.")


def swapped(view: Operand) -> Operand:
    """[batch, rows, heads, d] as [batch, heads, rows, d]."""
    (b, s, h, d), (sb, ss, sh, sd) = view.shape, view.strides
    return view.view((b, h, s, d), (sb, sh, ss, sd))


def dense_result(q: Operand, shape: tuple[int, ...], layout: str) -> Operand:
    made = dense_view(q, "out", shape)
    return swapped(made) if layout == "bshd" else made


def dense_view(q: Operand, name: str, shape: tuple[int, ...]) -> Operand:
    """The view of a new dense array where q is, at address 0."""
    strides = tuple(0 if e <= 1 else s for e, s in zip(shape, dense_strides(shape), strict=True))
    return Operand(name, q.kind, 0, shape, strides, q.dtype, q.device, stream=q.stream)


def check_given_out(out: Any, view: Operand, inputs: list[Operand]) -> None:
    if out is not None:
        check_out(view, inputs, None)


def broadcast_bias(bias: Operand, scores: tuple[int, ...]) -> Operand:
    try:
        return broadcast(bias, scores)
    except InvalidOperand:
        raise InvalidOperand(
            f"bias {bias.shape} does not broadcast to the scores {scores}, [batch, heads, q's rows, k's rows]."
        ) from None


def read_window(window: Any) -> tuple[int, int]:
    """(left, right), -1 for a side without limit. Raises InvalidOperand."""
    if window is None:
        return -1, -1
    try:
        left, right = (-1 if side is None else operator.index(side) for side in window)
    except (TypeError, ValueError) as error:
        raise InvalidOperand(
            f"window={window!r} must be two whole numbers of keys, (left, right); -1 for no limit."
        ) from error
    return left, right


def _narrowed(window: tuple[int, int], q: Operand, keys: int) -> tuple[int, int]:
    """A side that reaches past every key limits nothing, and kernels without limits are faster."""
    left, right = window
    return -1 if left >= keys - 1 else left, -1 if right >= q.shape[2] - 1 else right


def read_options(
    q: Operand,
    keys: int,
    is_causal: bool,
    scale: float | None,
    window: Any,
    softcap: float,
    modify: Modification,
    with_lse: bool,
) -> dict[str, Any]:
    return {
        "is_causal": flag(is_causal, "is_causal"),
        "scale": scalar(1 / math.sqrt(q.shape[3]) if scale is None else scale, "scale"),
        "window": _narrowed(read_window(window), q, keys),
        "softcap": scalar(softcap, "softcap"),
        "modify": modify.code,
        "numbers": modify.numbers,
        "with_lse": flag(with_lse, "return_lse"),
    }
