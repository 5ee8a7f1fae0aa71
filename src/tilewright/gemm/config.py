"""The configs of products: what a block, a warp and a thread make of the result. A family for each way to multiply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, TypeVar

from ..gpus import HashedOnce

ORDER = (
    "tile_m", "tile_n", "tile_k", "thread_m", "thread_n", "warp_m", "warp_n", "subtiles_m", "subtiles_n", "stages",
    "cache", "group_m", "min_blocks", "fragment_sets", "split_k", "slices_k", "staged", "cluster_m", "cluster_n",
    "cluster_k", "turns", "stream_k", "sums", "part_n",
)  # fmt: skip
"""The fields of all families, as stored configs have them, and values without names in GemmConfig(...)."""
_MAY_BE_0 = ("tile_k", "warp_m", "warp_n", "staged", "stream_k", "part_n")
_WGMMA_WIDTHS = range(32, 257, 16)


class _ByFields(type):
    """Lets GemmConfig(...) make a config of the family that has the fields which are named."""

    def __call__(cls, *values: Any, **named: Any) -> Any:
        if cls is not GemmConfig:
            return super().__call__(*values, **named)
        if len(values) > len(ORDER) or any(name in named for name in ORDER[: len(values)]):
            raise TypeError(f"a config has at most the values {', '.join(ORDER)}, each once")
        return of_fields(dict(zip(ORDER, values, strict=False)) | named)


@dataclass(frozen=True, repr=False)
class GemmConfig(HashedOnce, metaclass=_ByFields):
    """The tile shapes of a GEMM kernel, in elements, and how it walks them: what configs of all families have.

    A block makes tile_m x tile_n of the result in steps of tile_k; a warp makes warp_m x warp_n of that. 0 means that
    the kernel has no such level. GemmConfig(...) makes a SimtConfig, MmaConfig or WgmmaConfig, whichever has the fields
    that are named.
    """

    tile_m: int
    tile_n: int
    tile_k: int = 0
    _: KW_ONLY
    warp_m: int = 0
    warp_n: int = 0
    stages: int = 1
    """Tiles of k in shared memory."""
    group_m: int = 1
    """Tile rows that are walked together, column by column, so that their operands meet in L2."""
    min_blocks: int = 1
    """Blocks an SM that the compiler must leave registers for."""
    split_k: int = 1
    """Blocks that share a tile, each with its part of k and partial sums of its own."""

    __hash__ = HashedOnce.__hash__

    compiled: ClassVar[tuple[str, ...]] = (
        "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "group_m", "min_blocks", "split_k",
    )  # fmt: skip
    """Fields that every kernel of the family is compiled with; a rung may add others (Rung.own_constants)."""

    # what a config answers for fields of another family: the model of time and the grid ask any config

    @property
    def slices_k(self) -> int:
        return 1

    @property
    def fragment_sets(self) -> int:
        return 1

    @property
    def turns(self) -> int:
        return 1

    @property
    def staged(self) -> int:
        return 0

    @property
    def part_n(self) -> int:
        return 0

    @property
    def cluster_m(self) -> int:
        return 1

    @property
    def cluster_n(self) -> int:
        return 1

    @property
    def cluster_k(self) -> int:
        return 1

    @property
    def held(self) -> int:
        """Elements of operands in the shared memory of a block."""
        return self.stages * self.tile_k * (self.tile_m + self.tile_n)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def parts(self) -> int:
        """The number of launched parts in which k is walked."""
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
        """Threads of a block that multiply."""
        return 32 * self._warps

    @property
    def _warps(self) -> int:
        """Warps that a tile is divided among."""
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n) if self.warp_m else 0

    @cached_property
    def no_block(self) -> str | None:
        """Why it describes no block of threads at all, whatever the rung; None when it does."""
        own = self.__dict__
        for name, least in _least_of(type(self)):
            value = own[name]
            if not (isinstance(value, int) and value >= least):
                return f"{name} is {value!r}"
        if (self.warp_m == 0) != (self.warp_n == 0):
            return f"a warp's tile of {self.warp_m} x {self.warp_n} has no elements"
        if self.threads < 1:
            return "its tiles leave a block without threads"
        return None

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The fields that differ from their defaults."""
        own = self.__dict__
        return tuple([name for name, default in defaults_of(type(self)).items() if own[name] != default])

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in defaults_of(type(self)))
        return f"{type(self).__name__}({values})"

    def __str__(self) -> str:
        given: dict[str, Any] = {"subtiles_m": 1, "subtiles_n": 1, "thread_m": 1, "thread_n": 1} | self.to_dict()
        text = f"{self.tile_m}x{self.tile_n}" + (f"x{self.tile_k}" if self.tile_k else "")
        if self.warp_m:
            text += f" warp {self.warp_m}x{self.warp_n}"
            if given["subtiles_m"] * given["subtiles_n"] > 1:
                text += "/{subtiles_m}x{subtiles_n}".format(**given)
        if given["thread_m"] * given["thread_n"] > 1:
            text += " thread {thread_m}x{thread_n}".format(**given)
        if self.cluster > 1:
            shape = (self.cluster_m, self.cluster_n, self.cluster_k)[: 3 if self.cluster_k > 1 else 2]
            given["cluster"] = "x".join(map(str, shape))
        return text + "".join(f" {words.format(given[name])}" for name, words in _WORDS.items() if name in given)

    @property
    def legend(self) -> str:
        """One line that says what the parts of the text mean."""
        given = self.to_dict()
        told = ["tile of a block, m x n" + (" x k" if self.tile_k else "")]
        if self.warp_m:
            pieces = given.keys() & {"subtiles_m", "subtiles_n"}
            told.append("warp: its part of the tile" + (", / in so many pieces" if pieces else ""))
        if given.keys() & {"thread_m", "thread_n"}:
            told.append("thread: its part of " + ("a piece" if self.warp_m else "the tile"))
        told += [words for name, words in _LEVELS.items() if name in given]
        told += [_CACHES[given["cache"]]] if given.get("cache") in _CACHES else []
        told += ["cluster: blocks that share copies"] if self.cluster > 1 else []
        return "; ".join(told)


