"""The time that a kernel should take on a GPU: the one model, by which candidates are ordered and neighbours compared.

A family says what a kernel's blocks do (Work); this file says how long an SM takes over it. The model is not a
measurement and is never shown as one. Its constants are fitted to measured times by tilewright.lab.fit_model, which
writes fits.json and a record of what the model misses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from ..gpus import Gpu, Resources, block_limits

FITTED = Path(__file__).with_name("fits.json")
SHARED_BYTES = 128
"""Bytes per clock that an SM's shared memory gives."""
MMA_SHARE = {(9, 0): 0.63}
"""The share of the tensor peak that mma.sync reaches: 625 of 989 TFLOP/s on an H200; nearly all of it elsewhere."""
LEFT_OUT = {3: 5 / 44, 4: 1 / 11}
"""The share of the SMs that clusters of so many blocks, or more, leave idle, since a cluster lies in one GPC: on an
H200 with 132 SMs 39 clusters of 3 and 30 of 4 ran at once, and grids of 40 and 32 took twice the time."""
BOUNDS = ("arithmetic", "shared memory", "L2", "latency", "single elements")
"""What the time of one step of a block may be bound by."""


class Fit(NamedTuple):
    """The model's constants for one way to multiply."""

    share: float
    """The share of the peak of the unit that multiplies, which the rate approaches as warps are added."""
    hiding: float
    """Warps per scheduler at which half of that rate is reached."""
    latency_us: float
    """From asking for a tile to its landing in shared memory, on a busy GPU."""
    block_us: float
    """A block's start, its first tiles' way and its stores, when nothing runs next to it."""
    launch_us: float
    sync_us: float
    """A barrier and the wait before it, once per step."""
    l2: float
    """L2's bandwidth as a multiple of that of device memory."""
    dram: float
    """The share of the bandwidth of device memory that is reached."""
    elements_per_clock: float
    """Elements that an SM copies one by one, where wide accesses cannot read an operand's lines."""
    edge: float
    """What the tests of a ragged tile add to each step."""
    stores_per_clock: float
    """Elements that an SM stores one by one, where rows of the result are not whole vectors."""
    pass_us: float
    """Starting and ending one more launch, which prepares an operand or sums parts,"""
    passes: float
    """and its share of the bandwidth of device memory."""
    below_the_top: float
    """How much slower a rung is than the next above it, beyond what its own terms say."""
    exposed: float
    """The share of the lesser bounds' times that adds to the largest, since nothing hides it."""


class Work(NamedTuple):
    """A kernel's work, as the model sees it: blocks, each with steps, and launches around them."""

    way: str
    """How it multiplies: the key of its Fit."""
    peak: str
    """What is multiplied, as Gpu.assumed_tflops takes it."""
    tiles: int
    """Blocks, if each makes its part of the result alone."""
    steps: float
    """Steps of such a block, on average; the busiest SM's share of blocks takes them one after another."""
    products: int
    """Multiply-adds of a step."""
    threads: int
    registers: int
    """Per thread, estimated."""
    shared: int
    """Bytes of shared memory per block."""
    min_blocks: int
    """Blocks per SM that the compiler leaves registers for."""
    stages: int
    in_flight: float
    """Bytes that may be on their way to a block."""
    brought: float
    """Bytes that a step brings,"""
    carried: float
    """and as which they count on the way: sectors are carried whole."""
    reads: float
    """Bytes that a step reads from shared memory."""
    dram: float
    """The fewest bytes through device memory."""
    sums: float
    """Bytes of a result's partial sums in fp32, for each part written and read again."""
    longest: float = 0
    """Steps of the longest block, where blocks differ."""
    others: float = 0
    """Instructions on the FP32 lanes that a step takes besides its products."""
    singles: int = 0
    """Elements of a step that are copied one by one."""
    stores: int = 0
    """Elements of the result that a block stores one by one."""
    covered: bool = False
    """True where stores run under the products of the block's next tile: only the last tile's take time."""
    edge: bool = False
    above: int = 0
    """Rungs above its own that multiply the same way."""
    slower: float = 1
    """How much slower than its terms say."""
    parts: int = 1
    """Blocks that share a tile, each with its part of the steps."""
    cluster: int = 1
    """Blocks that start together, on neighbouring SMs."""
    passes: tuple[int, ...] = ()
    """Bytes that each launch moves which prepares an operand."""


class Prediction(NamedTuple):
    """`ms` is the model's. `registers` per thread and `resident` blocks per SM are estimates too."""

    ms: float
    blocks: int
    resident: int
    waves: float
    registers: int
    limiter: str


