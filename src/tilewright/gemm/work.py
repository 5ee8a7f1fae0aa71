"""A product's kernel as the model of time sees it (plan/estimate.py)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ..arrays.dtypes import ITEM_BYTES, ceil_div
from ..jit.source import Constant
from ..plan.estimate import Work
from .config import GemmConfig, SimtConfig
from .problem import GemmProblem
from .rung import Rung, reading, vector_out
from .rungs import rungs_of
from .rungs.fp8 import takes_turns
from .rungs.halves import STRETCH
from .rungs.tensor import HALVES
from .rungs.tma_tensors import k_inner, panel_of

_BOOKKEEPING = 36
"""Registers for addresses, counters and what the compiler keeps next to accumulators and fragments."""
_CONFLICTS = {"h03": 2.0, "h04": 2.0, "h05": 2.0, "h06": 2.0, "h07": 2.0, "h08": 3.0, "h09": 1.5, "h10": 1.5}
"""Wavefronts of a shared load over the fewest possible, where fragments meet bank conflicts (docs/ladder.md)."""
_WGMMA_READS = 0.22
"""The share of the bytes that a wgmma names which takes shared memory's bandwidth."""
_HALF_SECTORS = 0.7
"""What the bytes of an operand whose lines do not start at sectors cost more on the way."""
_READ = {0: 1.0, 1: 1.0, 2: 1.5}
"""How often a wgmma reads each byte of a stage, by Rung.halves: three products of two parts."""
_KEEPING = 3
"""Additions by which t05 takes a sum to the total and keeps what rounding loses."""
_HALF_SECTORS_BY_TMA = 1.25
"""The same of TMA's boxes of 128 bytes."""
_SINGLE_STORES = 6
"""Vectors of results that take as long as one element that is stored by itself, in elements."""
_SPLITTING = 7
"""Instructions by which t02 makes an element's three parts and stores them, counted in its machine code."""


def tiles_of(problem: GemmProblem, config: GemmConfig) -> int:
    """Tiles that blocks walk; of clusters side by side some may lie outside the result."""
    down, across = config.cluster_m, config.cluster_n
    rows, cols = ceil_div(problem.m, config.tile_m * down) * down, ceil_div(problem.n, config.tile_n * across) * across
    return rows * cols * problem.batch


def estimate_registers(config: GemmConfig, rung: Rung | None = None) -> int:
    """Registers per thread: accumulators, fragments of a step (two sets where they are loaded ahead), bookkeeping.

    Rungs of fp32x3: three parts of each fragment, of A one row of pieces and the next, and the sums of a row.
    """
    if rung is not None and rung.halves:
        sums = 3 if rung.halves == 2 else 1
        return sums * config.warp_m * config.warp_n // 32 + _BOOKKEEPING
    if rung is not None and rung.precision == "fp32x3":
        right = 3 * config.warp_n // 4 * (2 if rung.splits else 1)
        return config.warp_m * config.warp_n // 32 + config.warp_n // 2 + 24 + right + _BOOKKEEPING
    if rung is not None and rung.warpgroups:
        parts = config.part_n // 2 * (2 if takes_turns(config) else 1)  # of 64 x part_n
        return config.warp_m * config.warp_n // 32 + parts + _BOOKKEEPING + 12
    if not isinstance(config, SimtConfig):
        tile = config.warp_m * config.warp_n // 32
        fragments = (config.warp_m + config.warp_n) // 4
        return tile + fragments * (2 if config.stages > 2 else 1) + _BOOKKEEPING
    rows, cols = config.thread_m * config.subtiles_m, config.thread_n * config.subtiles_n
    return rows * cols + (rows + cols) * (2 if config.stages > 1 else 1) + _BOOKKEEPING


def way_of(kind: str, rung: Rung, config: GemmConfig) -> str:
    """Return how a kernel multiplies, by which its constants are fitted."""
    if rung.warpgroups:
        return "wgmma-tma" if rung.loaders and kind in HALVES else "wgmma"
    if kind == "fp32x3":
        return "parts"
    return "ffma" if isinstance(config, SimtConfig) else "mma"


def work_of(problem: GemmProblem, rung: Rung, config: GemmConfig, packs: tuple[str, ...] = ()) -> Work:
    """Return what a candidate that why_not has let pass does. `packs`: operands copied to aligned lines first."""
    packs = rung.packs(problem, packs)
    whole = _whole(problem, rung, config.whole_k, packs)
    if config.split_k == 1:
        return whole
    return whole._replace(parts=config.split_k, shared=rung.shared_bytes(config, problem.packed(config.tile, packs)))


class _Block(NamedTuple):
    """A block, whatever the extents of its problem. Fields as of Work."""

    way: str
    peak: str
    products: int
    registers: int
    in_flight: float
    brought: float
    reads: float
    others: float
    above: int


