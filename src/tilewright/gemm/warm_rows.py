"""Products like an earlier one but for their number of rows: no array is read, checked or laid out again.

One key holds all that decides such a product but that number, which changes nothing of its problem but `m`. What is
left is to plan it (rows.py), and to write its launches down where the warm path finds them (warm.py).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from ..arrays.dlpack import dense_strides
from ..jit import device, device_calls
from ..jit.launch import current_executor
from ..plan.demands import Demands
from ..run import libraries
from ..run.ready import ready
from ..run.warm import Calls, remembered
from . import warm
from .call import Call
from .fusion import Request
from .problem import INDEX
from .rows import plan_rows
from .shapes import Product
from .stages import program_of


class Pattern(NamedTuple):
    """A product that ran, for others with another number of rows."""

    product: Product
    call: warm.WarmProduct
    demands: Demands
    numbers: int
    """How many of the expression's numbers each launch is given."""


_patterns: Calls[Pattern] = Calls()


def note(call: Call, known: warm.WarmProduct, asked: Request | None) -> None:
    """Let later products like one that is remembered now be found, where the number of rows decides nothing but `m`:
    those with one matrix b, without c or out, with nothing fused but vectors along the columns and numbers."""
    library = libraries.known.get(type(call.a.owner))
    product, fusion = call.product, call.fusion
    if library is None or any(type(one.owner) not in library.types for one in (call.a, *call.others)):
        return
    if call.given_c is not None or call.out_is_given:
        return
    if call.options.rung is not None or call.options.config is not None or len(call.b.shape) != 2:
        return
    if product.problem.m < 2 or product.problem.batch != 1 or product.outer or len(call.a.shape) < 2:
        return
    if fusion is not None and (
        asked is None or "row_scale" in asked.operands or any(len(one.shape) != 1 for one in fusion.given)
        or any(view.dtype == INDEX for view in fusion.views)
    ):  # fmt: skip
        return
    form, numbers = warm.own_form(call, asked)
    rows = library.rows(call.a.owner, call.b.owner)
    if rows is not None:
        pattern = Pattern(product, replace(known, check=None), call.options.demands, len(numbers))
        _patterns.put(_key(library, rows[1], tuple(call.options), asked, form), pattern)


def _key(
    library: libraries.Library, lies: libraries.Signature, options: tuple[Any, ...], asked: Request | None, form: Any
) -> Any:
    return lies, options, form, () if asked is None else warm.fused_signatures(library, asked)


def find(a: Any, b: Any, options: tuple[Any, ...], asked: Request | None) -> bool:
    """Return whether the warm path knows the product now: one like it ran with another number of rows. Its arguments
    are those of `warm_matmul` without c, out and beta. Raises as planning and compiling do."""
    library = libraries.known.get(type(a))
    if library is None or type(b) not in library.types or current_executor() is not None:
        return False
    try:
        rows = library.rows(a, b)
        if rows is None:
            return False
        form = None if asked is None else warm.form_of(asked)[0]
        pattern = _patterns.get(_key(library, rows[1], options, asked, form))
    except (AttributeError, RuntimeError, TypeError):
        return False
    lead, m = rows[0], prod(rows[0])
    if pattern is None or m < 2:
        return False
    ordinal = pattern.call.launches.ordinal
    if not library.is_plain(ordinal) or device_calls.is_capturing(library.stream(ordinal), ordinal):
        return False
    product = replace(pattern.product, problem=replace(pattern.product.problem, m=m))
    gpu = device.device(ordinal).gpu
    made = ready(program_of(product, plan_rows(product, gpu, pattern.demands)), gpu.arch)
    shape = (*lead, product.problem.n)
    with device.bound_to(ordinal):
        launches = remembered(made, ordinal, *warm.names_of(len(pattern.call.fused), pattern.numbers))
    call = replace(pattern.call, launches=launches, shape=shape, strides=dense_strides(shape))
    warm.calls.put(warm.key_of(library, a, b, None, False, None, options, asked, form), call)
    return True
