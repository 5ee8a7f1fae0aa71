"""A call of grouped_matmul, read and checked: views, which axis is cut, the problem. Nothing is computed here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import DTYPE_NAMES, FP8, parse_dtype
from ..arrays.extents import check_out
from ..arrays.view import Operand, as_operand
from ..errors import InvalidOperand
from ..gemm.params import fused_base
from ..gemm.problem import GemmProblem, Matrix
from ..gemm.stages import widened_pitch
from ..gpus import Gpu
from ..plan.plan import Plan
from ..run.program import Program
from ..run.runner import Output, Unchecked
from .ends import Ends, read_ends
from .family import plan_grouped
from .problem import GroupedProblem, Widened, typical
from .scales import NO_SCALES, Scales, check_devices, read_scales
from .stages import program_of


@dataclass(frozen=True)
class GroupedCall(Unchecked):
    """A checked call."""

    a: Operand
    b: Operand
    out: Operand
    """Where the result goes; of a new one only the layout counts: dense, aligned, at address 0."""
    ends: Ends
    problem: GroupedProblem
    plan_with: tuple[str | None, Any]
    """The rung and config that the caller named."""
    given_out: Any = None
    """The caller's array for the result."""
    scales: Scales = NO_SCALES

    @property
    def what(self) -> str:
        return f"this grouped product ({self.a.shape} @ {self.b.shape}, {self.a.dtype})"

    @property
    def first(self) -> Operand:
        return self.a

    @property
    def others(self) -> tuple[Operand, ...]:
        given = (self.b, self.ends.operand, self.out if self.given_out is not None else None, *self.scales.views)
        return tuple(operand for operand in given if operand is not None)

    @property
    def inputs(self) -> tuple[tuple[str, Operand | np.ndarray | None], ...]:
        ends = self.ends
        scales = ((fused_base(number), view) for number, view in enumerate(self.scales.views))
        return ("a", self.a), ("b", self.b), ("ends", ends.operand if ends.operand is not None else ends.host), *scales

    @property
    def outputs(self) -> tuple[Output, ...]:
        keeps = self.given_out is not None and self.problem.axis != "k"
        return (Output("out", self.out, self.out.shape, self.given_out, keeps),)

    @property
    def scalars(self) -> dict[str, float]:
        """The scalars as launches have them: the empty sum is 0, also times infinity."""
        return {"alpha": self.scales.alpha if self.problem.product.k else 0.0}

    def plan(self, gpu: Gpu) -> Plan:
        """Raises ConfigRejected where no plan can run the call."""
        return plan_grouped(self.problem, gpu, *self.plan_with)

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None for an empty result. Raises ConfigRejected."""
        if self.out.size == 0:
            return None
        return program_of(self.problem, self.plan(gpu))


FORMS = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}
"""The axis that is cut into groups, by the axes that a and b have."""


def read_grouped(
    a: Any, b: Any, offs: Any, out: Any = None, out_dtype: Any = None, plan_with: tuple[str | None, Any] = (None, None),
    a_scale: Any = None, b_scale: Any = None,
) -> GroupedCall:  # fmt: skip
    """Read the arguments of `grouped_matmul` but for two arrays of three axes. Raises InvalidOperand in the caller's
    terms."""
    a_view = as_operand(a, "a")
    stream = a_view.stream or 0
    b_view = as_operand(b, "b", stream)
    out_view = as_operand(out, "out", stream) if out is not None else None
    check_devices(a_view, [view for view in (b_view, out_view) if view is not None])
    if a_view.dtype != b_view.dtype and not {a_view.dtype, b_view.dtype} <= set(FP8):
        names = DTYPE_NAMES[a_view.dtype], DTYPE_NAMES[b_view.dtype]
        raise InvalidOperand(f"a is {names[0]} and b is {names[1]}. Convert one to the other's dtype.")
    shapes = a_view.shape, b_view.shape
    axis = FORMS.get((len(shapes[0]), len(shapes[1])))
    if axis is None:
        raise InvalidOperand(f"a has shape {shapes[0]} and b {shapes[1]}; with offs each has two or three axes, and "
                             "not both three.")  # fmt: skip
    if offs is None:
        raise InvalidOperand(f"a {shapes[0]} and b {shapes[1]} need offs: where each group ends, int32 [groups].")
    (*_, m, k), (*_, b_k, n) = shapes
    if k != b_k:
        raise InvalidOperand(f"a {shapes[0]} and b {shapes[1]} do not fit: a's last axis has {k} elements, b's second "
                             f"to last has {b_k}.")  # fmt: skip
    what, total = {"m": ("rows of a", m), "n": ("columns of b", n), "k": ("columns of a and rows of b", k)}[axis]
    ends = read_ends(offs, "offs", a_view, what, total)
    for name, shape in (("a", shapes[0]), ("b", shapes[1])):
        if len(shape) == 3 and shape[0] != ends.groups:
            raise InvalidOperand(f"{name} has shape {shape}, for {shape[0]} groups, and offs ends {ends.groups}.")
    shape = (ends.groups, m, n) if axis == "k" else (m, n)
    dtype = out_view.dtype if out_view is not None else "bf16" if a_view.dtype in FP8 else a_view.dtype
    dtype = dtype if out_dtype is None else parse_dtype(out_dtype)
    if dtype in FP8 and a_view.dtype not in FP8:
        raise InvalidOperand(f"the result is {DTYPE_NAMES[dtype]} and the operands are {DTYPE_NAMES[a_view.dtype]}: "
                             "results in fp8 are of fp8 operands. Quantize the result afterwards.")  # fmt: skip
    scales = read_scales({"a_scale": a_scale, "b_scale": b_scale}, axis, (m, n, k), ends.groups, a_view)
    check_devices(a_view, scales.views)
    if out_view is None:
        steps = tuple(0 if e <= 1 else s for e, s in zip(shape, dense_strides(shape), strict=True))
        out_view = Operand("out", a_view.kind, 0, shape, steps, dtype, a_view.device, stream=a_view.stream)
    else:
        if out_view.shape != shape:
            raise InvalidOperand(f"out has shape {out_view.shape}; the result has exactly {shape}.")
        if out_view.dtype != dtype:
            names = DTYPE_NAMES[out_view.dtype], DTYPE_NAMES[dtype]
            raise InvalidOperand(f"out is {names[0]} and out_dtype says {names[1]}. Omit out_dtype.")
        lists = [ends.lies] if ends.lies is not None else []
        check_out(out_view, [a_view, b_view, *lists, *scales.views], None)
    depth = k if ends.groups else 0  # without groups no operand is read, as in an empty sum
    problem = _problem(axis, total, ends.groups, (m, n, depth), a_view, b_view, out_view, out is None)
    product = replace(problem.product, epilogue=scales.epilogue)
    problem = replace(problem, product=product)
    if a_view.dtype in FP8:
        problem = _of_fp8(problem, (a_view.dtype, b_view.dtype))
    return GroupedCall(a_view, b_view, out_view, ends, problem, plan_with, out, scales)


def _of_fp8(problem: GroupedProblem, dtypes: tuple[str, str]) -> GroupedProblem:
    """The problem of these operands. Those cut along k become fp16 in lines along m and n, which TMA can read from any
    k on."""
    product = problem.product
    if problem.axis != "k":
        return replace(problem, product=replace(product, b_dtype=dtypes[1]))
    widened = Widened(dtypes, product.a, product.b)
    a, b = Matrix(1, widened_pitch(product.m)), Matrix(widened_pitch(product.n), 1)
    return replace(problem, product=replace(product, a=a, b=b, dtype="f16"), widened=widened)


def _problem(
    axis: str, total: int, groups: int, sizes: tuple[int, int, int], a: Operand, b: Operand, out: Operand, new: bool
) -> GroupedProblem:
    cut = {"m": (("a", -2), ("out", -2)), "n": (("b", -1), ("out", -1)), "k": (("a", -1), ("b", -2))}[axis]

    def matrix(view: Operand) -> Matrix:
        """Return how a group's part lies, which starts anywhere along the axis. TMA too wants 16 bytes there."""
        step = next((view.strides[which] * view.item_bytes for name, which in cut if name == view.name), 0)
        batch = view.strides[0] if len(view.shape) == 3 else 0
        return Matrix(view.strides[-2], view.strides[-1], batch, gcd(16, view.address, step))

    m, n, k = (typical(total, groups) if name == axis else size for name, size in zip("mnk", sizes, strict=True))
    product = GemmProblem(
        m, n, k, matrix(a), matrix(b), matrix(out), None, groups, a.dtype, out.dtype,
    )  # fmt: skip
    return GroupedProblem(product, axis, total, new and axis != "k")
