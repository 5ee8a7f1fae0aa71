"""The stages of attention: copies of what kernels cannot read, attention itself, the result's way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ..arrays.dtypes import ITEM_BYTES, ceil_div
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Place, Scalar, Template, number_names, pack
from ..run.program import Program, Stage, Workspace
from ..run.start import START
from .hopper import HopperRung
from .problem import AttentionProblem, head_rows
from .rung import AttentionAddresses, AttentionRung
from .split import Merge, SplitRung, parts_room

if TYPE_CHECKING:
    from ..plan.plan import Plan

_ARGS = "<2Q8q3i4x"
"""CopyArgs in cuda/copy/rows.cuh; a test holds them equal."""
_THREADS = 256


@dataclass(frozen=True)
class StridedRows:
    """[batch, heads, rows, columns] in memory; strides in elements."""

    batch_stride: int
    head_stride: int
    row_stride: int
    col_stride: int = 1


@dataclass(frozen=True)
class RowCopy:
    """Rows of 16-bit elements copied to other strides: `columns` of them, zeros from `given_columns` on."""

    given: StridedRows
    wanted: StridedRows
    batch: int
    heads: int
    rows: int
    given_columns: int
    columns: int

    def params(self, source: Address, target: Address) -> Template:
        given, wanted = self.given, self.wanted
        return pack(
            _ARGS, source, target, given.batch_stride, given.head_stride, given.row_stride, given.col_stride,
            wanted.batch_stride, wanted.head_stride, wanted.row_stride, wanted.col_stride, self.rows,
            self.given_columns, self.columns,
        )  # fmt: skip


class CopyRows:
    """The kernel that makes a RowCopy."""

    def compile(self, problem: RowCopy, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        return compile_rung("copy/rows.cuh", {"threads": _THREADS}, "copy_rows", arch.name)

    def shape(self, problem: RowCopy) -> Launch:
        blocks = ceil_div(problem.rows * problem.columns, _THREADS) * problem.batch
        return Launch((blocks, problem.heads, 1), (_THREADS, 1, 1), b"")


COPY_ROWS = CopyRows()


@dataclass(frozen=True)
class Tiled:
    """Attention itself: a rung with its config."""

    rung: AttentionRung
    config: Any

    def compile(self, problem: AttentionProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        return self.rung.compile(problem, self.config, arch)

    def shape(self, problem: AttentionProblem) -> Launch:
        return self.rung.shape(problem, self.config)


@dataclass(frozen=True)
class Lies:
    """The layout of an operand that is copied: its view's strides, and its columns before they are padded."""

    name: str
    shape: tuple[int, ...]
    strides: StridedRows
    keeps: bool = False
    """Of a result: whether rows that the kernel does not write must stay as they are."""

    def copy(self, wanted: int, back: bool) -> RowCopy:
        """To a dense copy of `wanted` columns, or `back`."""
        batch, heads, rows, columns = self.shape
        dense = head_rows(heads, rows, wanted)
        padded = StridedRows(dense.batch_stride, dense.head_stride, dense.row_stride)
        if back:
            return RowCopy(padded, self.strides, batch, heads, rows, columns, columns)
        return RowCopy(self.strides, padded, batch, heads, rows, columns, wanted)


@lru_cache(maxsize=4096)
def program_of(problem: AttentionProblem, plan: Plan, copied: tuple[Lies, ...] = ()) -> Program:
    """The launches that `plan` means for `problem`, whose operands named in `copied` are dense copies. Pure."""
    workspace = Workspace()
    before: list[Stage] = []
    after: list[Stage] = []
    places = {name: Place(name) for name in ("q", "k", "v", "out")}
    for lies in copied:
        columns = problem.columns(lies.name)
        size = ITEM_BYTES[problem.dtype] * prod(lies.shape[:3]) * columns
        own, made = Place(lies.name), workspace.room(size)
        places[lies.name] = made
        back = lies.name == "out"
        copy = lies.copy(columns, back)
        params = copy.params(made, own) if back else copy.params(own, made)
        stage = Stage(f"copy {lies.name}", COPY_ROWS, copy, COPY_ROWS.shape(copy), params)
        (after if back else before).append(stage)
        if lies.keeps:  # the way back brings all rows
            there = lies.copy(columns, False)
            params = there.params(own, made)
            before.append(Stage(f"keep {lies.name}", COPY_ROWS, there, COPY_ROWS.shape(there), params))
    numbers = tuple(Scalar(name) for name in number_names(len(problem.numbers)))
    starts: tuple[Address, Address] = (0, 0)
    if problem.totals is not None:
        starts = Place("starts_q"), Place("starts_k")
    at = AttentionAddresses(
        places["q"], places["k"], places["v"], places["out"], Place("lse") if problem.with_lse else 0,
        Place("bias") if problem.bias is not None else 0, *starts, numbers, Place("used") if problem.seqused else 0,
        Place("pages") if problem.pages is not None else 0,
    )  # fmt: skip
    if isinstance(plan.rung, SplitRung):
        at = replace(at, parts=parts_room(problem, plan.config, workspace))
    if isinstance(plan.rung, HopperRung) and plan.rung.draws(problem, plan.config):
        at = replace(at, drawn=workspace.room(4))
        before.append(Stage("start", START, problem, START.shape(problem), pack("<Q", at.drawn)))
    params = plan.rung.params(problem, plan.config, at)
    tiled = Tiled(plan.rung, plan.config)
    main = [Stage("attention", tiled, problem, tiled.shape(problem), params)]
    if at.parts != (0, 0):
        merge = Merge(plan.rung, plan.config)
        main.append(Stage("merge", merge, problem, merge.shape(problem), params))
    return Program((*before, *main, *after), workspace.bytes, len(before))
