"""A plan as launches over a workspace: operands packed first, the product, the sum of its parts.

Every kernel of a program takes the same parameters (cuda/gemm/args.cuh); each stage says which operand, or which part
of the workspace, stands where in them. What a product launches and how much memory it borrows is decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from .arch import Arch
from .jit import CompiledKernel, Launch, compile_rung
from .jit.source import Constant
from .ladder.rung import Addresses, GemmConfig, Rung, ceil_div, pack_args, result_constants
from .ladder.tensor import CPP_TYPES
from .problems import ITEM_BYTES, GemmProblem, Matrix

if TYPE_CHECKING:
    from .plan import Plan

LINE = 64
"""Packed lines start at multiples of this many bytes: whole sectors, whole 16-byte accesses."""
SLOT = 256
"""Each part of a workspace starts at a multiple of this many bytes."""


@dataclass(frozen=True)
class Helper:
    """A kernel beside the rungs with one job: an element of it for each element of a matrix."""

    entry: str
    """Its kernel, and its file in cuda/gemm."""
    threads: int
    each: int
    """Elements a thread."""
    constants: Callable[[GemmProblem], dict[str, Constant]]
    items: Callable[[GemmProblem], int]
    """How many elements a batch entry has, in threads' shares."""

    def __str__(self) -> str:
        return self.entry

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants = {"threads": self.threads, "each": self.each} | self.constants(problem)
        return compile_rung(f"gemm/{self.entry}.cuh", constants, self.entry, arch.name)

    def plan(self, problem: GemmProblem, addresses: Addresses, alpha: float, beta: float) -> Launch:
        """As Rung.plan."""
        blocks = ceil_div(self.items(problem), self.threads * self.each)
        params = pack_args(problem, addresses, alpha, beta)
        return Launch((blocks, problem.batch, 1), (self.threads, 1, 1), params, overlaps=True)


