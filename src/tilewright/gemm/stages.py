"""The stages of a product: operands packed or split first, the product, the sum of its parts.

What a product launches and how much memory it borrows is decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arrays.dtypes import CPP_TYPES, FP8, ITEM_BYTES, ceil_div
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung, limits
from ..jit.compile import circumstances
from ..jit.limits import Recent
from ..jit.params import Place
from ..jit.source import Constant
from ..run.program import Program, Run, Stage, Workspace
from .config import GemmConfig
from .fused import fused_headers
from .params import (
    addresses_of,
    clear_params,
    fused_base,
    halve_params,
    pack_params,
    scales,
    split_params,
    sum_parts_params,
)
from .problem import GemmProblem, Matrix
from .rung import Rung, result_constants
from .rungs.halves import halved_bytes, halved_matrix
from .rungs.tensor32 import RECORD, record_bytes
from .shapes import Product

if TYPE_CHECKING:
    from ..plan.plan import Plan

SUM = "sum of parts"
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}
"""Elements of a size, to be copied."""


@dataclass(frozen=True)
class Helper:
    """A kernel besides the rungs, with one job: the same for each of many items."""

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

    def shape(self, problem: GemmProblem) -> Launch:
        """See Rung.shape."""
        blocks = ceil_div(self.items(problem), self.threads * self.each)
        return Launch((blocks, problem.batch, 1), (self.threads, 1, 1), b"", overlaps=True)


TURNED = 128
"""A block of `turn` transposes so many lines of so many bytes."""
PACK = Helper(
    "pack", 256, 4,
    lambda p: {"contiguous": p.a.col_stride == 1, "element": _BITS[ITEM_BYTES[p.dtype]]},
    lambda p: p.n * p.out.row_stride * ITEM_BYTES[p.dtype] // 16,
)  # fmt: skip
CLEAR = Helper("clear", 256, 1, lambda p: {}, lambda p: p.n, lambda p: {})
TURN = Helper(
    "turn", 256, 1,
    lambda p: {"aligned": p.a.alignment >= 4 and p.a.col_stride % 4 == 0 and p.a.batch_stride % 4 == 0},
    lambda p: 256 * ceil_div(p.n, TURNED) * ceil_div(p.out.row_stride, TURNED),
)  # fmt: skip
WIDEN = Helper(
    "widen", 256, 1, lambda p: {"in_type": CPP_TYPES[p.dtype]}, lambda p: max(p.m * ceil_div(p.k, 8), 1), lambda p: {}
)
SUM_PARTS = Helper(
    "sum_parts", 128, 1,
    lambda p: result_constants(p) | {"edge": True, "split_k": 1},
    lambda p: p.m * ceil_div(p.n, 4),
)  # fmt: skip


class _Lines(NamedTuple):
    """An operand by its lines, the rows of A or the columns of B."""

    lies: Matrix
    """How it lies, with its lines as rows."""
    number: int
    k_inner: bool
    """Whether a line is contiguous, or none is; else lines are side by side in memory."""


def _lines_of(problem: GemmProblem) -> dict[str, _Lines]:
    a, b = problem.a, replace(problem.b, row_stride=problem.b.col_stride, col_stride=problem.b.row_stride)
    return {
        name: _Lines(lies, number, lies.unit(number, problem.k) != "row")
        for name, lies, number in (("a", a, problem.m), ("b", b, problem.n))
    }


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
        return compile_rung("gemm/split.cuh", constants | RECORD, "split", arch.name)

    def shape(self, problem: GemmProblem) -> Launch:
        """See Rung.shape."""
        grid = (max(self.tiles(problem.m, problem.k), 1), problem.batch, 1)
        return Launch(grid, (self.threads, 1, 1), b"", overlaps=True)


_HALVING = 256
"""Threads of a block that makes scaled halves."""


@dataclass(frozen=True)
class Halve:
    """The kernel that makes scaled halves of both operands of its problem (cuda/gemm/halve.cuh)."""

    parts: int

    def __str__(self) -> str:
        return "halve"

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {
            "threads": _HALVING, "team": halving_team(problem.k), "share": _halving_cluster(problem),
            "parts": self.parts,
        }  # fmt: skip
        for name, lines in _lines_of(problem).items():
            constants[f"{name}_k_inner"] = lines.k_inner
            constants[f"{name}_wide"] = lines.lies.readable(lines.number, problem.k, ITEM_BYTES["f32"], 16)
        return compile_rung("gemm/halve.cuh", constants, "halve", arch.name)

    def shape(self, problem: GemmProblem) -> Launch:
        """See Rung.shape."""
        share, of_teams = _halving_cluster(problem), _HALVING // halving_team(problem.k)
        blocks = sum(
            share * ceil_div(lines.number, of_teams * share if lines.k_inner else 32)
            for lines in _lines_of(problem).values()
        )
        return Launch((blocks, problem.batch, 1), (_HALVING, 1, 1), b"", overlaps=True, cluster=share)


def halving_team(k: int) -> int:
    """Threads that make a line along k, which keep 16 elements each."""
    return min(max(1 << (ceil_div(k, 16) - 1).bit_length(), 32), _HALVING)


def _halving_cluster(problem: GemmProblem) -> int:
    """Blocks of a cluster."""
    return 1 if all(lines.k_inner for lines in _lines_of(problem).values()) else 8


_of_rows: Recent[Any, CompiledKernel] = Recent(limits.kernels)
"""Kernels that other numbers of rows than their own have run."""


@dataclass(frozen=True)
class Tiled:
    """The product itself: a rung with its config."""

    rung: Rung
    config: GemmConfig
    rows: int = 0
    """As plan.Plan.rows."""

    def compile(self, problem: GemmProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        if not self.rows:
            return self.rung.compile(problem, self.config, arch)
        problem = replace(problem, m=self.rows)
        key = self.rung, self.config, problem, arch, circumstances()
        kernel = _of_rows.get(key)
        if kernel is None:
            kernel = self.rung.compile(problem, self.config, arch)
            _of_rows.put(key, kernel)
        return kernel

    def shape(self, problem: GemmProblem) -> Launch:
        return self.rung.shape(problem, self.config)


def config_of(program: Program) -> GemmConfig:
    """The config of the product's own stage."""
    kernel = program.product.kernel
    assert isinstance(kernel, Tiled)
    return kernel.config


