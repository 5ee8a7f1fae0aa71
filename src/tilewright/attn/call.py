"""A call of attention, read and checked: views, the problem as kernels take it, and what must be copied for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arrays.dtypes import DTYPE_NAMES
from ..arrays.integers import Integers
from ..arrays.scalar import flag
from ..arrays.view import Operand
from ..errors import InvalidOperand
from ..gpus import Gpu
from ..jit.params import named_numbers
from ..plan.demands import NONE, Demands
from ..plan.plan import Plan
from ..run.program import Program
from ..run.runner import Output, Unchecked
from .arguments import (
    broadcast_bias,
    check_given_out,
    check_one_device,
    dense_result,
    dense_view,
    out_shape_of,
    read_options,
    read_view,
    read_views,
    swapped,
)
from .config import D_HEADS
from .cu_seqlens import Starts, held_table, length_of, read_starts, read_table, read_used
from .family import plan_attention, plan_own_columns
from .masks import as_bias
from .problem import AttentionProblem, BiasRows, HeadRows, check_layout, head_rows
from .score import NO_CHANGE, Modification
from .stages import Lies, StridedRows, program_of


@dataclass(frozen=True)
class AttentionCall(Unchecked):
    """A checked call. Views of q, k, v and out are [batch, heads, rows, d]; those named in `copied` are not what
    kernels read: `problem` holds the strides of their copies (dense, padded to its d_head).
    """

    q: Operand
    k: Operand
    v: Operand
    out: Operand
    """Where the result goes; when `out_is_given` is False only its layout counts."""
    out_is_given: bool
    bias: Operand | None
    """Of the scores' shape, by strides of 0 where it repeats."""
    starts: tuple[Starts, Starts] | None
    used: Integers | None
    """How many keys of each entry are there, where the call says,"""
    table: Integers | None
    """and the pages of each, where keys lie in pages."""
    problem: AttentionProblem | None
    """None when the result is empty."""
    copied: tuple[tuple[str, str], ...]
    """(operand, why) of those that are copied."""
    out_shape: tuple[int, ...]
    """As the caller sees it."""
    lse_shape: tuple[int, ...]
    with_lse: bool
    plan_with: tuple[str | None, Any] = (None, None)
    """The rung and config that the caller named."""
    given_out: Any = None
    """The caller's array for the result."""
    demands: Demands = NONE
    own_columns: tuple[AttentionProblem, tuple[tuple[str, str], ...]] | None = None
    """The problem, and what is copied for it, with v and out of fewer or more columns than q and k, where they have
    them: for kernels that take such. `problem` pads all to the widest."""

    @property
    def what(self) -> str:
        return f"this attention (q {self.q.shape}, k {self.k.shape}, {self.q.dtype})"

    @property
    def first(self) -> Operand:
        """The operand by which the call is placed."""
        return self.q

    @property
    def inputs(self) -> tuple[tuple[str, Operand | np.ndarray | None], ...]:
        lists = (*(self.starts or (None, None)), self.used, self.table)
        numbers = [s and (s.operand if s.operand is not None else s.host) for s in lists]
        return (
            ("q", self.q), ("k", self.k), ("v", self.v), ("bias", self.bias), ("starts_q", numbers[0]),
            ("starts_k", numbers[1]), ("used", numbers[2]), ("pages", numbers[3]),
        )  # fmt: skip

    @property
    def lists(self) -> tuple[Operand, ...]:
        """The lengths and tables that lie on the GPU."""
        lists = (*(self.starts or ()), self.used, self.table)
        return tuple(s.operand for s in lists if s is not None and s.operand is not None)

    @property
    def keeps(self) -> bool:
        """Return whether rows of out that no launch writes stay as they are: those after a packed batch's last
        entry."""
        return self.out_is_given and self.starts is not None

    @property
    def outputs(self) -> tuple[Output, ...]:
        out = Output("out", self.out, self.out_shape, self.given_out, self.keeps)
        if not self.with_lse:
            return (out,)
        lse = replace(dense_view(self.q, "lse", self.lse_shape), dtype="f32")
        return out, Output("lse", lse, self.lse_shape)

    @property
    def scalars(self) -> dict[str, float]:
        return named_numbers(self.problem.numbers) if self.problem is not None else {}

    def program(self, gpu: Gpu) -> Program | None:
        """The launches; None for an empty result. Raises ConfigRejected."""
        if self.problem is None:
            return None
        problem, copies, plan = self.planned(gpu, *self.plan_with)
        lies = tuple(
            Lies(name, view.shape, StridedRows(*view.strides), name == "out" and self.keeps)
            for name, view in (("q", self.q), ("k", self.k), ("v", self.v), ("out", self.out))
            if any(name == copied for copied, _ in copies)
        )
        return program_of(problem, plan, lies)

    def planned(
        self, gpu: Gpu, rung: str | None, config: Any
    ) -> tuple[AttentionProblem, tuple[tuple[str, str], ...], Plan]:
        """The problem as a kernel of this GPU takes it, what is copied for it, and the plan. Raises ConfigRejected."""
        assert self.problem is not None
        if self.own_columns is not None:
            problem, copied = self.own_columns
            if (plan := plan_own_columns(problem, gpu, rung, config, self.demands)) is not None:
                return problem, copied, plan
        return self.problem, self.copied, plan_attention(self.problem, gpu, rung, config, demands=self.demands)

    @property
    def others(self) -> tuple[Operand, ...]:
        """The operands besides q, as the caller gave them: their streams and owners."""
        rest = [self.k, self.v, *([self.bias] if self.bias else []), *([self.out] if self.out_is_given else [])]
        return (*rest, *self.lists)


