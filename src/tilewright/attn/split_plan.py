"""When attention is split, and how: a model of its time, and the plan that follows from it.

The model knows what bounds the kernel: bytes of keys and values from memory and, where several tiles of rows read them,
from the L2; products of whole tiles on the busiest SM; and the second launch, which adds the parts. Its constants are
read off the record of the suite attention-decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ..arrays.dtypes import ITEM_BYTES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Gpu, Resources, occupancy
from ..plan.estimate import MMA_SHARE, Prediction
from ..plan.plan import Plan
from .problem import AttentionProblem
from .split import SPLIT_RUNGS, SplitConfig, blocks_of, is_merged, part_rows, parts_of, tiles_of

(RUNG,) = SPLIT_RUNGS
PART_KEYS = 2048
"""Keys of a part where bits must not depend on the batch. A constant: the order of sums follows from it."""
_MOST_QUERIES = 512
_FEW_ROWS = 256
"""Rows of an entry up to which such parts are made: they would be gigabytes for long prompts."""
_BANDWIDTH = 0.94
"""The share of the bandwidth of device memory that the rings reach."""
_L2 = 1.3
"""The L2's bandwidth for rows of keys, as a multiple of device memory's."""
_PRODUCTS = {16: 0.56, 32: 0.66}
"""The share of mma.sync's peak that a full SM reaches, by a warp's rows."""
_LAUNCH_US, _MERGE_US = 4.0, 2.9
_NEXT_US = 0.7
"""What a block's first copies cost where no block next to it on the SM hides them, after the first blocks."""
FEW_QUERIES_SLOWER = 1.4
"""How much longer than modelled one launch takes on fewer queries than its tile has rows: 1.4 to 2.1 in the record."""


class SplitTime(NamedTuple):
    """The model's word on a config."""

    ms: float
    config: SplitConfig
    resident: int
    """Blocks per SM."""


def few_on_many(problem: AttentionProblem) -> bool:
    """Return whether queries are few compared with keys: what split attention is for, and where it was measured."""
    return problem.seq_q <= _MOST_QUERIES and problem.seq_k >= 4 * problem.seq_q


def _registers(config: SplitConfig, gpu: Gpu) -> int:
    """Per thread, estimated: no more than the compiler may take."""
    rows = config.b_r // config.row_warps
    registers = 70 + rows * config.d_head // 32 + rows * config.b_c // 32
    registers += 0 if config.sliced_q else rows * config.d_head // 64
    limit = gpu.arch.registers_per_sm // max(config.threads * config.min_blocks, 1)
    return min(registers, limit, gpu.arch.registers_per_thread)


def resident_blocks(config: SplitConfig, gpu: Gpu) -> int:
    """Blocks per SM, by an estimate of registers."""
    of_thread = Resources(_registers(config, gpu), 0, 0, 0, 0, 1)
    return occupancy(of_thread, config.threads, config.shared_bytes, gpu.arch).blocks