@lru_cache(maxsize=1 << 12)
def _block(rung: Rung, config: GemmConfig, kind: str, item: int) -> _Block:
    """The block of a config, of products of a kind whose elements have `item` bytes."""
    tile_k, warps = max(config.tile_k, 1), max(config.threads // 32, 1)
    product_of = 1  # an element's: how many the tensor cores make
    if rung.halves:
        item, product_of = 2 * rung.halves, 2 * rung.halves - 1
    # bytes of tile_k x (a warp's rows + columns) from shared memory, for each warp of the block
    warp_m, warp_n = config.warp_m, config.warp_n
    if isinstance(config, SimtConfig) and not warp_m:
        warp_m, warp_n = config.thread_m * 4, config.thread_n * 8
    if rung.warpgroups:  # a product of 64 x warp_n reads both of its operands
        per_set = warps / 4 / config.turns * config.warp_m / 16 * (64 + warp_n) * tile_k * item
        reads = per_set * _READ[rung.halves] * _WGMMA_READS
    else:
        reads = warps / config.slices_k * (warp_m + warp_n) * tile_k * item * _CONFLICTS.get(rung.id[:3], 1.0)
    brought = (config.tile_m + config.tile_n) * tile_k * item
    reading = 2 if rung.warpgroups and config.min_blocks == 1 else 1  # buffers that products read, not copies fill
    promoting = config.tile_m * config.tile_n if config.part_n else 0
    if rung.halves == 2:
        promoting = _KEEPING * config.tile_m * config.tile_n * tile_k // STRETCH
    splitting = (config.tile_m + config.tile_n) * tile_k * _SPLITTING
    return _Block(
        way_of(kind, rung, config), "f16" if rung.halves or (kind == "fp8" and not rung.warpgroups) else kind,
        product_of * config.tile_m * config.tile_n * tile_k, estimate_registers(config, rung),
        max(config.stages - reading, 1) * brought, brought, reads,
        splitting if kind == "fp32x3" and not rung.splits else promoting,
        0 if rung.loaders else _rungs_above(rung.id, rung.warpgroups, kind),
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)
def _whole(problem: GemmProblem, rung: Rung, config: GemmConfig, packs: tuple[str, ...]) -> Work:
    """Return the work of a config with k in one part."""
    before, problem = problem, problem.packed(config.tile, packs)
    item, (_, _, tile_k) = ITEM_BYTES[problem.dtype], config.tile
    block = _block(rung, config, problem.kind, item)
    reads, edge = reading(rung, config, problem), rung.edge(problem, config)
    more = 0.0
    for name in reads.halved:
        more += _more_carried(name, problem, config, block.way == "wgmma-tma")
    shared_out = (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m) * tile_k * item
    return Work(
        block.way, block.peak, tiles_of(problem, config) * config.cluster_k,
        ceil_div(ceil_div(problem.k, tile_k), config.cluster_k), block.products, config.threads, block.registers,
        rung.shared_bytes(config, problem), config.min_blocks, config.stages, block.in_flight,
        block.brought, shared_out + more * tile_k * item, block.reads, problem.bytes,
        4.0 * problem.m * problem.n * problem.batch, others=block.others,
        singles=_singles(problem, rung, config, edge, reads.edges) * tile_k,
        stores=_stores(problem, config, block.way), covered=config.turns > 1,
        edge=edge, above=block.above, cluster=config.cluster,
        passes=_passes(before, rung, config, packs) if packs or rung.splits else (),
    )  # fmt: skip


def _more_carried(name: str, problem: GemmProblem, config: GemmConfig, by_tma: bool) -> float:
    """Elements of a step of 1 along k as which those count more on the way of an operand whose lines do not start at
    sectors: a line of a box touches one sector more, and of narrow boxes there are more lines."""
    extent, sharing = (config.tile_m, config.cluster_n) if name == "a" else (config.tile_n, config.cluster_m)
    if not by_tma:
        return _HALF_SECTORS * extent / sharing
    panel = panel_of(config.tile_k if k_inner(name, problem) else extent)
    return _HALF_SECTORS_BY_TMA * extent / sharing * 64 / panel


def _stores(problem: GemmProblem, config: GemmConfig, way: str) -> int:
    """Elements of the result whose stores cost a block time. Those of h14 and later are fitted with stores of 16 bytes:
    single elements count as many of them."""
    elements = config.tile_m * config.tile_n
    if way != "wgmma-tma":
        return 0 if vector_out(problem) else elements
    if not vector_out(problem):
        return _SINGLE_STORES * elements
    return 2 * elements if config.cluster_k > 1 else elements


def _passes(problem: GemmProblem, rung: Rung, config: GemmConfig, packs: tuple[str, ...]) -> tuple[int, ...]:
    """Bytes that each launch reads and writes which prepares operands: whole tiles are written."""
    item = ITEM_BYTES[problem.dtype]
    moved = []
    for name in "ab" if rung.splits else packs:
        copied = problem.packing(name, config.tile)
        # parts of 2 bytes: three of bf16, or one or two scaled halves
        written = copied.bytes * 2 * (rung.halves or 3) // item if rung.splits else copied.bytes
        moved.append(item * copied.copies * copied.lines * copied.length + written)
    return (sum(moved),) if rung.halves else tuple(moved)


@lru_cache(maxsize=256)
def _rungs_above(name: str, warpgroups: bool, kind: str) -> int:
    """Return the rungs above with its own way to multiply; those that copy by TMA have an order of their own."""
    ladder = [rung.id for rung in rungs_of(kind) if rung.warpgroups == warpgroups and not rung.loaders]
    return len(ladder) - 1 - ladder.index(name) if name in ladder else 0


def _singles(problem: GemmProblem, rung: Rung, config: GemmConfig, edge: bool, edges: Mapping[str, Constant]) -> int:
    """Elements of a step of 1 along k that a block copies one by one. `edge`, `edges`: as Rung.edge, Reading.edges."""
    if rung.splits:
        return 0
    lines = problem.lines
    # an edge of 16-bit operands costs no more than a comparison; fp32 rungs copy all of it by elements
    if ITEM_BYTES[problem.dtype] == 4:
        a, b = edges.get("a_edge", edge), edges.get("b_edge", edge)
    else:
        a, b = not lines.a_wide, not lines.b_wide
    return (config.tile_m if a else 0) + (config.tile_n if b else 0)