def read_attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None, window: Any = None,
    softcap: float = 0.0, bias: Any = None, modify: Modification = NO_CHANGE, layout: str = "bhsd",
    seqused: Any = None, block_table: Any = None, return_lse: bool = False, out: Any = None,
    plan_with: tuple[str | None, Any] = (None, None), batch_invariant: bool = False,
) -> AttentionCall:  # fmt: skip
    """Read the arguments of `attention`. Raises InvalidOperand in the caller's terms."""
    check_layout(layout)
    axes = ("batch", "heads", "rows", "d_head") if layout == "bhsd" else ("batch", "rows", "heads", "d_head")
    views = read_views(q, k, v, out, axes)
    shape = out_shape_of(views[0], views[2])
    if layout == "bshd":
        views = [swapped(view) for view in views]
    q_view, k_view, v_view = views[:3]
    if block_table is None and k_view.shape[0] != q_view.shape[0]:
        raise InvalidOperand(
            f"q {views[0].shape} and k {k_view.shape} (as [batch, heads, rows, d_head]) differ in batch."
        )
    out_view = views[3] if out is not None else dense_result(q_view, shape, layout)
    keys, table = k_view.shape[2], None
    if block_table is not None:
        if keys < 16 or keys & (keys - 1):
            raise InvalidOperand(f"k {k_view.shape} has pages of {keys} keys; kernels take powers of two from 16 on.")
        table = read_table(block_table, q_view)
        keys *= table.shape[1]
    bias_view = None
    if (bias := as_bias(bias, q)) is not None:
        q_name = DTYPE_NAMES[q_view.dtype]
        if isinstance(bias, (bool, int, float, np.generic)):
            raise InvalidOperand(
                f"bias={bias!r} is one number: added to every score it changes no weight. Pass an array that "
                "broadcasts to [batch, heads, q's rows, k's rows], or none."
            )
        given = read_view(bias, "bias", q_view.stream or 0, ("f32", q_view.dtype), f"float32, or {q_name} as q is")
        check_one_device(q_view, given)
        bias_view = broadcast_bias(given, (*q_view.shape[:3], keys))
    used = read_used(seqused, q_view, keys) if seqused is not None else None
    table = held_table(table, used, k_view) if table is not None else None
    inputs = [q_view, k_view, v_view, bias_view, *(one.lies for one in (used, table) if one is not None)]
    check_given_out(out, out_view, [view for view in inputs if view is not None])
    options = read_options(q_view, keys, is_causal, scale, window, softcap, modify, return_lse)
    options["seqused"] = used is not None
    if table is not None:
        options["pages"] = k_view.shape[2], table.shape[1], k_view.shape[0]
    extents = q_view.shape[0], q_view.shape[2], keys
    read = _call_of(q_view, k_view, v_view, out_view, out, bias_view, None, extents, options, shape, plan_with)
    return replace(read, used=used, table=table, demands=_demands(batch_invariant))


def read_attention_varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
    *, is_causal: bool = False, scale: float | None = None, window: Any = None, softcap: float = 0.0,
    modify: Modification = NO_CHANGE, return_lse: bool = False, out: Any = None,
    plan_with: tuple[str | None, Any] = (None, None), batch_invariant: bool = False,
) -> AttentionCall:  # fmt: skip
    """Read the arguments of `attention_varlen`. Raises InvalidOperand in the caller's terms."""
    views = read_views(q, k, v, out, ("rows", "heads", "d_head"))
    shape = out_shape_of(views[0], views[2])
    views = [swapped(view.view((1, *view.shape), (0, *view.strides))) for view in views]
    q_view, k_view, v_view = views[:3]
    starts = (
        read_starts(cu_seqlens_q, "cu_seqlens_q", "q", q_view),
        read_starts(cu_seqlens_k, "cu_seqlens_k", "k", k_view),
    )
    if starts[0].entries != starts[1].entries:
        raise InvalidOperand(
            f"cu_seqlens_q is for {starts[0].entries} entries and cu_seqlens_k for {starts[1].entries}: each holds one "
            "more number than there are entries in the batch."
        )
    lengths = (
        length_of(starts[0], max_seqlen_q, "max_seqlen_q", q_view.shape[2]),
        length_of(starts[1], max_seqlen_k, "max_seqlen_k", k_view.shape[2]),
    )
    out_view = views[3] if out is not None else dense_result(q_view, (1, *shape), "bshd")
    check_given_out(out, out_view, [q_view, k_view, v_view, *(one.lies for one in starts if one.lies is not None)])
    options = read_options(q_view, k_view.shape[2], is_causal, scale, window, softcap, modify, return_lse)
    options["totals"] = shape[0], k_view.shape[2]
    extents = starts[0].entries, *lengths
    read = _call_of(q_view, k_view, v_view, out_view, out, None, starts, extents, options, shape, plan_with)
    return replace(read, demands=_demands(batch_invariant))


