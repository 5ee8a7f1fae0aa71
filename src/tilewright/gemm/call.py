"""A call of matmul, read and checked: which views, which shapes, which problem. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import DTYPE_NAMES, FP8, parse_dtype
from ..arrays.extents import check_out, same_view
from ..arrays.scalar import flag, scalar
from ..arrays.view import Operand, as_operand, broadcast
from ..errors import InvalidOperand
from ..gpus import Gpu
from ..jit.params import named_numbers
from ..plan.demands import Demands
from ..plan.plan import Plan
from ..run.program import Program
from ..run.runner import Output, Site
from .config import GemmConfig
from .family import plan_for
from .fusion import Fusion, Request, read_fusion
from .params import fused_base
from .problem import INDEX, Epilogue, FusedOperand
from .rows import plan_rows
from .shapes import Product, Shapes, lay_out, matmul_shapes, with_matrix_axes
from .stages import program_of


class Options(NamedTuple):
    """The options of a call. A tuple: it is part of the warm path's key."""

    out_dtype: Any = None
    deterministic: bool = False
    batch_invariant: bool = False
    rung: str | None = None
    config: GemmConfig | None = None
    precision: str = "ieee"

    @property
    def demands(self) -> Demands:
        return Demands(self.deterministic, self.batch_invariant)

    def checked(self) -> Options:
        """The same with True or False where they are options. Raises InvalidOperand for anything else there."""
        return self._replace(
            deterministic=flag(self.deterministic, "deterministic"),
            batch_invariant=flag(self.batch_invariant, "batch_invariant"),
        )


@dataclass(frozen=True)
class Call:
    """A checked call. `c` is the view broadcast to the result's shape, None when it is not read (beta = 0)."""

    a: Operand
    b: Operand
    c: Operand | None
    out: Operand
    """Where the result goes; when `out_is_given` is False only its layout counts: dense, aligned, at address 0."""
    out_is_given: bool
    alpha: float
    beta: float
    shapes: Shapes
    product: Product
    others: tuple[Operand, ...]
    """The operands besides a, as the caller gave them: their streams and owners."""
    options: Options
    fusion: Fusion | None = None
    """What is fused into the product."""
    verify: bool = False
    """True where the result is checked on the device before it is given back."""
    given_c: Any = None
    given_out: Any = None
    """The caller's own arrays."""
    fuses_c: bool = False
    """True where c is an operand of what is fused."""

    @property
    def what(self) -> str:
        return f"this product ({self.a.shape} @ {self.b.shape}, {self.a.dtype})"

    @property
    def first(self) -> Operand:
        return self.a

    @property
    def inputs(self) -> tuple[tuple[str, Operand | None], ...]:
        views = self.fusion.views if self.fusion is not None else ()
        fused = ((fused_base(number), None if view.dtype == INDEX else view) for number, view in enumerate(views))
        return ("a", self.a), ("b", self.b), ("c", self.c), *fused

    @property
    def outputs(self) -> tuple[Output, ...]:
        return (Output("out", self.out, self.shapes.result, self.given_out),)

    @property
    def scalars(self) -> dict[str, float]:
        """The scalars as launches have them: the empty sum is 0, also times infinity."""
        numbers = self.fusion.expression.numbers if self.fusion is not None else ()
        return named_numbers(numbers) | {"alpha": self.alpha if self.product.problem.k else 0.0, "beta": self.beta}

    def plan(self, gpu: Gpu) -> Plan:
        """Raises ConfigRejected where no plan can run the call."""
        options = self.options
        if options.rung is None and options.config is None:
            return plan_rows(self.product, gpu, options.demands)
        return plan_for(self.product.problem, gpu, options.rung, options.config, demands=options.demands)

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None for an empty result. Raises ConfigRejected where no plan can run the call."""
        problem = self.product.problem
        if problem.m == 0 or problem.n == 0 or problem.batch == 0:
            return None
        return program_of(self.product, self.plan(gpu))

    def checked(self, program: Program, bases: Mapping[str, int], site: Site) -> AbstractContextManager[None]:
        """Around the launches of `program`: the result is checked. Raises WrongResult."""
        from .verify import verified

        return verified(self, program, bases, site)


def read_call(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    options: Options,
    asked: Request | None = None,
    verify: bool = False,
) -> Call:
    """Read the arguments of matmul. Raises InvalidOperand and InvalidEpilogue in the caller's terms."""
    options = options.checked()
    alpha = scalar(alpha, "alpha")
    beta = (0.0 if c is None else 1.0) if beta is None else scalar(beta, "beta")
    if c is None and beta != 0:
        raise InvalidOperand(f"beta={beta} without c: there is nothing to scale. Pass c, or omit beta.")
    a_view = as_operand(a, "a")
    stream = a_view.stream or 0
    b_view = as_operand(b, "b", stream)
    c_given = as_operand(c, "c", stream) if c is not None else None
    out_given = as_operand(out, "out", stream) if out is not None else None
    others = [view for view in (b_view, c_given, out_given) if view is not None]
    for other in others:
        _check_pair(a_view, other)
    shapes = matmul_shapes(a_view.shape, b_view.shape)
    added = None
    if c_given is not None and beta != 0 and a_view.dtype in FP8:  # c comes after the scales, and has a type of its own
        added, asked = (c_given, beta), asked or Request(None, None, {})
    fusion = read_fusion(asked, shapes, a_view, added) if asked is not None else None
    for other in fusion.given if fusion is not None else ():
        _check_pair(a_view, other)
        others.append(other)
    c_view = broadcast(c_given, shapes.result) if c_given is not None else None
    if added is not None:
        beta = 0.0
    if beta == 0:
        c_view = None
    out_view = _read_out(a_view, b_view.shape, out_given, options.out_dtype, shapes)
    if c_view is not None and c_view.dtype != out_view.dtype:
        names = DTYPE_NAMES[c_view.dtype], DTYPE_NAMES[out_view.dtype]
        way_out = f"Convert c, or ask for out_dtype={c_view.dtype!r}." if out_given is None else "Convert c."
        raise InvalidOperand(f"c is {names[0]} and the result {names[1]}. {way_out}")
    is_out = _check_overlaps(out_given, [a_view, b_view], c_view, fusion, shapes)
    product = _product(shapes, a_view, b_view, c_view, out_view, fusion, is_out, options.precision)
    return Call(
        a_view, b_view, c_view, out_view, out_given is not None, alpha, beta, shapes, product, tuple(others), options,
        fusion, verify, c, out, added is not None,
    )  # fmt: skip


