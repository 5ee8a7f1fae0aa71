"""What a kernel should take, before anything is compiled: registers, blocks an SM, waves, time.

The model orders candidates, so that the few worth compiling are found among thousands. It is not a measurement and is
never shown as one. Its rates are shares of a GPU's peaks, fitted to sweeps on an H200 (benchmarks/results).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arch import Gpu
from ..jit import Resources
from ..ladder import rungs_for
from ..ladder.rung import GemmConfig, Rung, ceil_div
from ..occupancy import occupancy
from ..problems import ITEM_BYTES, GemmProblem

_BOOKKEEPING = 36
"""Registers for addresses, counters and what the compiler keeps beside accumulators and fragments."""
_FFMA_SHARE = 0.90
"""Of the FFMA peak, that operands in registers and shared memory leave (measured: 59.3 of 66.9 TFLOP/s)."""
_MMA_SHARE = {(9, 0): 0.63}
"""Of the tensor peak, that mma.sync reaches: 625 of 989 TFLOP/s measured on an H200, all of it before Hopper."""
_SHARED_BYTES = 128
"""Bytes a clock that an SM's shared memory gives."""
_CONFLICTS = {"h03": 2.0, "h04": 2.0, "h05": 2.0, "h06": 2.0, "h07": 2.0, "h08": 3.0, "h09": 1.5, "h10": 1.5}
"""Wavefronts of a shared load over the fewest possible, where fragments meet bank conflicts (docs/ladder.md)."""
_L2_SHARE = 1.4
"""L2 bandwidth as a multiple of that of device memory."""
_DRAM_SHARE = 0.89
_BELOW_THE_TOP = 0.04
"""What a rung is taken to be slower than the next above it, for all that its own terms here do not tell."""
_LATENCY_US = 0.85
"""From asking for a tile to its landing in shared memory, on a busy GPU."""
_BLOCK_US = 1.3
"""A block's start, its first tiles' way and its stores, when nothing runs beside it."""
_LAUNCH_US = 2.0
_SYNC_US = 0.06
"""A barrier and the wait before it, once a tile along k."""


@dataclass(frozen=True)
class Prediction:
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


def estimate_registers(config: GemmConfig) -> int:
    """Registers a thread: accumulators, fragments of a step (two sets where they are loaded ahead), bookkeeping."""
    if on_tensor_cores(config):
        tile = config.warp_m * config.warp_n // 32
        fragments = (config.warp_m + config.warp_n) // 4
        return tile + fragments * (2 if config.stages > 2 else 1) + _BOOKKEEPING
    rows, cols = config.thread_m * config.subtiles_m, config.thread_n * config.subtiles_n
    return rows * cols + (rows + cols) * (2 if config.stages > 1 else 1) + _BOOKKEEPING


def predict(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu) -> Prediction:
    """The model's word on one candidate that why_not has let pass."""
    arch = gpu.arch
    registers = estimate_registers(config)
    cap = arch.registers_per_sm // max(config.threads * config.min_blocks, 1)
    shared = rung.shared_bytes(config, problem)
    granted = min(registers, cap, arch.registers_per_thread)
    fit = occupancy(Resources(granted, 0, 0, 0, 0, 1), config.threads, shared, arch)
    tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n) * problem.batch
    blocks = tiles * config.split_k
    if fit.blocks == 0:
        return Prediction(float("inf"), blocks, 0, 0.0, registers, "a block does not fit on an SM")
    busiest = max(1, ceil_div(blocks, gpu.sm_count))
    beside = min(busiest, fit.blocks)
    steps = max(1, ceil_div(ceil_div(problem.k, max(config.tile_k, 1)), config.split_k))
    parts = _step_us(problem, rung, config, gpu, beside, min(blocks, gpu.sm_count))
    limiter = max(parts, key=lambda name: parts[name])
    spill = max(1.0, registers / granted) ** 2
    ragged = 1.2 if rung.edge(problem, config) else 1.0
    block_us = steps * (parts[limiter] * spill * ragged + _SYNC_US / beside)
    sm_us = busiest * (block_us + _BLOCK_US / beside)
    dram_us = problem.bytes / (gpu.dram_gb_s * _DRAM_SHARE) * 1e-3
    ladder = rungs_for(problem.dtype)
    below = len(ladder) - 1 - ladder.index(rung) if rung in ladder else 0
    total = max(sm_us, dram_us) * (1 + _BELOW_THE_TOP * below) + _LAUNCH_US
    if config.split_k > 1:
        partial = 4 * problem.m * problem.n * problem.batch
        total += _LAUNCH_US + 2 * config.split_k * partial / (gpu.dram_gb_s * _L2_SHARE) * 1e-3
    if dram_us > sm_us:
        limiter = "device memory"
    waves = blocks / (gpu.sm_count * fit.blocks)
    return Prediction(total * 1e-3, blocks, fit.blocks, waves, registers, limiter)


def _step_us(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu, beside: int, sms: int) -> dict[str, float]:
    """Microseconds of one tile along k of one block, by what could bound them, `beside` blocks sharing an SM."""
    item, tile_k = ITEM_BYTES[problem.dtype], max(config.tile_k, 1)
    clock = gpu.boost_mhz  # clocks a microsecond
    products = config.tile_m * config.tile_n * tile_k
    warps = max(config.threads // 32, 1)
    # a scheduler hides an instruction's latency with other warps and with independent products of its own
    ahead = beside * warps / gpu.arch.warp_schedulers
    if on_tensor_cores(config):
        share = _MMA_SHARE.get(gpu.arch.compute_capability, 0.95)
        peak = gpu.bf16_tflops * share * 1e6 / gpu.sm_count / 2  # products a microsecond
        hidden = ahead / (ahead + 0.35)
    else:
        peak = gpu.ffma_tflops * _FFMA_SHARE * 1e6 / gpu.sm_count / 2
        hidden = ahead / (ahead + 0.25)
    # bytes of tile_k x (a warp's rows + columns) from shared memory, for each warp of the block
    warp_m, warp_n = config.warp_m or config.thread_m * 4, config.warp_n or config.thread_n * 8
    reads = warps / config.slices_k * (warp_m + warp_n) * tile_k * item * _CONFLICTS.get(rung.id[:3], 1.0)
    brought = (config.tile_m + config.tile_n) * tile_k * item
    l2_a_sm = gpu.dram_gb_s * _L2_SHARE / max(sms, gpu.sm_count // 2) * 1e3  # bytes a microsecond
    in_flight = max(config.stages - 1, 1) * brought * beside
    parts = {
        "arithmetic": products / peak / hidden,
        "shared memory": (reads + brought) / (_SHARED_BYTES * clock),
        "L2": brought / l2_a_sm,
        "latency": brought / (in_flight / _LATENCY_US),
    }
    if config.stages == 1:  # a block loads, waits, multiplies; only blocks beside it fill the gaps
        parts["latency"] = (_LATENCY_US + max(parts["arithmetic"], parts["shared memory"])) / beside
    return parts
