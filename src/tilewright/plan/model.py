"""What a kernel should take, before anything is compiled: registers, blocks an SM, waves, time.

The model orders candidates, so that the few worth compiling are found among thousands. It is not a measurement and is
never shown as one. Its rates are shares of a GPU's peaks, fitted to sweeps on an H200 (benchmarks/results).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ..gemm.problem import ITEM_BYTES, GemmProblem
from ..gemm.rung import GemmConfig, Rung, ceil_div, vector_out
from ..gemm.rungs.simt import rungs_of
from ..gpus import Gpu, Resources, occupancy
from ..jit.source import Constant
from .cost import tiles_of

_BOOKKEEPING = 36
"""Registers for addresses, counters and what the compiler keeps beside accumulators and fragments."""
_SHARED_BYTES = 128
"""Bytes a clock that an SM's shared memory gives."""
_CONFLICTS = {"h03": 2.0, "h04": 2.0, "h05": 2.0, "h06": 2.0, "h07": 2.0, "h08": 3.0, "h09": 1.5, "h10": 1.5}
"""Wavefronts of a shared load over the fewest possible, where fragments meet bank conflicts (docs/ladder.md)."""
_WGMMA_READS = 0.22
"""Of the bytes that a wgmma names, what it takes of shared memory's bandwidth."""
_HALF_SECTORS = 0.7
"""Of the bytes copied of an operand whose lines do not start at sectors, what they cost more on the way."""
_SPLITTING = 7
"""Instructions by which t02 makes an element's three parts and stores them, counted in its machine code."""
MMA_SHARE = {(9, 0): 0.63}
"""Of the tensor peak, that mma.sync reaches: 625 of 989 TFLOP/s measured on an H200, nearly all of it elsewhere."""


class Fit(NamedTuple):
    """Constants of the model, fitted to measured times; of one kind of kernel each."""

    share: float
    """Of the peak of the unit that multiplies, towards which the rate goes with warps without end."""
    hiding: float
    """Warps a scheduler at which half of that is left unused for want of independent work."""
    latency_us: float
    """From asking for a tile to its landing in shared memory, on a busy GPU."""
    block_us: float
    """A block's start, its first tiles' way and its stores, when nothing runs beside it."""
    launch_us: float
    sync_us: float
    """A barrier and the wait before it, once a tile along k."""
    l2: float
    """L2 bandwidth as a multiple of that of device memory."""
    dram: float
    """Of the bandwidth of device memory."""
    elements_a_clock: float
    """That an SM copies one by one, where 16-byte accesses cannot read an operand's lines."""
    edge: float
    """What the tests of a ragged tile add to each step along k."""
    stores_a_clock: float
    """Elements that an SM stores one by one, where rows of the result are no whole 16-byte vectors."""
    pass_us: float
    """Starting and ending one more kernel: packing an operand, or summing the parts of a split k,"""
    passes: float
    """and its share of the bandwidth of device memory."""
    below_the_top: float
    """What a rung is slower than the next above it, for all that its own terms here do not tell."""


_TENSOR = Fit(1.05, 0.22, 0.74, 1.14, 0.23, 0.06, 2.4, 0.92, 4.7, 0.21, 2.1, 2.5, 1.0, 0.5)
_PARTS = Fit(1.35, 1.05, 0.14, 1.1, 2.1, 0.47, 3.0, 0.92, 4.7, 0.21, 2.1, 0.4, 1.0, 0.0)
_WGMMA = Fit(0.71, 0.014, 1.02, 0.17, 0.74, 0.02, 2.6, 0.92, 4.7, 0.21, 2.1, 2.5, 1.0, 0.0)
_FFMA = Fit(1.4, 1.28, 0.23, 1.3, 0.4, 0.024, 0.8, 1.0, 2.9, 0.0, 2.1, 2.5, 1.0, 0.04)


class Prediction(NamedTuple):
    """`ms` is the model's. `registers` a thread and `resident` blocks an SM are estimates too."""

    ms: float
    blocks: int
    resident: int
    waves: float
    registers: int
    limiter: str


def on_tensor_cores(config: GemmConfig) -> bool:
    """Whether a warp multiplies as one: then its tile has no pieces of single threads."""
    return config.warp_m > 0 and config.thread_m * config.thread_n == 1


def estimate_registers(config: GemmConfig, rung: Rung | None = None) -> int:
    """Registers a thread: accumulators, fragments of a step (two sets where they are loaded ahead), bookkeeping.

    Rungs of fp32x3: three parts of each fragment, of A one row of pieces and the next, and the sums of a row.
    """
    if rung is not None and rung.precision == "fp32x3":
        right = 3 * config.warp_n // 4 * (2 if rung.splits else 1)
        return config.warp_m * config.warp_n // 32 + config.warp_n // 2 + 24 + right + _BOOKKEEPING
    if rung is not None and rung.warpgroups:
        return config.warp_m * config.warp_n // 32 + _BOOKKEEPING + 12
    if on_tensor_cores(config):
        tile = config.warp_m * config.warp_n // 32
        fragments = (config.warp_m + config.warp_n) // 4
        return tile + fragments * (2 if config.stages > 2 else 1) + _BOOKKEEPING
    rows, cols = config.thread_m * config.subtiles_m, config.thread_n * config.subtiles_n
    return rows * cols + (rows + cols) * (2 if config.stages > 1 else 1) + _BOOKKEEPING


