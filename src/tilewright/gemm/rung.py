"""What a rung is: data and two pure functions, why_not and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from ..arrays.dtypes import CPP_TYPES, FP8, ITEM_BYTES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch, HashedOnce
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_maps
from ..jit.source import Constant, Library
from ..jit.tensor_map import TensorMap
from .fused import fused_headers, pack_fused
from .problem import GemmProblem


@dataclass(frozen=True)
class GemmConfig(HashedOnce):
    """The tile shapes of a GEMM kernel, in elements. 0 means that the rung has no such level.

    A block makes tile_m x tile_n of the result in steps of tile_k; a warp makes warp_m x warp_n of that, in
    subtiles_m x subtiles_n pieces; a thread makes thread_m x thread_n of each piece.
    """

    tile_m: int
    tile_n: int
    tile_k: int = 0
    thread_m: int = 1
    thread_n: int = 1
    warp_m: int = 0
    warp_n: int = 0
    subtiles_m: int = 1
    subtiles_n: int = 1
    stages: int = 1
    cache: str = ""
    """Where 16-byte asynchronous copies are cached: "cg" (L2 only) or "ca" (L1 too)."""
    group_m: int = 1
    """Tile rows that are walked together, column by column, so that their operands meet in L2."""
    min_blocks: int = 1
    """Blocks an SM that the compiler must leave registers for."""
    fragment_sets: int = 1
    """Sets of fragments in registers: 1 is refilled after the products that read it, 2 take turns."""
    split_k: int = 1
    """Blocks that share a tile, each with its part of k and partial sums of its own."""
    slices_k: int = 1
    """Groups of warps of a block that share its tile, each with its part of every step of k."""
    staged: int = 0
    """Buffers of a warp through which its results go to memory; 0: they leave from registers."""
    cluster_m: int = 1
    """Blocks of a cluster under one another,"""
    cluster_n: int = 1
    """and beside one another. They share copies of operands."""
    cluster_k: int = 1
    """Blocks of a cluster that share a tile, each with its part of k."""
    turns: int = 1
    """Sets of warpgroups of a block, each with tiles of its own: one multiplies while another stores."""
    stream_k: int = 0
    """Blocks that take equal parts of the steps of the last tiles; 0: all tiles are whole ones."""
    sums: int = 1
    """Sets of sums: 2 add up a stretch of k in one, and the stretches in the other, so that a long k loses less."""
    part_n: int = 0
    """Columns of a warp's tile whose partial sums are made at once, before they are added to the whole sums."""

    __hash__ = HashedOnce.__hash__

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def parts(self) -> int:
        """In how many launched parts k is walked."""
        return self.split_k

    def to_dict(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {name: getattr(self, name) for name in self.given}

    @cached_property
    def whole_k(self) -> GemmConfig:
        """The same with k in one part."""
        return self if self.split_k == 1 else replace(self, split_k=1)

    @cached_property
    def tile(self) -> tuple[int, int, int]:
        """The elements of a block's step along m, n and k; k at least 1."""
        return self.tile_m, self.tile_n, max(self.tile_k, 1)

    @cached_property
    def threads(self) -> int:
        if self.warp_m:
            warps = (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n)
            return 32 * warps * self.slices_k * self.turns
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    @cached_property
    def no_block(self) -> str | None:
        """Why it describes no block of threads at all, whatever the rung; None when it does."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                return f"{name} is {value!r}"
        if (self.warp_m == 0) != (self.warp_n == 0):
            return f"a warp's tile of {self.warp_m} x {self.warp_n} has no elements"
        if self.threads < 1:
            return "its tiles leave a block without threads"
        return None

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The fields that differ from their defaults."""
        return tuple(name for name, default in _FIELDS.items() if getattr(self, name) != default)

    def __str__(self) -> str:
        text = f"{self.tile_m}x{self.tile_n}" + (f"x{self.tile_k}" if self.tile_k else "")
        if self.warp_m:
            text += f" warp {self.warp_m}x{self.warp_n}"
            if self.subtiles_m * self.subtiles_n > 1:
                text += f"/{self.subtiles_m}x{self.subtiles_n}"
        if self.thread_m * self.thread_n > 1:
            text += f" thread {self.thread_m}x{self.thread_n}"
        if self.stages > 1:
            text += f" {self.stages} stages"
        if self.cache:
            text += f" {self.cache}"
        if self.group_m > 1:
            text += f" group {self.group_m}"
        if self.fragment_sets > 1:
            text += f" {self.fragment_sets} fragment sets"
        if self.split_k > 1:
            text += f" split k {self.split_k}"
        if self.stream_k:
            text += f" stream k {self.stream_k}"
        if self.slices_k > 1:
            text += f" {self.slices_k} slices"
        if self.cluster > 1:
            text += f" cluster {self.cluster_m}x{self.cluster_n}" + (f"x{self.cluster_k}" if self.cluster_k > 1 else "")
        if self.turns > 1:
            text += f" {self.turns} turns"
        if self.staged:
            text += f" {self.staged} staged"
        if self.sums > 1:
            text += f" {self.sums} sets of sums"
        if self.part_n:
            text += f" parts of {self.part_n}"
        return text


_FIELDS = {f.name: f.default for f in fields(GemmConfig)}
_MAY_BE_0 = ("tile_k", "warp_m", "warp_n", "staged", "stream_k", "part_n")
_LEAST = {name: 0 if name in _MAY_BE_0 else 1 for name in _FIELDS if name != "cache"}
_OWN_CONSTANTS = (
    "cache", "fragment_sets", "slices_k", "staged", "cluster_m", "cluster_n", "cluster_k", "turns", "stream_k", "sums",
    "part_n",
)  # fmt: skip
"""Fields of a config that only the rungs which use them compile in (Rung.own_constants)."""


_OF_EVERY_RUNG = ("tile_m", "tile_n", "group_m", "min_blocks")
"""Fields that any rung takes at any value; others only where its own configs have that level (Rung.why_not)."""


def _none(config: GemmConfig, problem: GemmProblem) -> dict[str, Constant]:
    return {}


def _no_maps(config: GemmConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
    return {}


def _no_operands(problem: GemmProblem) -> tuple[str, ...]:
    return ()


def walked(config: GemmConfig, problem: GemmProblem) -> tuple[int, int, int]:
    """The grid of our kernels: tiles in the order in which they walk them, batch, parts of k."""
    clusters = ceil_div(problem.m, config.cluster_m * config.tile_m) * ceil_div(
        problem.n, config.cluster_n * config.tile_n
    )
    return clusters * config.cluster, problem.batch, config.split_k


@dataclass(frozen=True)
class Addresses:
    """Where the operands of a launch are: addresses on the device, or places that a call fills in (jit/params.py).

    `c` is 0 when C is not read.
    """

    a: Address
    b: Address
    out: Address
    c: Address = 0
    fused: tuple[Address, ...] = ()
    """Of the epilogue's operands, in their order; of an index, where it starts."""
    numbers: tuple[float | Scalar, ...] = ()
    """The epilogue's numbers."""
    sums: Address = 0
    """Of sums that blocks pass on to one another,"""
    flags: Address = 0
    """and of the words that say they are there."""


STREAM_ARGS = "<2Q"
"""StreamArgs in cuda/tile/stream_pieces.cuh."""
_ARGS = "<4Q12q3i2f4x"
"""GemmArgs in cuda/gemm/args.cuh; a test holds them equal."""


def pack_args(problem: GemmProblem, at: Addresses, alpha: float | Scalar, beta: float | Scalar) -> Template:
    """The parameters of a kernel: GemmArgs, then those of an epilogue's operands."""
    fused = pack_fused(problem, at.fused, at.numbers)
    problem = in_pairs(problem) if problem.dtype in FP8 else problem
    c = problem.c or problem.out
    args = pack(
        _ARGS, at.a, at.b, at.c, at.out,
        problem.a.batch_stride, problem.b.batch_stride, c.batch_stride, problem.out.batch_stride,
        problem.a.row_stride, problem.a.col_stride, problem.b.row_stride, problem.b.col_stride,
        c.row_stride, c.col_stride, problem.out.row_stride, problem.out.col_stride,
        problem.m, problem.n, problem.k, alpha, beta,
    )  # fmt: skip
    return args + fused


def in_pairs(problem: GemmProblem) -> GemmProblem:
    """The problem as kernels of fp8 see it: two neighbours along k, which is contiguous, are one element of 16 bits."""
    return replace(
        problem, k=ceil_div(problem.k, 2),
        a=replace(problem.a, row_stride=problem.a.row_stride // 2, batch_stride=problem.a.batch_stride // 2),
        b=replace(problem.b, col_stride=problem.b.col_stride // 2, batch_stride=problem.b.batch_stride // 2),
    )  # fmt: skip


UNITS = {"none": 0, "col": 1, "row": 2}
"""Matrix.unit as device code has it (cuda/gemm/args.cuh)."""


def vector_out(problem: GemmProblem) -> bool:
    """Return whether whole 16-byte vectors of C and out can be moved: rows contiguous and aligned, n whole vectors."""
    return problem.lines.vectors


def result_constants(problem: GemmProblem) -> dict[str, Constant]:
    """Return what a kernel that stores results is compiled for: C's and out's type, and how they lie."""
    out_unit = problem.out.unit(problem.m, problem.n)
    if problem.c is not None and problem.c.unit(problem.m, problem.n) != out_unit:
        out_unit = "none"
    return {
        "out_type": CPP_TYPES[problem.out_dtype], "vector_out": vector_out(problem), "use_c": problem.use_c,
        "out_unit": UNITS[out_unit],
    }  # fmt: skip


@lru_cache(maxsize=1 << 12)
def own_facts(rung: Rung, config: GemmConfig, problem: GemmProblem) -> Mapping[str, Constant]:
    """As Rung.own_constants, which is asked several times for each config that a plan looks at."""
    return rung.own_constants(config, problem)


@dataclass(frozen=True, eq=False)
class Rung:
    """One rung of the GEMM ladder. It is itself: two are never equal."""

    id: str
    teaches: str
    """One line: what is new against the rung below, and what should move because of it."""
    include: str
    """Its file below cuda/."""
    dtypes: tuple[str, ...]
    default: GemmConfig
    space: Callable[[], tuple[GemmConfig, ...]]
    """Every config worth trying."""
    shared_bytes: Callable[[GemmConfig, GemmProblem], int]
    """Shared memory of a block, in bytes."""
    check: Callable[[GemmConfig, GemmProblem], str | None]
    """The rung's own demands on a config: None, or the reason with its numbers."""
    vector_bytes: int = 4
    """The width of the aligned path's accesses."""
    least_capability: tuple[int, int] = (8, 0)
    only_on: str = ""
    """The one target that has its instructions ("sm_90a"), where they are not in all later ones."""
    entry: str = "gemm"
    dynamic_shared: bool = False
    overlaps: bool = False
    """True where its kernel waits for earlier grids itself (jit.launch.Launch.overlaps)."""
    warpgroups: bool = False
    """True where four warps multiply as one, both operands from shared memory (wgmma)."""
    stays: bool = False
    """True where its blocks take tile after tile (jit.launch.Launch.resident)."""
    levels: tuple[str, ...] = ()
    """Fields of a config that its kernel knows besides those that its default sets."""
    precision: str = "ieee"
    """How it multiplies float32 operands (problem.PRECISIONS)."""
    splits: bool = False
    """True where it reads operands that launches of their own have split into parts (gemm/stages.py)."""
    halves: int = 0
    """The parts of an element where these are scaled fp16 numbers (cuda/tile/halved.cuh); 0: no such."""
    parts_as_batch: bool = False
    """True where parts of k are products of a batch to its kernel, which knows no parts itself (gemm/stages.py)."""
    must_pack: Callable[[GemmProblem], tuple[str, ...]] = _no_operands
    """The operands that its kernel cannot read as they lie: they are packed first, whatever a plan says."""
    own_constants: Callable[[GemmConfig, GemmProblem], dict[str, Constant]] = _none
    """What this rung's kernel is compiled for besides what all are."""
    grid: Callable[[GemmConfig, GemmProblem], tuple[int, int, int]] = walked
    """Blocks of a launch."""
    loaders: int = 0
    """Threads of a block besides its config's: they copy, and multiply nothing."""
    maps: Callable[[GemmConfig, GemmProblem], dict[str, TensorMap | None]] = _no_maps
    """The tensor maps that its kernel takes ahead of GemmArgs, in order: by the names of Addresses. None: not read."""
    passes_sums: Callable[[GemmConfig, GemmProblem], tuple[int, int]] | None = None
    """Bytes of Addresses.sums and flags, where its blocks pass sums on to one another."""
    libraries: Callable[[], tuple[Library, ...]] = tuple
    """Headers of other packages that its file includes. Raises MissingDependency where one is not installed."""

    def __str__(self) -> str:
        return self.id

    def why_not(self, problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
        """None when the config can run the problem on the architecture; else the reason, with the numbers."""
        if problem.dtype not in self.dtypes:
            return f"{self.id} multiplies {', '.join(self.dtypes)}; the operands are {problem.dtype}"
        if problem.precision != self.precision and (self.precision, problem.precision) != ("ieee", "fast"):
            return f"{self.id} multiplies with precision {self.precision!r}; asked for is {problem.precision!r}"
        if arch.compute_capability < self.least_capability:
            need, have = ("{}.{}".format(*cc) for cc in (self.least_capability, arch.compute_capability))
            return f"{self.id} needs compute capability {need}; {arch} has {have}"
        if self.only_on and arch.name != self.only_on:
            return f"{self.id} needs instructions that only {self.only_on} has; the target is {arch}"
        if reason := config.no_block or self._lacks(config) or self.check(config, problem):
            return f"{self.id} cannot take {config}: {reason}"
        if (threads := self.threads(config)) > arch.threads_per_block:
            return f"{config} needs {threads} threads a block; {arch} allows {arch.threads_per_block}"
        need_bytes = self.shared_bytes(config, problem)
        limit = arch.shared_per_block if self.dynamic_shared else 48 * 1024
        if need_bytes > limit:
            return f"{config} needs {need_bytes} B of shared memory a block; {arch} allows {limit}"
        tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n)
        if tiles >= 2**31:
            return f"{config} makes {tiles} tiles; a grid holds 2147483647"
        if config.split_k >= 2**16:
            return f"{config} makes {config.split_k} parts of k; a grid holds 65535"
        return None

    def threads(self, config: GemmConfig) -> int:
        """Return the threads of a block."""
        return config.threads + self.loaders

    def packs(self, problem: GemmProblem, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the operands that are packed first where a plan asks for `asked`."""
        needed = self.must_pack(problem)
        return tuple(name for name in "ab" if name in asked or name in needed) if needed else asked

    @cached_property
    def _levels(self) -> frozenset[str]:
        """Fields of a config that its kernel knows."""
        known = {*_OF_EVERY_RUNG, *self.levels, *self.default.given}
        pair = {"subtiles_m", "subtiles_n"}  # one level
        return frozenset(known | pair if known & pair else known)

    def _lacks(self, config: GemmConfig) -> str | None:
        """A level that the config has and this rung's kernel does not: it would make a part of the result only."""
        name = next((name for name in config.given if name not in self._levels), None)
        return f"{name} is {getattr(config, name)!r}, and it has no such level" if name else None

    def edge(self, problem: GemmProblem, config: GemmConfig) -> bool:
        """Return whether the problem needs the predicated path: a ragged size, or lines that vectors cannot read."""
        if problem.m % config.tile_m or problem.n % config.tile_n:
            return True
        if self.splits:  # operands are whole tiles by then
            return False
        if problem.k % max(config.tile_k, 1):
            return True
        if self.vector_bytes <= ITEM_BYTES[problem.dtype]:
            return False
        item, width = ITEM_BYTES[problem.dtype], self.vector_bytes
        if width == 16:
            return not (problem.lines.a_wide and problem.lines.b_wide)
        return not (
            problem.a.readable(problem.m, problem.k, item, width)
            and problem.b.readable(problem.k, problem.n, item, width)
        )

    def constants(self, problem: GemmProblem, config: GemmConfig) -> dict[str, Constant]:
        """Return what the kernel is compiled for: the config, and what of the problem selects a path."""
        values: dict[str, Constant] = {name: getattr(config, name) for name in _FIELDS if name not in _OWN_CONSTANTS}
        values |= {
            "threads": config.threads,
            "cache_all": config.cache == "ca",
            "edge": self.edge(problem, config),
            "a_unit": UNITS[problem.a.unit(problem.m, problem.k)],
            "b_unit": UNITS[problem.b.unit(problem.k, problem.n)],
        }
        return values | result_constants(problem) | self.own_constants(config, problem)

    def compile(self, problem: GemmProblem, config: GemmConfig, arch: Arch) -> CompiledKernel:
        """The kernel for this problem's class. Raises ConfigRejected with the reason, CompileError with the log."""
        if reason := self.why_not(problem, config, arch):
            raise ConfigRejected(f"{reason}.")
        constants = self.constants(problem, config)
        return compile_rung(self.include, constants, self.entry, arch.name, self.libraries(), fused_headers(problem))

    def shape(self, problem: GemmProblem, config: GemmConfig) -> Launch:
        """The grid, block and shared memory of one batch of at most 65535 products."""
        shared = self.shared_bytes(config, problem) if self.dynamic_shared else 0
        resident = config.min_blocks if self.stays else 0
        grid, block = self.grid(config, problem), (self.threads(config), 1, 1)
        return Launch(grid, block, b"", shared, self.overlaps, resident, config.cluster)

    def params(
        self, problem: GemmProblem, config: GemmConfig, at: Addresses, alpha: float | Scalar, beta: float | Scalar
    ) -> Template:
        """The parameters of its kernel: tensor maps, if it takes any, then those of every rung's."""
        maps = [(found, getattr(at, name)) for name, found in self.maps(config, problem).items()]
        args = pack_args(problem, at, alpha, beta)
        if self.passes_sums is not None:
            args += pack(STREAM_ARGS, at.sums, at.flags)
        return pack_maps(maps) + args if maps else args

    def launch(
        self, problem: GemmProblem, config: GemmConfig, addresses: Addresses, alpha: float = 1.0, beta: float = 0.0
    ) -> Launch:
        """The launch on operands at known addresses."""
        params = self.params(problem, config, addresses, alpha, beta)
        return replace(self.shape(problem, config), params=params.data, maps=params.maps)
