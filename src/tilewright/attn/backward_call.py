"""A call of attention_backward, read and checked: views, the problem as kernels take it, and what is copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays.scalar import flag
from ..arrays.view import Operand
from ..errors import ConfigRejected, InvalidOperand
from ..gpus import Gpu
from ..jit.params import Place, named_numbers
from ..run.program import Program, Stage
from ..run.runner import Output, Unchecked
from .arguments import check_one_device, dense_result, read_view, swapped
from .backward_plan import plan_backward
from .backward_problem import BackwardProblem, Strides
from .backward_score import Differentiable
from .backward_stages import RESULTS, BackwardPlan, backward_program
from .call import AttentionCall, read_attention, read_attention_varlen, rows_read
from .problem import DTYPES, AttentionProblem, HeadRows
from .score import Modification
from .stages import COPY_ROWS, Lies, RowCopy, StridedRows

Taken = tuple[BackwardProblem, tuple[tuple[str, str], ...]]
"""A problem as kernels take it, and (operand, why) of those that are copied for it."""


def planned(
    padded: Taken, own: Taken | None, gpu: Gpu, deterministic: bool, rung: str | None, config: Any
) -> tuple[Taken, BackwardPlan]:
    """Return what runs: `own`, whose values have another width than keys, where a kernel takes such, else `padded`.
    Raises ConfigRejected."""
    if rung is not None and not isinstance(rung, str):
        raise ConfigRejected(f"rung is {rung!r}; pass the name of one, such as 'b04', or none.")
    config = None if config is None else str(config)
    if own is not None:
        try:
            return own, plan_backward(own[0], gpu, deterministic, rung, config)
        except ConfigRejected:  # what is named, or what the GPU has, takes one width
            pass
    return padded, plan_backward(padded[0], gpu, deterministic, rung, config)


@dataclass(frozen=True)
class BackwardCall(Unchecked):
    """A checked call. Views are [batch, heads, rows, d], those of the LSE and its gradient [batch, heads, rows]."""

    forward: AttentionCall
    """As attention would be called on q, k and v; it holds the bias and the starts."""
    grad: Operand
    out: Operand
    lse: Operand
    grad_lse: Operand | None
    results: tuple[Operand, Operand, Operand]
    """The layout of dq, dk and dv."""
    shapes: tuple[tuple[int, ...], ...]
    """Theirs as the caller sees them."""
    problem: BackwardProblem | None
    """None where there are no pairs of queries and keys."""
    copied: tuple[tuple[str, str], ...]
    """(operand, why) of those that are copied."""
    own_columns: Taken | None
    """As AttentionCall.own_columns."""
    deterministic: bool
    plan_with: tuple[str | None, Any] = (None, None)

    @property
    def what(self) -> str:
        q, k = self.forward.q, self.forward.k
        return f"this attention_backward (q {q.shape}, k {k.shape}, {q.dtype})"

    @property
    def first(self) -> Operand:
        """The operand by which the call is placed."""
        return self.forward.q

    @property
    def inputs(self) -> tuple[tuple[str, Operand | np.ndarray | None], ...]:
        own: tuple[tuple[str, Operand | None], ...] = (
            ("grad", self.grad), ("out", self.out), ("lse", self.lse), ("grad_lse", self.grad_lse),
        )  # fmt: skip
        return (*self.forward.inputs, *own)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(
            Output(name, view, shape) for name, view, shape in zip(RESULTS, self.results, self.shapes, strict=True)
        )

    @property
    def scalars(self) -> dict[str, float]:
        return named_numbers(self.problem.forward.numbers) if self.problem is not None else {}

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None where every result is empty. Raises ConfigRejected."""
        if self.problem is None:
            return self._zeros()
        views = {"q": self.forward.q, "k": self.forward.k, "v": self.forward.v, "out": self.out, "grad": self.grad}
        views |= dict(zip(RESULTS, self.results, strict=True))
        (problem, copied), plan = planned((self.problem, self.copied), self.own_columns, gpu, self.deterministic,
                                          *self.plan_with)  # fmt: skip
        reasons = dict(copied)
        lies = tuple(
            Lies(name, view.shape, StridedRows(*view.strides)) for name, view in views.items() if name in reasons
        )
        return backward_program(problem, plan, lies)

    def _zeros(self) -> Program | None:
        """Return what fills results that no pair adds to."""
        stages = []
        for name, view in zip(RESULTS, self.results, strict=True):
            if view.size:
                batch, heads, rows, d = view.shape
                lies = StridedRows(*view.strides)
                copy = RowCopy(lies, lies, batch, heads, rows, 0, d)
                params = copy.params(Place(name), Place(name))
                stages.append(Stage(f"zero {name}", COPY_ROWS, copy, COPY_ROWS.shape(copy), params))
        return Program(tuple(stages)) if stages else None

    @property
    def others(self) -> tuple[Operand, ...]:
        """The operands besides q, as the caller gave them: their streams and owners."""
        own = (self.grad, self.out, self.lse, *([self.grad_lse] if self.grad_lse is not None else []))
        return (*self.forward.others, *own)