def _fit_of(problem: GemmProblem, rung: Rung, config: GemmConfig) -> Fit:
    if rung.warpgroups:
        return _WGMMA
    if problem.kind == "fp32x3":
        return _PARTS
    return _TENSOR if on_tensor_cores(config) else _FFMA


def predict(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu, packs: tuple[str, ...] = ()) -> Prediction:
    """The model's word on one candidate that why_not has let pass. `packs`: operands copied to aligned lines first."""
    return Model(problem, rung, config, gpu, packs).predict(config)


class Model:
    """The model's word on a config with k in any number of parts: what does not depend on it is made once."""

    def __init__(
        self, problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu, packs: tuple[str, ...] = ()
    ) -> None:
        self.problem = problem.packed(config.tile, packs)
        self.rung, self.gpu = rung, gpu
        self.fit = fit = _fit_of(self.problem, rung, config)
        self.registers = estimate_registers(config, rung)
        arch = gpu.arch
        cap = arch.registers_per_sm // max(config.threads * config.min_blocks, 1)
        self.granted = max(min(self.registers, cap, arch.registers_per_thread), 1)
        self.resident: dict[int, int] = {}
        """Blocks that an SM holds, by their bytes of shared memory."""
        self.tiles = tiles_of(self.problem, config)
        self.steps = ceil_div(problem.k, max(config.tile_k, 1))
        edge = rung.edge(self.problem, config)
        self.step = _Step(self.problem, rung, config, gpu, fit, edge)
        self.spill = max(1.0, self.registers / self.granted) ** 2
        self.edge = 1 + fit.edge if edge else 1.0
        self.stores_us = 0.0
        if not vector_out(self.problem):
            self.stores_us = config.tile_m * config.tile_n / (fit.stores_a_clock * gpu.boost_mhz)
        self.dram_us = self.problem.bytes / (gpu.dram_gb_s * fit.dram) * 1e-3
        self.below = 1 + fit.below_the_top * _rungs_above(rung.id, rung.warpgroups, problem.kind)
        self.bandwidth = gpu.dram_gb_s * fit.passes * 1e3  # of passes over memory, bytes a microsecond
        self.passes_us = self._passes_us(problem, packs)

    def _passes_us(self, before: GemmProblem, packs: tuple[str, ...]) -> list[float]:
        """Of each launch that prepares an operand: bytes read and written, an element."""
        moved = dict.fromkeys(packs, 2 * ITEM_BYTES[before.dtype])
        if self.rung.splits:  # both operands: 4 bytes an element read, 6 written
            moved = {"a": 10, "b": 10}
        operands = {"a": (before.a, before.m * before.k), "b": (before.b, before.k * before.n)}
        return [
            self.fit.pass_us + each * (before.batch if matrix.batch_stride else 1) * size / self.bandwidth
            for each, (matrix, size) in ((each, operands[name]) for name, each in moved.items())
        ]

    def _resident(self, config: GemmConfig) -> int:
        shared = self.rung.shared_bytes(config, self.problem)
        if shared not in self.resident:
            resources = Resources(self.granted, 0, 0, 0, 0, 1)
            self.resident[shared] = occupancy(resources, config.threads, shared, self.gpu.arch).blocks
        return self.resident[shared]

    def predict(self, config: GemmConfig) -> Prediction:
        """`config`: the model's own, with k in as many parts as it says."""
        problem, fit, sms, parts = self.problem, self.fit, self.gpu.sm_count, config.split_k
        resident, blocks = self._resident(config), self.tiles * parts
        if resident == 0:
            return Prediction(float("inf"), blocks, 0, 0.0, self.registers, "a block does not fit on an SM")
        busiest = max(1, ceil_div(blocks, sms))
        beside = min(busiest, resident)
        bounds = self.step.us(beside, min(blocks, sms))
        bound = max(bounds)
        steps = max(1, ceil_div(self.steps, parts))
        block_us = steps * (bound * self.spill * self.edge + fit.sync_us / beside)
        if parts == 1:
            block_us += self.stores_us
        sm_us = busiest * (block_us + fit.block_us / beside)
        total = max(sm_us, self.dram_us) * self.below + fit.launch_us
        for pass_us in self.passes_us:
            total += pass_us
        if parts > 1:
            total += fit.pass_us + (2 * parts + 1) * 4 * problem.m * problem.n * problem.batch / self.bandwidth
        limiter = "device memory" if self.dram_us > sm_us else _BOUNDS[bounds.index(bound)]
        return Prediction(total * 1e-3, blocks, resident, blocks / (sms * resident), self.registers, limiter)