def split_time(problem: AttentionProblem, config: SplitConfig, gpu: Gpu) -> SplitTime:
    """Model a config that can run the problem."""
    resident = max(resident_blocks(config, gpu), 1)
    blocks = blocks_of(problem, config) * problem.heads_kv
    seen = max(problem.visible_pairs / problem.seq_q, 1.0)  # keys of a row
    tiles = tiles_of(problem, config) * problem.heads_kv
    brought = 4.0 * ITEM_BYTES[problem.dtype] / 2 * seen * problem.d_head  # K and V of a tile of rows, bytes
    memory = min(problem.bytes, tiles * brought) / (gpu.dram_gb_s * _BANDWIDTH) * 1e-3
    l2 = tiles * brought / (gpu.dram_gb_s * _L2) * 1e-3
    products = 4.0 * config.b_r * seen * problem.d_head / (blocks / tiles)  # of a block
    rate = gpu.assumed_tflops(problem.dtype) * MMA_SHARE.get(gpu.arch.compute_capability, 0.95) * 1e6 / gpu.sm_count
    busiest = ceil_div(blocks, gpu.sm_count)
    beside = min(busiest, resident) * config.n_warps / (4 * 2)
    best = _PRODUCTS[min(config.b_r // config.row_warps, 32)]
    arithmetic = busiest * products / (rate * best * min(1.0, beside))
    share = min(1.0, blocks / (gpu.sm_count * 0.5))  # few SMs cannot ask for all that memory gives
    us = max(memory / share, l2 / share, arithmetic) + _LAUNCH_US + _NEXT_US * (ceil_div(busiest, resident) - 1)
    if is_merged(problem, config):
        parts = blocks * part_rows(problem, config) * (problem.d_head + 2) * 4.0
        us += _MERGE_US + 2 * parts / (gpu.dram_gb_s * _L2) * 1e-3
    return SplitTime(us * 1e-3, config, resident)


@dataclass(frozen=True)
class SplitWork:
    """See plan.estimate.OwnWork."""

    problem: AttentionProblem
    config: SplitConfig

    def predicted(self, gpu: Gpu) -> Prediction:
        problem, config = self.problem, self.config
        blocks, resident = blocks_of(problem, config) * problem.heads_kv, resident_blocks(config, gpu)
        registers = _registers(config, gpu)
        if not resident:
            return Prediction(float("inf"), blocks, 0, 0.0, registers, "a block does not fit on an SM")
        ms = split_time(problem, config, gpu).ms
        return Prediction(ms, blocks, resident, blocks / (gpu.sm_count * resident), registers, "memory or arithmetic")


def _tilings(d: int, rows: int) -> tuple[SplitConfig, ...]:
    """The tiles worth trying for a head size and the rows of an entry, the best on an H200."""
    keys = 32 if d <= 128 else 16
    if rows <= 16:
        return tuple(SplitConfig(d, 16, b_c, 1, 4, 3) for b_c in sorted({keys, 16}, reverse=True))
    if rows <= 32:
        if d > 192:  # at 0.58 of the other's time for 32 queries on 16384 keys
            return (SplitConfig(d, 32, 32, 2, 2, 2, sliced_q=True), SplitConfig(d, 32, keys, 1, 4, 3, sliced_q=True))
        return (SplitConfig(d, 32, keys, 1, 4, 3, sliced_q=True),)
    own = SplitConfig(d, 64, 32, 4, 2, 3 if d <= 128 else 2, sliced_q=d > 128)
    return (SplitConfig(d, 128, 64, 4, 2, 2, sliced_q=True), own) if rows > 64 and d <= 128 else (own,)


def _smaller(d: int, rows: int) -> tuple[SplitConfig, ...]:
    """Tiles for GPUs with less shared memory, and for small pages, the best first."""
    few = (SplitConfig(d, 16, 16, 1, 4, 2), SplitConfig(d, 16, 16, 1, 2, 2))
    if rows <= 32:
        return few
    more = (SplitConfig(d, 64, 32, 4, 1, 3 if d <= 128 else 2, sliced_q=d > 128), *few)
    return (SplitConfig(d, 128, 32, 4, 1, 3, sliced_q=True), *more) if rows > 64 and d <= 128 else more


def ways_of(problem: AttentionProblem, config: SplitConfig, gpu: Gpu) -> Iterator[SplitConfig]:
    """The config with its keys in numbers of parts that fill the GPU's SMs in whole waves."""
    resident, tiles = max(resident_blocks(config, gpu), 1), tiles_of(problem, config) * problem.heads_kv
    if problem.totals is not None:
        # One long entry must not end the grid alone, unless there are many to end with.
        if tiles >= 3 * gpu.sm_count or problem.seq_k <= PART_KEYS:
            yield config
        if tiles < 3 * gpu.sm_count:
            yield replace(config, part_keys=2 * PART_KEYS if problem.seq_k > PART_KEYS else PART_KEYS // 2)
        return
    yield config
    most = ceil_div(max(problem.seq_k, 1), config.b_c * config.key_warps)
    for waves in (0.5, 1, 2, 3, 4):
        parts = int(gpu.sm_count * resident * waves / tiles)
        if 1 < parts <= most:
            yield replace(config, parts=parts)


@lru_cache(maxsize=4096)
def tilings_of(problem: AttentionProblem, gpu: Gpu) -> tuple[SplitConfig, ...]:
    """The tilings that are worth it and can run the problem. Raises ConfigRejected where none can."""
    d, rows = problem.d_head, problem.seq_q * problem.group
    refused = [RUNG.why_not(problem, config, gpu.arch) for config in _tilings(d, rows)]
    able = [config for config, reason in zip(_tilings(d, rows), refused, strict=True) if reason is None]
    if not able:
        able = [config for config in _smaller(d, rows) if RUNG.why_not(problem, config, gpu.arch) is None][:1]
    if not able:
        told = "; ".join(dict.fromkeys(reason for reason in refused if reason))
        raise ConfigRejected(f"{RUNG.id} cannot run this problem on {gpu.arch}: {told}.")
    return tuple(able)


@lru_cache(maxsize=4096)
def best_split(problem: AttentionProblem, gpu: Gpu) -> SplitTime:
    """The config of least modelled time. Raises ConfigRejected where none can run the problem."""
    ways = (way for config in tilings_of(problem, gpu) for way in ways_of(problem, config, gpu))
    return min((split_time(problem, way, gpu) for way in ways), key=lambda one: one.ms)


def invariant_split(problem: AttentionProblem, gpu: Gpu) -> SplitConfig | None:
    """The config by which an entry's bits depend on that entry alone: a function of its own rows, the head size and
    what the architecture can hold. None for an entry of many rows, which one launch takes whole."""
    few = problem.totals is not None or problem.seq_q * problem.group <= _FEW_ROWS
    if not few and not (problem.seqused or problem.pages):
        return None
    rows = problem.seq_q * problem.group if problem.totals is None else 64
    for tiling in (*_tilings(problem.d_head, rows), *_smaller(problem.d_head, rows)):
        if tiling.b_r == 16 and tiling.b_c > 16:  # as fast in such parts without it, and no page is too small
            continue
        config = replace(tiling, part_keys=PART_KEYS if few else 0)
        if RUNG.why_not(problem, config, gpu.arch) is None:
            return config
    raise ConfigRejected(f"{RUNG.id} has no config for this problem on {gpu.arch}.")


def split_words(problem: AttentionProblem, config: SplitConfig, gpu: Gpu) -> str:
    """Return how keys are shared, in words."""
    blocks = blocks_of(problem, config) * problem.heads_kv
    if config.part_keys:
        return f"keys in parts of {config.part_keys}"
    return f"keys in {parts_of(problem, config)} parts: {blocks} blocks on {gpu.sm_count} SMs"


def split_plan(problem: AttentionProblem, gpu: Gpu, source: str, why: str, config: SplitConfig) -> Plan:
    return Plan(RUNG, config, source, f"{why}; {split_words(problem, config, gpu)}")