PACK = Helper(
    "pack", 256, 8, lambda p: {"item_type": "unsigned short" if ITEM_BYTES[p.dtype] == 2 else "unsigned"},
    lambda p: p.m * p.k,
)  # fmt: skip
SUM_PARTS = Helper(
    "sum_parts", 128, 4,
    lambda p: result_constants(p) | {"out_type": CPP_TYPES[p.out_dtype], "edge": True, "split_k": 1},
    lambda p: p.m * ceil_div(p.n, 4) * 4,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where an address of a stage's parameters is: bytes behind "a", "b", "c", "out", or the workspace ("work")."""

    base: str
    offset: int = 0


@dataclass(frozen=True)
class Tiled:
    """The product itself: a rung with its config."""

    rung: Rung
    config: GemmConfig

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        return self.rung.compile(problem, self.config, arch)

    def plan(self, problem: GemmProblem, addresses: Addresses, alpha: float, beta: float) -> Launch:
        return self.rung.plan(problem, self.config, addresses, alpha, beta)


@dataclass(frozen=True)
class Stage:
    """One launch of a program."""

    name: str
    """ "pack a", "pack b", "product" or "sum of parts"."""
    kernel: Tiled | Helper
    problem: GemmProblem
    """What its parameters describe."""
    places: tuple[Place, Place, Place, Place]
    """Of a, b, c and out in its parameters."""
    scaled: bool
    """Whether alpha and beta are applied here."""

    def compile(self, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        return self.kernel.compile(self.problem, arch)

    def launch(self, count: int, bases: Mapping[str, int], alpha: float, beta: float) -> tuple[Launch, Addresses]:
        """The launch of `count` products with the operands of one launch at `bases`."""
        a, b, c, out = (bases[place.base] + place.offset for place in self.places)
        addresses = Addresses(a, b, out, c)
        problem = replace(self.problem, batch=min(count, self.problem.batch))
        alpha, beta = (alpha, beta) if self.scaled else (1.0, 0.0)
        return self.kernel.plan(problem, addresses, alpha, beta), addresses


@dataclass(frozen=True)
class Program:
    """The launches of one product, in order."""

    stages: tuple[Stage, ...]
    workspace_bytes: int
    """What the stages pass on to one another; 0: nothing is borrowed."""

    @property
    def product(self) -> Stage:
        return next(stage for stage in self.stages if isinstance(stage.kernel, Tiled))


class _Workspace:
    def __init__(self) -> None:
        self.bytes = 0

    def room(self, size: int) -> Place:
        place = Place("work", self.bytes)
        self.bytes += ceil_div(size, SLOT) * SLOT
        return place


def packed(matrix: Matrix, rows: int, cols: int, batch: int, item: int) -> tuple[Matrix, int, int]:
    """(how a packed operand lies, its lines, the elements of each). The contiguous index stays, or becomes, the one
    with the smaller stride. A matrix that all products share is packed once."""
    along_rows = matrix.unit(rows, cols) == "row"
    if matrix.unit(rows, cols) == "none":
        along_rows = matrix.row_stride < matrix.col_stride
    lines, length = (cols, rows) if along_rows else (rows, cols)
    pitch = ceil_div(length * item, LINE) * LINE // item
    step = lines * pitch if batch > 1 and matrix.batch_stride else 0
    return Matrix(1, pitch, step) if along_rows else Matrix(pitch, 1, step), lines, length


def _pack_stage(name: str, problem: GemmProblem, workspace: _Workspace) -> tuple[Stage, Matrix, Place]:
    source, rows, cols = (
        (problem.a, problem.m, problem.k) if name == "a" else (problem.b, problem.k, problem.n)
    )  # fmt: skip
    item = ITEM_BYTES[problem.dtype]
    target, lines, length = packed(source, rows, cols, problem.batch, item)
    copies = problem.batch if target.batch_stride else 1
    along_rows = target.row_stride == 1 and target.col_stride != 1
    steps = (source.col_stride, source.row_stride) if along_rows else (source.row_stride, source.col_stride)
    pitch = target.col_stride if along_rows else target.row_stride
    place = workspace.room(copies * lines * pitch * item)
    copy = GemmProblem(
        lines, 1, length, Matrix(*steps, source.batch_stride, source.alignment), Matrix(0, 0),
        Matrix(pitch, 1, target.batch_stride), None, copies, problem.dtype, problem.dtype,
    )  # fmt: skip
    stage = Stage(f"pack {name}", PACK, copy, (Place(name), Place(name), Place(name), place), False)
    return stage, target, place


@lru_cache(maxsize=4096)
def program_for(problem: GemmProblem, plan: Plan) -> Program:
    """The launches that `plan` means for `problem`. Pure."""
    workspace = _Workspace()
    stages = []
    places = {name: Place(name) for name in ("a", "b", "c", "out")}
    product = problem
    for name in plan.packs:
        stage, lies, places[name] = _pack_stage(name, problem, workspace)
        stages.append(stage)
        product = replace(product, a=lies) if name == "a" else replace(product, b=lies)
    parts, tiled = plan.config.split_k, Tiled(plan.rung, plan.config)
    if parts == 1:
        order = (places["a"], places["b"], places["c"], places["out"])
        stages.append(Stage("product", tiled, product, order, True))
        return Program(tuple(stages), workspace.bytes)
    pitch = ceil_div(problem.n, 4) * 4
    partial = Matrix(pitch, 1, problem.m * pitch)
    sums = workspace.room(parts * problem.batch * problem.m * pitch * ITEM_BYTES["f32"])
    product = replace(product, out=partial, c=None, out_dtype="f32")
    order = (places["a"], places["b"], sums, sums)
    stages.append(Stage("product", tiled, product, order, False))
    total = replace(problem, k=parts, a=partial, b=Matrix(0, 0))
    order = (sums, sums, places["c"], places["out"])
    stages.append(Stage("sum of parts", SUM_PARTS, total, order, True))
    return Program(tuple(stages), workspace.bytes)