class OwnWork(Protocol):
    """A kernel's work, where a model of its own says how long that takes."""

    def predicted(self, gpu: Gpu) -> Prediction: ...


AnyWork: TypeAlias = Work | OwnWork


_OF_A_BOARD = {("H100", "wgmma-tma"): {"share": 0.75, "l2": 2.4}}
"""What differs from the fitted constants on a board, by its name and the way to multiply. With the H200's constants the
choices on an H100 lost 4.7% to the best of what was measured of 104 products; with these they lost 2.8%."""


@lru_cache(maxsize=1)
def _fitted() -> dict[str, Any]:
    return dict(json.loads(FITTED.read_text()))


@lru_cache(maxsize=1)
def fits() -> dict[str, Fit]:
    """The fitted constants by way to multiply."""
    return {way: Fit(**values) for way, values in _fitted()["fits"].items()}


def forget_fits() -> None:
    """Read the constants anew: they have just been fitted."""
    for cached in (_fitted, fits, _fit):
        cached.cache_clear()


@lru_cache(maxsize=64)
def _fit(way: str, gpu: Gpu) -> Fit:
    """The constants of a way to multiply on a GPU."""
    return fits()[way]._replace(**_OF_A_BOARD.get((gpu.name, way), {}))


def speed_of(rung: str, config: Any) -> float:
    """Return how fast a config is on the classes where it was measured, over what the model says; 1 where it was
    not."""
    return float(_fitted()["speeds"].get(speed_key(rung, config), 1.0))


def speed_key(rung: str, config: Any) -> str:
    return f"{rung} {config}, {config.min_blocks} per SM"


@lru_cache(maxsize=4096)
def _resident(registers: int, threads: int, shared: int, gpu: Gpu) -> int:
    return min(block_limits(Resources(registers, 0, 0, 0, 0, 1), threads, shared, gpu.arch).values())


class _Board(NamedTuple):
    """The rates that the model asks of a GPU, once for all kernels that multiply one way."""

    sms: int
    clock: int
    """Per microsecond."""
    rate: float
    """Multiply-adds per microsecond of an SM's unit at its best."""
    schedulers: int
    lanes: int
    dram_gb_s: float
    registers_per_sm: int
    registers_per_thread: int


@lru_cache(maxsize=64)
def _board(way: str, peak: str, gpu: Gpu) -> _Board:
    if way == "ffma":
        tflops = gpu.ffma_tflops
    else:
        share = 1.0 if way.startswith("wgmma") else MMA_SHARE.get(gpu.arch.compute_capability, 0.95)
        tflops = gpu.assumed_tflops(peak) * share
    arch = gpu.arch
    return _Board(
        gpu.sm_count, gpu.boost_mhz, tflops * 1e6 / gpu.sm_count / 2, arch.warp_schedulers, arch.fp32_lanes_per_sm,
        gpu.dram_gb_s, arch.registers_per_sm, arch.registers_per_thread,
    )  # fmt: skip


class _Numbers(NamedTuple):
    """The operations of the model's formula: the larger, the lesser, and one of two: of numbers, or of arrays."""

    most: Callable[[Any, Any], Any]
    least: Callable[[Any, Any], Any]
    either: Callable[[Any, Any, Any], Any]


_ONE = _Numbers(max, min, lambda condition, yes, no: yes if condition else no)
_MANY = _Numbers(np.maximum, np.minimum, np.where)


class _Times(NamedTuple):
    """The times that the formula gives, in microseconds where not said otherwise."""

    total: Any
    sm: Any
    dram: Any
    bounds: tuple[Any, ...]
    """Of one step, as BOUNDS."""
    spill: Any
    """How often the sums of a step are spilled: 1 is never."""