_WORDS = {
    "stages": "{} stages", "cache": "{}", "group_m": "group {}", "fragment_sets": "{} fragment sets",
    "split_k": "split k {}", "stream_k": "stream k {}", "slices_k": "{} slices", "cluster": "cluster {}",
    "turns": "{} turns", "staged": "{} staged", "sums": "{} sets of sums", "part_n": "parts of {}",
}  # fmt: skip
"""How a config's text tells a level, after its tiles."""
_CACHES = {"ca": "ca: copies pass through L1", "cg": "cg: copies skip L1"}
_LEVELS = {
    "stages": "stages: tiles of k in flight",
    "group_m": "group: tile rows walked together",
    "fragment_sets": "fragment sets: sets of registers that take turns",
    "split_k": "split k: blocks that share a tile's sum",
    "slices_k": "slices: groups of warps that share a tile's sum",
    "sums": "sets of sums: one for a stretch of k, one for the stretches' sums",
    "staged": "staged: buffers of a warp through which results leave",
    "turns": "turns: sets of warps, each with tiles of its own: one multiplies while another stores",
    "stream_k": "stream k: blocks that share the steps of the last tiles evenly",
    "part_n": "parts of: columns of partial sums",
}
"""What a level means, by its field."""


@dataclass(frozen=True, repr=False)
class SimtConfig(GemmConfig):
    """The config of rungs that multiply on FP32 lanes: a thread makes thread_m x thread_n of each piece.

    The pieces are subtiles_m x subtiles_n of a warp's tile; without warp tiles, the block's tile is one piece.
    """

    thread_m: int = 1
    thread_n: int = 1
    subtiles_m: int = 1
    subtiles_n: int = 1
    cache: str = ""
    """Where 16-byte asynchronous copies are cached: "cg" (L2 only) or "ca" (L1 too)."""
    sums: int = 1
    """Sets of sums: 2 add up a stretch of k in one, and the stretches in the other, so that a long k loses less."""

    __hash__ = HashedOnce.__hash__

    compiled = (*GemmConfig.compiled, "thread_m", "thread_n", "subtiles_m", "subtiles_n")

    @cached_property
    def threads(self) -> int:
        if self.warp_m:
            return 32 * self._warps
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)


@dataclass(frozen=True, repr=False)
class MmaConfig(GemmConfig):
    """The config of rungs whose warps multiply on tensor cores, by wmma or mma.sync."""

    subtiles_m: int = 1
    """Of wmma: its products under one another in a warp's tile,"""
    subtiles_n: int = 1
    """and next to one another."""
    fragment_sets: int = 1
    """Sets of fragments in registers: 1 is refilled after the products that read it, 2 take turns."""
    slices_k: int = 1
    """Groups of warps of a block that share its tile, each with its part of every step of k."""

    __hash__ = HashedOnce.__hash__

    compiled = (*GemmConfig.compiled, "subtiles_m", "subtiles_n")

    @cached_property
    def threads(self) -> int:
        return 32 * self._warps * self.slices_k


