"""A rung: data and two pure functions, why_not and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..arrays.dtypes import CPP_TYPES, FP8, ITEM_BYTES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_maps
from ..jit.source import Constant, Library
from ..jit.tensor_map import TensorMap
from .config import GemmConfig, as_family
from .fused import fused_headers, pack_fused
from .problem import GemmProblem

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
    """The places of a launch's operands: addresses on the device, or places that a call fills in (jit/params.py).

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


WALK_ARGS = "<I"
"""WalkArgs in cuda/tile/cluster_tiles.cuh."""
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


class Reading(NamedTuple):
    """How a kernel reads its operands "a" and "b", by what it is compiled for."""

    narrow: tuple[str, ...]
    """Those that it copies element by element as they lie, and faster once they are packed: of 16 bits those whose
    lines no 16-byte access reads; of 32 bits those that no tile divides too."""
    halved: tuple[str, ...]
    """Those of 16 bits whose lines do not start at sectors."""
    edges: Mapping[str, Constant] = {}
    """Of 32 bits, a_edge and b_edge where it has such constants."""

    @staticmethod
    def of(facts: Mapping[str, Constant]) -> Reading:
        """`facts`: as Rung.own_constants."""
        narrow = tuple([name for name in "ab" if facts.get(f"{name}_edge") and not facts.get(f"{name}_wide")])
        return Reading(narrow, tuple([name for name in "ab" if not facts.get(f"{name}_sectors", True)]), facts)


def reading(rung: Rung, config: GemmConfig, problem: GemmProblem) -> Reading:
    """Return how the rung's kernel reads operands: asked several times for each config that a plan looks at."""
    return rung.reads(problem) if rung.reads else _own_reading(rung, config, problem)


@lru_cache(maxsize=1 << 12)
def _own_reading(rung: Rung, config: GemmConfig, problem: GemmProblem) -> Reading:
    return Reading.of(rung.own_constants(config, problem))


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
    """Its family is that of every config of the rung."""
    space: Callable[[], tuple[GemmConfig, ...]]
    """Every config worth trying."""
    shared_bytes: Callable[[Any, GemmProblem], int]
    """Shared memory of a block, in bytes."""
    check: Callable[[Any, GemmProblem], str | None]
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
    own_constants: Callable[[Any, GemmProblem], dict[str, Constant]] = _none
    """What this rung's kernel is compiled for besides what all are."""
    reads: Callable[[GemmProblem], Reading] | None = None
    """The Reading of its own_constants, where that is the same for all configs: plans ask for it."""
    grid: Callable[[Any, GemmProblem], tuple[int, int, int]] = walked
    """Blocks of a launch."""
    loaders: int = 0
    """Threads of a block besides its config's: they copy, and multiply nothing."""
    maps: Callable[[Any, GemmProblem], dict[str, TensorMap | None]] = _no_maps
    """The tensor maps that its kernel takes ahead of GemmArgs, in order: by the names of Addresses. None: not read."""
    passes_sums: Callable[[Any, GemmProblem], tuple[int, int]] | None = None
    """Bytes of Addresses.sums and flags, where its blocks pass sums on to one another."""
    walks: Callable[[Any, GemmProblem], int] | None = None
    """How many products of a batch its blocks walk as one row of tiles; where 1, the grid's second axis counts them."""
    one_chain: bool = False
    """True where it adds up k as batch_invariant asks. All such rungs of a kind of product give the same bits: wgmma
    adds as mma.sync does (tests/gpu)."""
    other_chain_on: str = ""
    """The target on which `one_chain` does not hold, because higher rungs' chains there have other bits."""
    libraries: Callable[[], tuple[Library, ...]] = tuple
    """Headers of other packages that its file includes. Raises MissingDependency where one is not installed."""

    def __str__(self) -> str:
        return self.id

    def why_not(self, problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
        """Return None when the config can run the problem on the architecture; else the reason, with the numbers."""
        if problem.dtype not in self.dtypes:
            return f"{self.id} multiplies {', '.join(self.dtypes)}; the operands are {problem.dtype}"
        if problem.precision != self.precision and (self.precision, problem.precision) != ("ieee", "fast"):
            return f"{self.id} multiplies with precision {self.precision!r}; asked for is {problem.precision!r}"
        if reason := self.not_on(arch):
            return reason
        if reason := config.no_block or self._lacks(config) or self.check(config, problem):
            return f"{self.id} cannot take {config}: {reason}"
        if (threads := self.threads(config)) > arch.threads_per_block:
            return f"{config} needs {threads} threads per block; {arch} allows {arch.threads_per_block}"
        need_bytes = self.shared_bytes(config, problem)
        limit = arch.shared_per_block if self.dynamic_shared else 48 * 1024
        if need_bytes > limit:
            return f"{config} needs {need_bytes} B of shared memory per block; {arch} allows {limit}"
        tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n)
        if tiles >= 2**31:
            return f"{config} makes {tiles} tiles; a grid holds 2147483647"
        if config.split_k >= 2**16:
            return f"{config} makes {config.split_k} parts of k; a grid holds 65535"
        return None

    def not_on(self, arch: Arch) -> str | None:
        """Return why no config of the rung can run on the architecture; None where some may."""
        if arch.compute_capability < self.least_capability:
            need, have = ("{}.{}".format(*cc) for cc in (self.least_capability, arch.compute_capability))
            return f"{self.id} needs compute capability {need}; {arch} has {have}"
        if self.only_on and arch.name != self.only_on:
            return f"{self.id} needs instructions that only {self.only_on} has; the target is {arch}"
        return None

    def own(self, config: GemmConfig) -> GemmConfig:
        """Return a config in the rung's own family, where that has all of its fields; else the config itself."""
        return as_family(config, type(self.default))

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
        if not isinstance(config, family := type(self.default)):
            return f"it is a {type(config).__name__}, and the rung takes a {family.__name__}"
        known, given = self._levels, config.whole_k.given  # of all parts of k the same
        if known.issuperset(given) and (config.split_k == 1 or "split_k" in known):
            return None
        name = next(name for name in config.given if name not in known)
        return f"{name} is {getattr(config, name)!r}, and it has no such level"

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
        values: dict[str, Constant] = {name: getattr(config, name) for name in config.compiled}
        values |= {
            "threads": config.threads,
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
        x, y, z = self.grid(config, problem)
        walked = self.walks(config, problem) if self.walks is not None else 1
        grid, block = (x * walked, y // walked, z), (self.threads(config), 1, 1)
        return Launch(grid, block, b"", shared, self.overlaps, resident, config.cluster)

    def params(
        self, problem: GemmProblem, config: GemmConfig, at: Addresses, alpha: float | Scalar, beta: float | Scalar
    ) -> Template:
        """The parameters of its kernel: tensor maps, if it takes any, then those of every rung's."""
        maps = [(found, getattr(at, name)) for name, found in self.maps(config, problem).items()]
        args = pack_args(problem, at, alpha, beta)
        if self.walks is not None:
            args += pack(WALK_ARGS, self.walks(config, problem))
        if self.passes_sums is not None:
            args += pack(STREAM_ARGS, at.sums, at.flags)
        return pack_maps(maps) + args if maps else args

    def launch(
        self, problem: GemmProblem, config: GemmConfig, addresses: Addresses, alpha: float = 1.0, beta: float = 0.0
    ) -> Launch:
        """The launch on operands at known addresses."""
        params = self.params(problem, config, addresses, alpha, beta)
        return replace(self.shape(problem, config), params=params.data, maps=params.maps)