def _demands(batch_invariant: Any) -> Demands:
    return Demands(batch_invariant=flag(batch_invariant, "batch_invariant"))


# --- the problem as kernels take it ----------------------------------------------------------------------------------


def head_rows_of(view: Operand) -> HeadRows:
    batch, head, row, _ = view.strides
    return HeadRows(batch, head, row, math.gcd(16, view.address))


def why_copied(view: Operand, d_head: int) -> str | None:
    """Why a kernel of this d_head cannot read the view (or write it) where it lies; None if it can."""
    if view.shape[3] != d_head:
        return f"d_head {view.shape[3]} is padded with zeros to {d_head}"
    if view.strides[3] != 1:
        return f"the elements of a row lie {view.strides[3]} apart"
    if min(view.strides) < 0:
        return f"strides {view.strides} run backwards"
    if (width := head_rows_of(view).vector_bytes) < 16:
        return f"rows start at multiples of {width} bytes, and kernels copy 16 at once"
    return None


def rows_read(view: Operand, columns: int) -> tuple[HeadRows, str | None]:
    """The rows that a kernel of so many columns takes: the view's, or those of its copy and why it is made."""
    reason = why_copied(view, columns) if view.size else None
    return (head_rows_of(view) if reason is None else head_rows(view.shape[1], view.shape[2], columns)), reason


def padded_head(d: int, d_of_v: int) -> int:
    """The least d_head that kernels take and that holds the columns of q and k, and of v."""
    return next(known for known in D_HEADS if known >= max(d, d_of_v))


def _call_of(
    q: Operand, k: Operand, v: Operand, out: Operand, given_out: Any, bias: Operand | None,
    starts: tuple[Starts, Starts] | None, extents: tuple[int, int, int], options: dict[str, Any],
    out_shape: tuple[int, ...], plan_with: tuple[str | None, Any],
) -> AttentionCall:  # fmt: skip
    """The call of views that were held to one another. `extents`: entries, and their rows and keys, of packed ones the
    longest; `options`: fields of the problem."""
    (batch, seq_q, seq_k), heads, heads_kv = extents, q.shape[1], k.shape[1]
    lse_shape = (batch, heads, seq_q) if starts is None else (heads, q.shape[2])
    bias_rows = None
    if bias is not None:
        by_batch, by_head, by_row, by_col = bias.strides
        bias_rows = BiasRows(by_batch, by_head, by_row, by_col, bias.dtype, math.gcd(16, bias.address))

    def taken(d_head: int, d_v: int) -> tuple[AttentionProblem, tuple[tuple[str, str], ...]]:
        """The problem of a kernel for these columns, and what is copied for it."""
        copied, rows = [], {}
        for operand, columns in ((q, d_head), (k, d_head), (v, d_v), (out, d_v)):
            rows[operand.name], reason = rows_read(operand, columns)
            if reason is not None:
                copied.append((operand.name, reason))
        problem = AttentionProblem(
            batch, heads, heads_kv, seq_q, seq_k, d_head, rows["q"], rows["k"], rows["v"], rows["out"],
            q.dtype, bias=bias_rows, d_v=d_v if d_v != d_head else 0, **options,
        )  # fmt: skip
        return problem, tuple(copied)

    problem: AttentionProblem | None = None
    copied: tuple[tuple[str, str], ...] = ()
    own = None
    if q.size and batch and (starts is None or seq_q):
        d_q, d_v = padded_head(q.shape[3], 1), padded_head(1, v.shape[3])
        problem, copied = taken(max(d_q, d_v), max(d_q, d_v))
        own = taken(d_q, d_v) if d_q != d_v else None
    return AttentionCall(
        q, k, v, out, given_out is not None, bias, starts, None, None, problem, copied, out_shape, lse_shape,
        options["with_lse"], plan_with, given_out, own_columns=own,
    )  # fmt: skip