def _read_out(a: Operand, b_shape: tuple[int, ...], given: Operand | None, asked: Any, shapes: Shapes) -> Operand:
    """The view of the result: `given`, or the layout of a new array."""
    dtype = _result_dtype(a, given, asked)
    if dtype in FP8 and a.dtype not in FP8:
        raise InvalidOperand(
            f"the result is {DTYPE_NAMES[dtype]} and the operands are {DTYPE_NAMES[a.dtype]}: results in fp8 are "
            "of fp8 operands. Quantize the result afterwards (tilewright.quantize)."
        )
    if given is None:
        return _dense_out(a, shapes.result, dtype)
    if given.shape != shapes.result:
        raise InvalidOperand(f"out has shape {given.shape}; the result of a {a.shape} @ b {b_shape} has exactly "
                             f"{shapes.result}.")  # fmt: skip
    return given


def _product(
    shapes: Shapes, a: Operand, b: Operand, c: Operand | None, out: Operand, fusion: Fusion | None,
    is_out: list[bool], precision: str,
) -> Product:  # fmt: skip
    """The problem and its launches. `is_out`: of each of the fusion's views whether it is out's very view."""
    views, roles = (fusion.views, fusion.roles) if fusion is not None else ((), ())
    product = lay_out(shapes, a, b, c, out, views, roles)
    epilogue = None
    if fusion is not None:
        operands = tuple(
            FusedOperand(view.name, view.dtype, lies, same, role)
            for view, lies, same, role in zip(views, product.fused, is_out, roles, strict=True)
        )
        traced = fusion.expression
        code = traced.code if len(traced.nodes) > 1 or not fusion.scales else ""  # scales of blocks, and nothing else
        epilogue = Epilogue(traced.description, code, operands, traced.nodes, traced.numbers)
    b_dtype = b.dtype if b.dtype != a.dtype else ""
    problem = replace(product.problem, b_dtype=b_dtype, precision=precision, epilogue=epilogue)
    return replace(product, problem=problem)


def _check_overlaps(
    out: Operand | None, inputs: list[Operand], c: Operand | None, fusion: Fusion | None, shapes: Shapes
) -> list[bool]:
    """Do as check_out. Return for each of the fusion's views whether it is out's very view, which is allowed."""
    views, roles = (fusion.views, fusion.roles) if fusion is not None else ((), ())
    if out is None:
        return [False for _ in views]
    written = with_matrix_axes(out, shapes)
    is_out = [not role and same_view(written, view) for view, role in zip(views, roles, strict=True)]
    apart = [view for view, same in zip(views, is_out, strict=True) if not same and view.dtype != INDEX]
    check_out(out, [*inputs, *apart], c)
    return is_out


def _check_pair(a: Operand, other: Operand) -> None:
    """Refuse operands that no one kernel can take together."""
    if a.device != other.device:
        places = ["the host" if o.device is None else f"GPU {o.device}" for o in (a, other)]
        raise InvalidOperand(f"a is on {places[0]} and {other.name} on {places[1]}. Move them to one device.")
    if other.name == "b" and a.dtype != other.dtype and not {a.dtype, other.dtype} <= set(FP8):
        names = DTYPE_NAMES[a.dtype], DTYPE_NAMES[other.dtype]
        raise InvalidOperand(f"a is {names[0]} and b is {names[1]}. Convert one to the other's dtype.")


def _result_dtype(a: Operand, out: Operand | None, asked: Any) -> str:
    """The result's dtype: what is asked for, else out's, else a's (of fp8 operands bf16).

    Raises InvalidOperand where both say another.
    """
    dtype = out.dtype if out is not None else "bf16" if a.dtype in FP8 else a.dtype
    if asked is not None:
        dtype = parse_dtype(asked)
        if out is not None and dtype != out.dtype:
            names = DTYPE_NAMES[out.dtype], DTYPE_NAMES[dtype]
            raise InvalidOperand(f"out is {names[0]} and out_dtype says {names[1]}. Omit out_dtype.")
    return dtype


def _dense_out(a: Operand, shape: tuple[int, ...], dtype: str) -> Operand:
    strides = tuple(0 if e <= 1 else s for e, s in zip(shape, dense_strides(shape), strict=True))
    return Operand("out", a.kind, 0, shape, strides, dtype, a.device, stream=a.stream)