def rows_of(*packed: Any) -> tuple[int, ...]:
    """The rows of all entries: no entry is longer. 0 of what has no axes, which is refused later."""
    return tuple((*getattr(x, "shape", ()), 0)[0] for x in packed)


def read_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, grad_lse: Any = None, cu_seqlens: tuple[Any, Any] | None,
    modify: Differentiable, deterministic: bool, plan_with: tuple[str | None, Any] = (None, None), layout: str = "bhsd",
    bias: Any = None, **options: Any,
) -> BackwardCall:  # fmt: skip
    """Read the arguments of `attention_backward`. Raises InvalidOperand in the caller's terms."""
    deterministic = flag(deterministic, "deterministic")
    changed = Modification(modify.code, modify.numbers)
    if cu_seqlens is None:
        forward = read_attention(q, k, v, bias=bias, modify=changed, layout=layout, return_lse=True, **options)
    else:
        forward = read_attention_varlen(
            q, k, v, *cu_seqlens, *rows_of(q, k), modify=changed, return_lse=True, **options
        )
    first = forward.q
    own_shape = forward.out_shape
    stream = first.stream or 0
    given = []
    for name, value in (("grad", grad), ("out", out)):
        view = read_view(value, name, stream, DTYPES, "float16 and bfloat16, as q is")
        if view.dtype != first.dtype or view.shape != own_shape:
            raise InvalidOperand(
                f"{name} is {view.dtype} with shape {view.shape}; it must be as q is, {first.dtype} with shape "
                f"{own_shape}."
            )
        check_one_device(first, view)
        if cu_seqlens is not None:
            view = view.view((1, *view.shape), (0, *view.strides))
        given.append(swapped(view) if layout == "bshd" or cu_seqlens is not None else view)
    sums = []
    for name, value in (("lse", lse), ("grad_lse", grad_lse)):
        if value is None and name == "grad_lse":
            continue
        view = read_view(value, name, stream, ("f32",), "float32, as attention(return_lse=True) gives it")
        if view.shape != forward.lse_shape:
            raise InvalidOperand(
                f"{name} has shape {view.shape}; it must be {forward.lse_shape}, "
                + ("[batch, heads, rows of q]." if cu_seqlens is None else "[heads, rows of all entries].")
            )
        check_one_device(first, view)
        sums.append(view if cu_seqlens is None else view.view((1, *view.shape), (0, *view.strides)))
    shapes = tuple(_shape_of(view, layout, cu_seqlens is not None) for view in (forward.q, forward.k, forward.v))
    laid = "bshd" if cu_seqlens is not None else layout
    lead = (1,) if cu_seqlens is not None else ()
    results = tuple(
        replace(dense_result(first, (*lead, *shape), laid), name=name)
        for name, shape in zip(RESULTS, shapes, strict=True)
    )
    return _call_of(forward, given[0], given[1], sums, results, shapes, modify, deterministic, plan_with)


def _shape_of(view: Operand, layout: str, varlen: bool) -> tuple[int, ...]:
    """The shape of an operand as the caller sees it."""
    batch, heads, rows, d = view.shape
    if varlen:
        return rows, heads, d
    return (batch, heads, rows, d) if layout == "bhsd" else (batch, rows, heads, d)


def _call_of(
    forward: AttentionCall, grad: Operand, out: Operand, sums: list[Operand], results: Any,
    shapes: tuple[tuple[int, ...], ...], modify: Differentiable, deterministic: bool, plan_with: tuple[str | None, Any],
) -> BackwardCall:  # fmt: skip
    strides: list[Strides] = [view.strides for view in sums]  # type: ignore[misc]

    def taken(p: AttentionProblem, forward_copied: tuple[tuple[str, str], ...]) -> Taken:
        copied = [(name, why) for name, why in forward_copied if name != "out"]
        rows: dict[str, HeadRows] = {}
        for name, view in (("out", out), ("grad", grad), *zip(RESULTS, results, strict=True)):
            columns = p.columns("v" if name in ("out", "grad", "dv") else "q")
            rows[name], reason = rows_read(view, columns)
            if reason is not None:
                copied.append((name, reason))
            elif name in RESULTS:  # new arrays, whatever library makes them
                rows[name] = replace(rows[name], alignment=16)
        problem = BackwardProblem(
            replace(p, out=rows["out"]), rows["grad"], rows["dq"], rows["dk"], rows["dv"], strides[0],
            strides[1] if len(strides) > 1 else None, modify.slope,
        )  # fmt: skip
        return problem, tuple(copied)

    problem: BackwardProblem | None = None
    copied: tuple[tuple[str, str], ...] = ()
    own = None
    if forward.problem is not None and forward.k.shape[2]:
        problem, copied = taken(forward.problem, forward.copied)
        own = taken(*forward.own_columns) if forward.own_columns is not None else None
    return BackwardCall(
        forward, grad, out, sums[0], sums[1] if len(sums) > 1 else None, results, shapes, problem, copied, own,
        deterministic, plan_with,
    )  # fmt: skip