@dataclass(frozen=True, repr=False)
class WgmmaConfig(GemmConfig):
    """The config of Hopper's rungs: four warps under one another multiply as one, each warp_m rows of it by warp_n
    columns."""

    part_n: int = 0
    """Columns of a warp's tile whose partial sums are made at once, before they are added to the whole sums."""
    staged: int = 0
    """Buffers of a warp through which its results go to memory; 0: they leave from registers."""
    cluster_m: int = 1
    """Blocks of a cluster under one another,"""
    cluster_n: int = 1
    """and next to one another. They share copies of operands."""
    cluster_k: int = 1
    """Blocks of a cluster that share a tile, each with its part of k."""
    turns: int = 1
    """Sets of warpgroups of a block, each with tiles of its own: one multiplies while another stores."""
    stream_k: int = 0
    """Blocks that take equal parts of the steps of the last tiles; 0: all tiles are whole ones."""

    __hash__ = HashedOnce.__hash__

    @cached_property
    def threads(self) -> int:
        return 32 * self._warps * self.turns


C = TypeVar("C", MmaConfig, WgmmaConfig)


def over(
    family: type[C], shapes: Iterable[tuple[int, int, int, int, int]], depths: Iterable[tuple[int, int]]
) -> Iterator[C]:
    """Make the configs of a space: each of `shapes` (tile_m, tile_n, warp_m, warp_n, min_blocks) with each of `depths`
    (tile_k, stages). They walk tile rows in groups of 8."""
    depths = tuple(depths)
    for tile_m, tile_n, warp_m, warp_n, blocks in shapes:
        for tile_k, stages in depths:
            yield family(
                tile_m, tile_n, tile_k, warp_m=warp_m, warp_n=warp_n, stages=stages, group_m=8, min_blocks=blocks
            )


FAMILIES: tuple[type[GemmConfig], ...] = (SimtConfig, MmaConfig, WgmmaConfig)


@cache
def _least_of(family: type[GemmConfig]) -> tuple[tuple[str, int], ...]:
    """Return the least value of each field that is a number."""
    return tuple((name, int(name not in _MAY_BE_0)) for name in defaults_of(family) if name != "cache")


@cache
def defaults_of(family: type[GemmConfig]) -> Mapping[str, Any]:
    """Return the defaults of a family's fields, in ORDER."""
    known = {f.name: f.default for f in fields(family)}
    return {name: known[name] for name in ORDER if name in known}


_DEFAULTS = {name: default for family in FAMILIES for name, default in defaults_of(family).items()}


def of_fields(named: Mapping[str, Any], family: type[GemmConfig] | None = None) -> GemmConfig:
    """Make the config with these fields; by default of the family that has them.

    Where mma.sync and wgmma have them all, the tiles decide: those of four warps under one another are wgmma's. Raises
    TypeError for a field that the family lacks, unless its value says as much.
    """
    given = {name: value for name, value in named.items() if name not in _DEFAULTS or value != _DEFAULTS[name]}
    family = family or _family_of(given)
    if lacking := [name for name in given if name not in defaults_of(family)]:
        raise TypeError(
            f"a {family.__name__} has no {' and no '.join(lacking)}: its fields are {', '.join(defaults_of(family))}"
        )
    return family(**given)


@lru_cache(maxsize=1 << 14)
def in_parts(config: GemmConfig, parts: int) -> GemmConfig:
    """The config with k in so many parts. Plans try many: this takes a third of the time of dataclasses.replace."""
    if parts == config.split_k:
        return config
    split: GemmConfig = object.__new__(type(config))
    # what was computed stays where no split changes it
    split.__dict__.update(config.__dict__, split_k=parts, whole_k=config.whole_k)
    for name in ("_hash", "given"):
        split.__dict__.pop(name, None)
    return split


def _family_of(given: Mapping[str, Any]) -> type[GemmConfig]:
    able = [family for family in FAMILIES if given.keys() <= defaults_of(family).keys()]
    if not given.get("warp_m") or not able:
        return SimtConfig
    tensor = [family for family in able if family is not SimtConfig]
    if tensor == [MmaConfig, WgmmaConfig]:
        return WgmmaConfig if _for_warpgroups(**given) else MmaConfig
    return (tensor or able)[0]


def _for_warpgroups(tile_m: Any, tile_n: Any, warp_m: Any, warp_n: Any = 0, **_: Any) -> bool:
    if not all(isinstance(extent, int) and extent > 0 for extent in (tile_m, tile_n, warp_m, warp_n)):
        return False
    return warp_m % 16 == 0 and tile_m % (4 * warp_m) == 0 and tile_n % warp_n == 0 and warp_n in _WGMMA_WIDTHS


def as_family(config: GemmConfig, family: type[GemmConfig]) -> GemmConfig:
    """Return the same config of another family, where that has all of its fields; else the config itself."""
    if isinstance(config, family) or not defaults_of(family).keys() >= set(config.given):
        return config
    return of_fields(config.to_dict(), family)
