"""A plan as launches over a workspace: operands packed or split first, the product, the sum of its parts.

Every kernel of a program takes the same parameters (cuda/gemm/args.cuh); each stage says which operand, or which part
of the workspace, stands where in them. What a product launches and how much memory it borrows is decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..epilogue.packing import fused_headers
from ..gemm.problem import ITEM_BYTES, GemmProblem, Matrix
from ..gemm.rung import Addresses, GemmConfig, Rung, ceil_div, pack_args, result_constants
from ..gemm.rungs.tensor32 import record_bytes
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.source import Constant

if TYPE_CHECKING:
    from ..plan.plan import Plan

_BITS = {2: "unsigned short", 4: "unsigned"}
"""Elements of a size, to be copied."""
SLOT = 256
"""Each part of a workspace starts at a multiple of this many bytes."""


@dataclass(frozen=True)
class Helper:
    """A kernel beside the rungs with one job: the same for each of many items."""

    entry: str
    """Its kernel, and its file in cuda/gemm."""
    threads: int
    each: int
    """Items a thread."""
    constants: Callable[[GemmProblem], dict[str, Constant]]
    items: Callable[[GemmProblem], int]
    """How many a batch entry has: chunks of 16 bytes to pack, runs of four elements to sum."""
    headers: Callable[[GemmProblem], dict[str, str]] = fused_headers
    """The texts made for a problem (jit.compile_rung)."""

    def __str__(self) -> str:
        return self.entry

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants = {"threads": self.threads, "each": self.each} | self.constants(problem)
        return compile_rung(f"gemm/{self.entry}.cuh", constants, self.entry, arch.name, generated=self.headers(problem))

    def plan(self, problem: GemmProblem, addresses: Addresses, alpha: float, beta: float) -> Launch:
        """As Rung.plan."""
        blocks = ceil_div(self.items(problem), self.threads * self.each)
        params = pack_args(problem, addresses, alpha, beta)
        return Launch((blocks, problem.batch, 1), (self.threads, 1, 1), params, overlaps=True)


PACK = Helper(
    "pack", 256, 4,
    lambda p: {"contiguous": p.a.col_stride == 1, "element": _BITS[ITEM_BYTES[p.dtype]]},
    lambda p: p.n * p.out.row_stride * ITEM_BYTES[p.dtype] // 16,
)  # fmt: skip
SUM_PARTS = Helper(
    "sum_parts", 128, 1,
    lambda p: result_constants(p) | {"edge": True, "split_k": 1},
    lambda p: p.m * ceil_div(p.n, 4),
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """The kernel that makes parts of an operand, tiles of `extent` lines x `tile_k` (cuda/tile/split_operand.cuh). Its
    problem: `a` has m lines of k elements, `out` gets records."""

    extent: int
    tile_k: int

    def __str__(self) -> str:
        return "split"

    @property
    def threads(self) -> int:
        return min(self.extent * self.tile_k // 16, 256)

    def tiles(self, lines: int, k: int) -> int:
        return ceil_div(lines, self.extent) * ceil_div(k, self.tile_k)

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {
            "threads": self.threads, "extent": self.extent, "tile_k": self.tile_k,
            "k_inner": problem.a.unit(problem.m, problem.k) != "row",
            "wide": problem.a.readable(problem.m, problem.k, ITEM_BYTES["f32"], 16),
        }  # fmt: skip
        return compile_rung("gemm/split.cuh", constants, "split", arch.name)

    def plan(self, problem: GemmProblem, addresses: Addresses, alpha: float, beta: float) -> Launch:
        """As Rung.plan."""
        params = pack_args(problem, addresses, alpha, beta)
        grid = (max(self.tiles(problem.m, problem.k), 1), problem.batch, 1)
        return Launch(grid, (self.threads, 1, 1), params, overlaps=True)


def fused_base(number: int) -> str:
    """The name of an epilogue operand's base."""
    return f"fused {number}"


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
    """ "pack a", "pack b", "split a", "split b", "product" or "sum of parts"."""
    kernel: Tiled | Helper | Split
    problem: GemmProblem
    """What its parameters describe."""
    places: tuple[Place, Place, Place, Place]
    """Of a, b, c and out in its parameters."""
    scaled: bool
    """Whether alpha and beta are applied here."""
    copies: int = 1
    """Entries of its batch for each product: parts of k, where these are a batch."""

    @property
    def config(self) -> GemmConfig:
        """Of the product's stage."""
        assert isinstance(self.kernel, Tiled)
        return self.kernel.config

    def compile(self, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        return self.kernel.compile(self.problem, arch)

    def launch(self, count: int, bases: Mapping[str, int], alpha: float, beta: float) -> tuple[Launch, Addresses]:
        """The launch of `count` products with the operands of one launch at `bases`."""
        a, b, c, out = (bases[place.base] + place.offset for place in self.places)
        fused = self.problem.epilogue.operands if self.problem.epilogue else ()
        addresses = Addresses(a, b, out, c, tuple(bases[fused_base(number)] for number in range(len(fused))))
        problem = replace(self.problem, batch=min(count * self.copies, self.problem.batch))
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


def _pack_stage(
    name: str, problem: GemmProblem, config: GemmConfig, workspace: _Workspace
) -> tuple[Stage, Matrix, Place]:
    """The copy of operand `name` to whole tiles, how it then lies, and where."""
    copied, source = problem.packing(name, config.tile), problem.side(name).matrix
    lies = copied.lies
    place = workspace.room(copied.bytes)
    copy = GemmProblem(
        copied.lines, copied.padded, copied.length,
        Matrix(*copied.steps, source.batch_stride, source.alignment), Matrix(0, 0),
        Matrix(copied.pitch, 1, lies.batch_stride), None, copied.copies, problem.dtype, problem.dtype,
    )  # fmt: skip
    stage = Stage(f"pack {name}", PACK, copy, (Place(name), Place(name), Place(name), place), False)
    return stage, lies, place


def _split_stage(
    name: str, problem: GemmProblem, config: GemmConfig, workspace: _Workspace
) -> tuple[Stage, Matrix, Place]:
    """As _pack_stage, into parts."""
    source, lines, split = (
        (problem.a, problem.m, Split(config.tile_m, config.tile_k)) if name == "a"
        else (replace(problem.b, row_stride=problem.b.col_stride, col_stride=problem.b.row_stride), problem.n,
              Split(config.tile_n, config.tile_k))
    )  # fmt: skip
    copies = problem.batch if source.batch_stride else 1
    size = record_bytes(split.extent, split.tile_k, lines, problem.k)
    target = Matrix(0, 1, size // ITEM_BYTES["f32"] if copies > 1 else 0, padded=True)
    place = workspace.room(copies * size)
    work = GemmProblem(lines, 1, problem.k, source, Matrix(0, 0), target, None, copies)
    return Stage(f"split {name}", split, work, (Place(name), Place(name), Place(name), place), False), target, place


def _batch_of_parts(problem: GemmProblem, parts: int) -> GemmProblem:
    """One product as a batch of products of its parts of k (Rung.check has found that they are equal)."""
    k = problem.k // parts
    a, b = problem.a, problem.b
    return replace(
        problem, k=k, batch=parts, a=replace(a, batch_stride=k * a.col_stride),
        b=replace(b, batch_stride=k * b.row_stride),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def program_for(problem: GemmProblem, plan: Plan) -> Program:
    """The launches that `plan` means for `problem`. Pure."""
    workspace = _Workspace()
    stages = []
    places = {name: Place(name) for name in ("a", "b", "c", "out")}
    parts, config, product, copies = plan.config.split_k, plan.config, problem, 1
    if parts > 1 and plan.rung.parts_as_batch:
        config, product, copies = replace(config, split_k=1), _batch_of_parts(problem, parts), parts
    whole = product
    for name in "ab" if plan.rung.splits else plan.packs:
        prepare = _split_stage if plan.rung.splits else _pack_stage
        stage, lies, places[name] = prepare(name, whole, config, workspace)
        stages.append(replace(stage, copies=copies))
        product = replace(product, a=lies) if name == "a" else replace(product, b=lies)
    tiled = Tiled(plan.rung, config)
    if parts == 1:
        order = (places["a"], places["b"], places["c"], places["out"])
        stages.append(Stage("product", tiled, product, order, True))
        return Program(tuple(stages), workspace.bytes)
    pitch = ceil_div(problem.n, 4) * 4
    partial = Matrix(pitch, 1, problem.m * pitch)
    sums = workspace.room(parts * problem.batch * problem.m * pitch * ITEM_BYTES["f32"])
    product = replace(product, out=partial, c=None, out_dtype="f32", epilogue=None)
    order = (places["a"], places["b"], sums, sums)
    stages.append(Stage("product", tiled, product, order, False, copies))
    total = replace(problem, k=parts, a=partial, b=Matrix(0, 0))
    order = (sums, sums, places["c"], places["out"])
    stages.append(Stage("sum of parts", SUM_PARTS, total, order, True))
    return Program(tuple(stages), workspace.bytes)