@lru_cache(maxsize=256)
def _rungs_above(name: str, warpgroups: bool, kind: str) -> int:
    """Of its own way to multiply."""
    ladder = [rung.id for rung in rungs_of(kind) if rung.warpgroups == warpgroups]
    return len(ladder) - 1 - ladder.index(name) if name in ladder else 0


_BOUNDS = ("arithmetic", "shared memory", "L2", "latency", "single elements")
"""What the time of one tile along k may be bound by."""


class _Step:
    """One tile along k of one block."""

    def __init__(
        self, problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu, fit: Fit, edge: bool
    ) -> None:  # fmt: skip
        item, tile_k = ITEM_BYTES[problem.dtype], max(config.tile_k, 1)
        clock = gpu.boost_mhz  # clocks a microsecond
        products = config.tile_m * config.tile_n * tile_k
        warps = max(config.threads // 32, 1)
        if rung.warpgroups:
            peak = gpu.assumed_tflops(problem.kind)
        elif on_tensor_cores(config):
            peak = gpu.assumed_tflops(problem.kind) * MMA_SHARE.get(gpu.arch.compute_capability, 0.95)
        else:
            peak = gpu.ffma_tflops
        rate = peak * fit.share * 1e6 / gpu.sm_count / 2  # products a microsecond
        # bytes of tile_k x (a warp's rows + columns) from shared memory, for each warp of the block
        warp_m, warp_n = config.warp_m or config.thread_m * 4, config.warp_n or config.thread_n * 8
        if rung.warpgroups:  # a product of 64 x warp_n reads both of its operands
            reads = warps / 4 * config.warp_m / 16 * (64 + warp_n) * tile_k * item * _WGMMA_READS
        else:
            reads = warps / config.slices_k * (warp_m + warp_n) * tile_k * item * _CONFLICTS.get(rung.id[:3], 1.0)
        self.gpu, self.fit, self.stages = gpu, fit, config.stages
        self.warps_a_scheduler = warps, gpu.arch.warp_schedulers
        self.arithmetic_us = products / rate
        self.splitting_us = 0.0
        if problem.kind == "fp32x3" and not rung.splits:
            lanes = gpu.arch.fp32_lanes_per_sm * clock
            self.splitting_us = (config.tile_m + config.tile_n) * tile_k * _SPLITTING / lanes
        self.brought = (config.tile_m + config.tile_n) * tile_k * item
        facts, extents = rung.own_constants(config, problem), (("a", config.tile_m), ("b", config.tile_n))
        half = sum(extent for name, extent in extents if not facts.get(f"{name}_sectors", True))
        self.carried = self.brought + _HALF_SECTORS * half * tile_k * item
        self.shared_us = (reads + self.carried) / (_SHARED_BYTES * clock)
        reading = 2 if rung.warpgroups and config.min_blocks == 1 else 1  # buffers that products read, not copies fill
        self.in_flight = max(config.stages - reading, 1) * self.brought
        self.single_us = _single_elements(problem, rung, config, edge, facts) * tile_k / (fit.elements_a_clock * clock)

    def us(self, beside: int, sms: int) -> tuple[float, ...]:
        """Microseconds by each of _BOUNDS, `beside` blocks sharing an SM, on so many SMs."""
        gpu, fit, brought = self.gpu, self.fit, self.brought
        warps, schedulers = self.warps_a_scheduler
        # a scheduler hides an instruction's latency with other warps and with independent products of its own
        ahead = beside * warps / schedulers
        arithmetic = self.arithmetic_us / (ahead / (ahead + fit.hiding)) + self.splitting_us
        l2_a_sm = gpu.dram_gb_s * fit.l2 / max(sms, gpu.sm_count // 2) * 1e3  # bytes a microsecond
        if self.stages == 1:  # a block loads, waits, multiplies; only blocks beside it fill the gaps
            latency = (fit.latency_us + max(arithmetic, self.shared_us)) / beside
        else:
            latency = brought / (self.in_flight * beside / fit.latency_us)
        single = self.single_us + 0.5 * arithmetic if self.single_us else 0.0
        return arithmetic, self.shared_us, self.carried / l2_a_sm, latency, single


def _single_elements(
    problem: GemmProblem, rung: Rung, config: GemmConfig, edge: bool, facts: Mapping[str, Constant]
) -> int:
    """Elements of a step of 1 along k that a block copies one by one. `edge`, `facts`: as Rung.edge, own_constants."""
    if rung.splits:
        return 0
    item = ITEM_BYTES[problem.dtype]
    total = 0
    for name, matrix, rows, cols, extent in (
        ("a", problem.a, problem.m, problem.k, config.tile_m), ("b", problem.b, problem.k, problem.n, config.tile_n),
    ):  # fmt: skip
        # an edge of 16-bit operands costs no more than a comparison; fp32 rungs copy all of it by elements
        if facts.get(f"{name}_edge", edge) if item == 4 else not matrix.readable(rows, cols, item, 16):
            total += extent
    return total