def _times(work: Any, fit: Fit, board: _Board, registers: Any, resident: Any, how: _Numbers) -> _Times:
    """The model's formula, of the numbers of one Work or of the columns of many. `resident` is not 0.

    `work.passes`: (how many, the bytes of all).
    """
    sms, clock, rate, schedulers, lanes, dram_gb_s, _, _ = board
    most, least, either = how
    blocks = work.tiles * work.parts
    left_out = either(work.cluster < 3, 0.0, either(work.cluster == 3, LEFT_OUT[3], LEFT_OUT[4]))
    reached = sms + -(sms * left_out) // 1  # whole SMs
    busiest = most(1, -(-blocks // reached))
    beside = least(busiest, resident)
    # a scheduler hides an instruction's latency with other warps and with independent products of its own
    ahead = beside * work.threads / 32 / schedulers
    alone = work.products / (rate * fit.share) + work.others / (lanes * clock)
    arithmetic = alone * (1 + fit.hiding / ahead)
    shared = (work.reads + work.carried) / (SHARED_BYTES * clock)
    l2_per_sm = dram_gb_s * fit.l2 / most(least(blocks, sms), sms // 2) * 1e3  # bytes per microsecond
    latency = either(
        work.stages == 1,  # a block loads, waits, multiplies; only blocks next to it fill the gaps
        (fit.latency_us + most(arithmetic, shared)) / beside,
        work.brought * fit.latency_us / (work.in_flight * beside),
    )
    single = either(work.singles, work.singles / (fit.elements_per_clock * clock) + 0.5 * arithmetic, 0.0)
    bounds = (arithmetic, shared, work.carried / l2_per_sm, latency, single)
    bound = most(most(most(arithmetic, shared), most(bounds[2], latency)), single)
    step = bound + fit.exposed * (sum(bounds) - bound)
    spill = most(1.0, work.registers / registers) ** 2
    step = step * spill * either(work.edge, 1 + fit.edge, 1.0) + fit.sync_us / beside
    steps = either(work.parts == 1, work.steps, most(1, -(-work.steps // work.parts)))
    sm_us = most(busiest * steps, work.longest) * step + busiest * fit.block_us / beside
    stored = either(work.covered, 1, busiest) * work.stores
    sm_us = sm_us + either(work.parts == 1, stored / (fit.stores_per_clock * clock), 0.0)
    dram_us = work.dram / (dram_gb_s * fit.dram) * 1e-3
    total = most(sm_us, dram_us) * (1 + fit.below_the_top * work.above) * work.slower + fit.launch_us
    bandwidth = dram_gb_s * fit.passes * 1e3  # of passes over memory, bytes per microsecond
    count, moved = work.passes
    total = total + count * fit.pass_us + moved / bandwidth
    total = total + either(work.parts > 1, fit.pass_us + (2 * work.parts + 1) * work.sums / bandwidth, 0.0)
    return _Times(total, sm_us, dram_us, bounds, spill)


def _registers(work: Work, board: _Board, how: _Numbers) -> Any:
    """Registers per thread that the compiler may use."""
    cap = board.registers_per_sm // how.most(work.threads * work.min_blocks, 1)
    return how.most(how.least(how.least(work.registers, cap), board.registers_per_thread), 1)


def predict(work: AnyWork, gpu: Gpu, fit: Fit | None = None) -> Prediction:
    """The model's word on a kernel. `fit`: other constants than the fitted ones."""
    if not isinstance(work, Work):
        return work.predicted(gpu)
    fit, board = fit or _fit(work.way, gpu), _board(work.way, work.peak, gpu)
    registers = _registers(work, board, _ONE)
    resident, blocks = _resident(registers, work.threads, work.shared, gpu), work.tiles * work.parts
    if resident == 0:
        return Prediction(float("inf"), blocks, 0, 0.0, work.registers, "a block does not fit on an SM")
    counted = work._replace(passes=(len(work.passes), sum(work.passes)))
    total, sm, dram, bounds, spill = _times(counted, fit, board, registers, resident, _ONE)
    limiter = "device memory" if dram > sm else "spills" if spill > 1 else BOUNDS[bounds.index(max(bounds))]
    return Prediction(total * 1e-3, blocks, resident, blocks / (board.sms * resident), work.registers, limiter)


def predict_all(works: Sequence[AnyWork], gpu: Gpu) -> np.ndarray:
    """The modelled ms of many kernels, as `predict` has them, at a tenth of its time for each."""
    found = np.empty(len(works))
    some: list[Work] = []
    places: list[int] = []
    for place, work in enumerate(works):
        if isinstance(work, Work):
            some.append(work)
            places.append(place)
        else:
            found[place] = work.predicted(gpu).ms
    if some:
        ways: dict[tuple[str, str], int] = {}
        which = [ways.setdefault(work[:2], len(ways)) for work in some]
        rates = np.array([(*_fit(way, gpu), *_board(way, peak, gpu)) for way, peak in ways]).take(which, axis=0).T
        fit, board = Fit(*rates[: len(Fit._fields)]), _Board(*rates[len(Fit._fields) :])
        numbers = [(*work[2:-1], len(work.passes), sum(work.passes)) for work in some]
        *columns, count, moved = np.array(numbers, np.float64).T
        many = Work._make(("", "", *columns, (count, moved)))
        registers = _registers(many, board, _MANY)
        fitting = zip(registers.astype(int).tolist(), some, strict=True)
        resident = np.array([_resident(own, work.threads, work.shared, gpu) for own, work in fitting], np.float64)
        times = _times(many, fit, board, registers, np.maximum(resident, 1), _MANY)
        found[places] = np.where(resident == 0, np.inf, times.total * 1e-3)
    return found