def stage(
    name: str, kernel: Tiled, problem: GemmProblem, places: tuple[Place | int, Place | int, Place | int, Place | int],
    scaled: bool = False, sums: Place | int = 0, flags: Place | int = 0,
) -> Stage:  # fmt: skip
    """The launch of a product. `places`: of a, b, c and out; `scaled`: alpha and beta apply here; `sums`, `flags`: as
    Addresses."""
    at = replace(addresses_of(problem, *places), sums=sums, flags=flags)
    params = kernel.rung.params(problem, kernel.config, at, *scales(scaled))
    return Stage(name, kernel, problem, kernel.shape(problem), params)


def clear_stage(place: Place, size: int) -> Stage:
    """The words at `place`, `size` bytes, become 0."""
    words = GemmProblem(1, size // 4, 1, Matrix(0, 0), Matrix(0, 0), Matrix(0, 1))
    return Stage("clear flags", CLEAR, words, CLEAR.shape(words), clear_params(place, size // 4))


def pack_stage(
    name: str, problem: GemmProblem, config: GemmConfig, workspace: Workspace
) -> tuple[Stage, Matrix, Place]:
    """The copy of operand `name` to whole tiles, how it then lies, and where."""
    copied, source = problem.packing(name, config.tile), problem.side(name).matrix
    lies, dtype = copied.lies, problem.dtype_of(name)
    place = workspace.room(copied.bytes)
    copy = GemmProblem(
        copied.lines, copied.padded, copied.length,
        Matrix(*copied.steps, source.batch_stride, source.alignment), Matrix(0, 0),
        Matrix(copied.pitch, 1, lies.batch_stride), None, copied.copies, dtype, dtype,
    )  # fmt: skip
    params = pack_params(copy, Place(name), place)
    # an fp8 operand whose lines lie across k: 16 bytes of a packed line would come from 16 places
    helper = TURN if dtype in FP8 and copy.a.row_stride == 1 != copy.a.col_stride else PACK
    return Stage(f"pack {name}", helper, copy, helper.shape(copy), params), lies, place


def widen_stage(
    name: str, dtype: str, source: Matrix, lines: int, length: int, workspace: Workspace
) -> tuple[Stage, Place]:
    """The fp16 copy of an fp8 operand in `lines` of `length` elements, and where: its lines are widened_pitch apart."""
    pitch = widened_pitch(length)
    place = workspace.room(2 * lines * pitch)
    copy = GemmProblem(lines, lines, length, source, Matrix(0, 0), Matrix(pitch, 1), dtype=dtype, out_dtype="f16")
    return Stage(f"widen {name}", WIDEN, copy, WIDEN.shape(copy), pack_params(copy, Place(name), place)), place


def widened_pitch(length: int) -> int:
    """Elements from one line of a widened operand to the next."""
    return ceil_div(length, 8) * 8


def _split_stage(
    name: str, problem: GemmProblem, config: GemmConfig, workspace: Workspace
) -> tuple[Stage, Matrix, Place]:
    """Do as pack_stage, into parts."""
    source, lines, _ = _lines_of(problem)[name]
    split = Split(config.tile_m if name == "a" else config.tile_n, config.tile_k)
    copies = problem.batch if source.batch_stride else 1
    size = record_bytes(split.extent, split.tile_k, lines, problem.k)
    target = Matrix(0, 1, size // ITEM_BYTES["f32"] if copies > 1 else 0, padded=True)
    place = workspace.room(copies * size)
    work = GemmProblem(lines, 1, problem.k, source, Matrix(0, 0), target, None, copies)
    params = split_params(work, Place(name), place)
    return Stage(f"split {name}", split, work, split.shape(work), params), target, place


def _halve_stage(
    problem: GemmProblem, parts: int, workspace: Workspace
) -> tuple[Stage, tuple[Matrix, Place], tuple[Matrix, Place]]:
    """The scaled halves of A and B, and for each how they then lie, and where."""
    made = []
    for name, (lies, lines, _) in _lines_of(problem).items():
        copies = problem.batch if lies.batch_stride else 1
        place = workspace.room(halved_bytes(parts, lines, problem.k, copies))
        made.append((halved_matrix(name, parts, lines, problem.k, copies > 1), place))
    a, b = made
    entries = problem.batch if problem.a.batch_stride or problem.b.batch_stride else 1
    work, kernel = replace(problem.bare, batch=entries), Halve(parts)
    return Stage("halve", kernel, work, kernel.shape(work), halve_params(work, a[1], b[1])), a, b


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
    program, _ = parts_of(problem, plan)
    return program


@lru_cache(maxsize=4096)
def program_of(product: Product, plan: Plan) -> Program:
    """The same for a product whose batch may take several launches of a grid. Pure."""
    if not product.outer and product.problem.batch == 1:
        return parts_of(product.problem, plan)[0]
    launches = tuple(product.launches())
    most = max(count for count, _ in launches)
    program, copies = parts_of(replace(product.problem, batch=most), plan)
    shapes = {count: shapes_for(program, count, copies) for count in {count for count, _ in launches}}
    operands = product.problem.epilogue.operands if product.problem.epilogue else ()
    names = ("a", "b", "c", "out", *(fused_base(number) for number in range(len(operands))))
    runs = tuple(
        Run(shapes[count], tuple((name, at) for name, at in zip(names, offsets, strict=True) if at), count)
        for count, offsets in launches
    )
    return replace(program, runs=runs)


def shapes_for(program: Program, count: int, copies: int = 1) -> tuple[Launch, ...]:
    """The launches of the stages for `count` of the products that the program was made for.

    `copies`: entries of a stage's batch for each product, but for the sum of parts.
    """
    return tuple(_of_fewer(stage, count * (1 if stage.name == SUM else copies)) for stage in program.stages)


def _of_fewer(stage: Stage, count: int) -> Launch:
    """The stage's launch for `count` entries of its batch, which the grid's second axis counts where they are fewer."""
    x, _, z = stage.shape.grid
    return stage.shape if count >= stage.problem.batch else replace(stage.shape, grid=(x, count, z))


def parts_of(problem: GemmProblem, plan: Plan) -> tuple[Program, int]:
    """The program, and how many entries of its stages' batch each product is: parts of k, where these are a batch."""
    workspace = Workspace()
    stages = []
    places: dict[str, Place | int] = {name: Place(name) for name in ("a", "b", "out")}
    places["c"] = Place("c") if problem.c is not None else 0
    parts, config, product, copies = plan.config.split_k, plan.config, problem, 1
    if parts > 1 and plan.rung.parts_as_batch:
        config, product, copies = replace(config, split_k=1), _batch_of_parts(problem, parts), parts
    whole = product
    if plan.rung.halves:
        halved, (a, places["a"]), (b, places["b"]) = _halve_stage(whole, plan.rung.halves, workspace)
        stages.append(halved)
        product = replace(product, a=a, b=b)
    else:
        prepare = _split_stage if plan.rung.splits else pack_stage
        for name in "ab" if plan.rung.splits else plan.rung.packs(problem, plan.packs):
            prepared, lies, places[name] = prepare(name, whole, config, workspace)
            stages.append(prepared)
            product = replace(product, a=lies) if name == "a" else replace(product, b=lies)
    tiled, main = Tiled(plan.rung, config, plan.rows), len(stages)
    if parts == 1:
        order = (places["a"], places["b"], places["c"], places["out"])
        passed: tuple[Place | int, Place | int] = (0, 0)
        if plan.rung.passes_sums is not None:
            of_sums, of_flags = plan.rung.passes_sums(config, product)
            passed = sums, flags = workspace.room(of_sums), workspace.room(of_flags)
            stages.append(clear_stage(flags, of_flags))
            main += 1
        stages.append(stage("product", tiled, product, order, True, *passed))
        return _beside_others(stages, workspace, main), copies
    pitch = ceil_div(problem.n, 4) * 4
    partial = Matrix(pitch, 1, problem.m * pitch)
    sums = workspace.room(parts * problem.batch * problem.m * pitch * ITEM_BYTES["f32"])
    product = replace(product.bare, out=partial, c=None, out_dtype="f32")
    stages.append(stage("product", tiled, product, (places["a"], places["b"], 0, sums)))
    total = replace(problem, a=partial, b=Matrix(0, 0))
    params = sum_parts_params(total, sums, parts, places["c"], places["out"])
    stages.append(Stage(SUM, SUM_PARTS, total, SUM_PARTS.shape(total), params))
    return _beside_others(stages, workspace, main), copies


def _beside_others(stages: list[Stage], workspace: Workspace, main: int) -> Program:
    """The program whose product spreads over the SMs where other stages' blocks may still run as it starts."""
    product = stages[main]
    if len(stages) > 1:
        stages[main] = replace(product, shape=replace(product.shape, spreads=product.shape.cluster == 1))
    return Program(tuple(stages), workspace.bytes, main)
