"""numpy.matmul's rules for shapes, and a product's batch axes folded into as few launches as their strides allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

import numpy as np

from ..arrays.dtypes import LARGEST_EXTENT
from ..arrays.view import Operand, broadcast
from ..errors import InvalidOperand
from .problem import INDEX, GemmProblem, Matrix

GRID_BATCH = 65535
"""The most products of one launch: what a grid holds along y."""


@dataclass(frozen=True)
class Shapes:
    """A product's extents: `batch` axes of m x k by k x n, and the shape of the result as the caller sees it."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    result: tuple[int, ...]
    a_is_vector: bool
    b_is_vector: bool

    @property
    def full(self) -> tuple[int, ...]:
        """The result's shape before the axes of one-dimensional operands are dropped."""
        return (*self.batch, self.m, self.n)


def matmul_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> Shapes:
    """numpy.matmul's rules for two shapes. Raises InvalidOperand with both where they do not fit."""
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise InvalidOperand(f"{name} has no axis (shape ()); matmul needs one or more. To scale, use alpha.")
    *a_batch, m, k = a if len(a) > 1 else (1, *a)
    *b_batch, b_k, n = b if len(b) > 1 else (*b, 1)
    if k != b_k:
        where = "last" if len(b) == 1 else "second to last"
        raise InvalidOperand(f"a {a} and b {b} do not fit: a's last axis has {k} elements, b's {where} has {b_k}.")
    try:
        batch = np.broadcast_shapes(tuple(a_batch), tuple(b_batch)) if a_batch or b_batch else ()
    except RuntimeError as error:
        raise InvalidOperand(f"a {a} and b {b} have too many batch axes: {error}. Join some by reshape.") from None
    except ValueError:
        raise InvalidOperand(
            f"a {a} and b {b} do not fit: their batch axes {tuple(a_batch)} and {tuple(b_batch)} do not "
            "broadcast. Axes must be equal, or one of them 1."
        ) from None
    result = (*batch, *(() if len(a) == 1 else (m,)), *(() if len(b) == 1 else (n,)))
    return Shapes(batch, m, n, k, result, len(a) == 1, len(b) == 1)


def with_matrix_axes(operand: Operand, shapes: Shapes) -> Operand:
    """A view of the result's shape, given back the axes that one-dimensional operands dropped."""
    if operand.shape == shapes.full:
        return operand
    lead = len(shapes.batch)
    strides = list(operand.strides)
    if shapes.a_is_vector:
        strides.insert(lead, 0)
    if shapes.b_is_vector:
        strides.append(0)
    return operand.view(shapes.full, tuple(strides))


@dataclass(frozen=True)
class Product:
    """A product as launches: one problem, and for each launch how far its operands lie from their bases.

    An operand's offset is in bytes, in the order a, b, c, out, then the epilogue's; an index counts by itself.
    """

    problem: GemmProblem
    outer: tuple[tuple[int, tuple[int, ...]], ...]
    """Batch axes that are looped over: extent, and each operand's step."""
    steps: tuple[int, ...]
    """From one product of the grid's axis to the next."""
    fused: tuple[Matrix, ...] = ()
    """How the epilogue's operands lie in the problem."""

    def launches(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(products, offsets of the operands) of each launch. No launch for an empty result."""
        if self.problem.m == 0 or self.problem.n == 0 or self.problem.batch == 0:
            return
        for index in product(*(range(extent) for extent, _ in self.outer)):
            for first in range(0, self.problem.batch, GRID_BATCH):
                offsets = tuple(
                    first * self.steps[which]
                    + sum(i * step[which] for i, (_, step) in zip(index, self.outer, strict=True))
                    for which in range(len(self.steps))
                )
                yield min(GRID_BATCH, self.problem.batch - first), offsets


def _collapse(extents: tuple[int, ...], strides: list[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    """Batch axes as (extent, stride of each operand), neighbours merged where every operand walks them as one."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for extent, steps in zip(extents, zip(*strides, strict=True), strict=True):
        if extent == 1:
            continue
        if axes and all(outer == extent * inner for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    return axes


def lay_out(
    shapes: Shapes,
    a: Operand,
    b: Operand,
    c: Operand | None,
    out: Operand,
    fused: tuple[Operand, ...] = (),
    roles: tuple[str, ...] = (),
) -> Product:
    """Views as given (c and out of the result's shape, `fused` with both matrix axes) to one problem and its launches.
    `roles`: of each of `fused` the operand whose blocks it scales, or "".

    The largest collapsed batch axis becomes the grid's, so that the loop of launches is the shortest. Where b is one
    matrix for the whole batch and the rows of all others run on from one product to the next, the batch is folded into
    m: one product of taller matrices instead.
    """
    lead = len(shapes.batch)
    a_view = _matrix_view(a, shapes.batch, (shapes.m, shapes.k), vector_axis=0 if shapes.a_is_vector else None)
    b_view = _matrix_view(b, shapes.batch, (shapes.k, shapes.n), vector_axis=1 if shapes.b_is_vector else None)
    out_view = with_matrix_axes(out, shapes)
    c_view = with_matrix_axes(c, shapes) if c is not None else None
    views = [a_view, b_view, c_view or out_view, out_view, *fused]
    items = [1 if view.dtype == INDEX else view.item_bytes for view in views]
    axes = _collapse(shapes.batch, [view.strides[:lead] for view in views])
    none = (0,) * len(views)
    m, batch, steps = shapes.m, 1, none
    if 0 in shapes.batch:
        axes, batch = [], 0
    elif axes:
        chosen = max(range(len(axes)), key=lambda i: (axes[i][0], i))
        batch, steps = axes.pop(chosen)
    of_b = {1, *(which for which, role in enumerate(roles, 4) if role == "b")}  # their rows are not the result's
    rows = [view.strides[-2] for view in views]
    # A single row has no stride of its own: the batch's serves.
    runs_on = m == 1 or all(steps[which] == m * rows[which] for which in range(len(views)) if which not in of_b)
    if batch > 1 and all(steps[which] == 0 for which in of_b) and m > 0 and runs_on and m * batch <= LARGEST_EXTENT:
        if m == 1:
            rows = list(steps)
        m, batch, steps = m * batch, 1, none

    def matrix(which: int) -> Matrix:
        view, item = views[which], items[which]
        # one kernel serves every launch: it may rely on what all their addresses are multiples of
        places = [view.address, *(step[which] * item for _, step in axes)]
        row = rows[which] if which not in of_b else view.strides[-2]
        return Matrix(row, view.strides[-1], steps[which], gcd(16, *places))

    problem = GemmProblem(
        m, shapes.n, shapes.k, matrix(0), matrix(1), matrix(3), matrix(2) if c is not None else None, batch,
        a.dtype, out.dtype,
    )  # fmt: skip

    def in_bytes(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(value * item for value, item in zip(values, items, strict=True))

    lies = tuple(matrix(which) for which in range(4, len(views)))
    return Product(problem, tuple((extent, in_bytes(step)) for extent, step in axes), in_bytes(steps), lies)


def _matrix_view(operand: Operand, batch: tuple[int, ...], matrix: tuple[int, int], vector_axis: int | None) -> Operand:
    """a or b with both matrix axes, its batch axes broadcast."""
    if vector_axis is not None:
        strides = (0, *operand.strides) if vector_axis == 0 else (*operand.strides, 0)
        operand = operand.view(matrix, strides)
    return broadcast(operand, (*batch, *matrix))
