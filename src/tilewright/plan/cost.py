"""How long a plan would take by a small model: a figure to choose by, never one to quote.

A product lasts as long as the slowest of three: the busiest SM's arithmetic, its tiles' copies one after the other
(what is under way at once is limited by the ring), and the bytes through device memory. Packing and summing parts are
passes over memory, and each launch has a cost of its own. The constants are those of an H200; on other GPUs peaks and
bandwidths scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..gemm.problem import ITEM_BYTES, GemmProblem
from ..gemm.rung import GemmConfig, Rung, ceil_div
from ..gemm.rungs.simt import find_rung
from ..gpus import Gpu
from ..jit.source import Constant
from .fallback import Choice

LAUNCH_US = 2.0
"""A launch, its first loads and its last stores."""
PACK_US = 1.2
"""What a packing launch takes beyond that."""
TILE_LATENCY_US = 1.0
"""From asking for a tile to having it, under load."""
REFILL_US = 1.5
"""What a block that waits for another to leave its SM adds: its ring is empty again."""
OF_BANDWIDTH = 0.85
"""What a pass over memory gets of the bandwidth on paper."""
RAGGED = 1.2
"""What copies that test each chunk against the operand's ends add to the arithmetic."""
UNPACKED = 0.3
"""The share of its arithmetic rate that a kernel keeps when it reads an operand element by element,"""
ELEMENTS_A_US = 6500.0
"""and how many elements an SM reads so."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
FIXED_STEPS_OF_K = 32
"""fp32: what filling the pipeline and storing the result costs, as so many more steps along k."""
HIDING = 0.2
"""fp32: warps a scheduler that half hide what an instruction waits for,"""
HIDING_TESTED = 0.15
"""and how many more for each operand whose copies test every element;"""
TESTED = 0.24
"""what these tests add to the arithmetic, an operand."""
HIDING_PARTS = 3.6
"""fp32x3: as HIDING: sums are chains of six products, each of which waits for the one before;"""
FIXED_OF_PARTS = 12
"""and as FIXED_STEPS_OF_K."""
SPLIT_US = 0.9
"""What a splitting launch takes beside the bytes it moves: it is under way before the one ahead of it has ended."""
CLEARLY = 1.2
"""fp32: how many times as fast as one launch several must be by the model to be chosen: more than it misses by."""


@dataclass(frozen=True)
class Candidate:
    """A config with its k perhaps split, operands to pack first, and the model's microseconds."""

    choice: Choice
    rung: Rung
    config: GemmConfig
    packs: tuple[str, ...]
    us: float


def tiles_of(problem: GemmProblem, config: GemmConfig) -> int:
    return ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n) * problem.batch


def narrow_operands(problem: GemmProblem, rung: Rung, config: GemmConfig) -> tuple[str, ...]:
    """The operands ("a", "b") that the rung copies element by element as they lie, and faster once they are packed.

    Of 16 bits those whose lines no 16-byte access reads; of 32 bits those that no tile divides too.
    """
    facts = rung.own_constants(config, problem)
    return tuple(name for name in "ab" if _is_narrow(facts, name))


def packable_operands(problem: GemmProblem, rung: Rung, config: GemmConfig) -> tuple[str, ...]:
    """Those, and the operands of 16 bits whose lines do not start at sectors: a product that reads them often is faster
    with a copy whose lines do."""
    facts = rung.own_constants(config, problem)
    return tuple(name for name in "ab" if _is_narrow(facts, name) or not facts.get(f"{name}_sectors", True))


def _is_narrow(facts: Mapping[str, Constant], name: str) -> bool:
    return bool(facts.get(f"{name}_edge")) and not facts.get(f"{name}_wide")


def _pass_us(moved: float, gpu: Gpu) -> float:
    """A kernel that moves so many bytes, and does nothing else."""
    return LAUNCH_US + moved / (gpu.dram_gb_s * 1e3 * OF_BANDWIDTH)


def resident_blocks(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu) -> int:
    """Blocks of h11 to h13 that an SM holds at once: by shared memory, threads, and registers as accumulators need."""
    arch = gpu.arch
    shared = rung.shared_bytes(config, problem) + arch.shared_reserved
    pieces_m, pieces_n = config.warp_m // 16, config.warp_n // 16
    registers = 8 * pieces_m * pieces_n + (0 if rung.warpgroups else 8 * (pieces_m + pieces_n)) + 48
    limits = (
        arch.shared_per_sm // shared, 32 * arch.warps_per_sm // config.threads, arch.blocks_per_sm,
        max(arch.registers_per_sm // (registers * config.threads), config.min_blocks),
    )  # fmt: skip
    return max(min(limits), 1)


def product_us(problem: GemmProblem, rung: Rung, choice: Choice, config: GemmConfig, narrow: int, gpu: Gpu) -> float:
    """The product alone, reading `narrow` operands element by element."""
    item = ITEM_BYTES[problem.dtype]
    busiest = max(1, ceil_div(tiles_of(problem, config) * config.split_k, gpu.sm_count))
    steps = ceil_div(ceil_div(problem.k, config.tile_k), config.split_k)
    flops = 2.0 * config.tile_m * config.tile_n * config.tile_k * steps * busiest
    peak = gpu.assumed_tflops(problem.dtype) * 1e6 / gpu.sm_count
    arithmetic = flops / (peak * choice.efficiency)
    rounds = ceil_div(busiest, resident_blocks(problem, rung, config, gpu))
    under_way = config.stages - (2 if rung.warpgroups and config.min_blocks == 1 else 1)
    copies = rounds * steps * TILE_LATENCY_US / max(under_way, 1)
    if problem.m % config.tile_m or problem.n % config.tile_n or problem.k % config.tile_k:
        arithmetic *= RAGGED
    if narrow:
        elements = busiest * steps * config.tile_k * (config.tile_m + config.tile_n)
        arithmetic = max(arithmetic / UNPACKED, elements / ELEMENTS_A_US)
        copies = rounds * steps * TILE_LATENCY_US  # each tile is waited for
    memory = problem.batch * (problem.m + problem.n) * problem.k * item / (gpu.dram_gb_s * 1e3 * OF_BANDWIDTH)
    refills = (rounds - 1) * REFILL_US * (0.5 if rung.stays else 1.0)
    return LAUNCH_US + refills + max(arithmetic, copies, memory)


def packing_us(problem: GemmProblem, config: GemmConfig, names: tuple[str, ...], gpu: Gpu) -> float:
    """Reading each operand once, and writing it as whole tiles."""
    item, total = ITEM_BYTES[problem.dtype], 0.0
    for name in names:
        matrix, rows, cols, tile_rows, tile_cols = (
            (problem.a, problem.m, problem.k, config.tile_m, config.tile_k) if name == "a"
            else (problem.b, problem.k, problem.n, config.tile_k, config.tile_n)
        )  # fmt: skip
        moved = rows * cols + ceil_div(rows, tile_rows) * tile_rows * ceil_div(cols, tile_cols) * tile_cols
        total += PACK_US + _pass_us(moved * item * (problem.batch if matrix.batch_stride else 1), gpu)
    return total


def summing_us(problem: GemmProblem, parts: int, gpu: Gpu) -> float:
    """Writing the parts in fp32 and reading them; 0 for one part."""
    if parts == 1:
        return 0.0
    return _pass_us((2 * parts + 1) * 4.0 * problem.m * problem.n * problem.batch, gpu)


def candidates(problem: GemmProblem, choices: list[Choice], gpu: Gpu, may_split: bool) -> list[Candidate]:
    """Every choice, with k split as far as the grid leaves SMs idle, with and without packing what needs it."""
    found = []
    for choice in choices:
        rung = find_rung(choice.rung)
        narrow = narrow_operands(problem, rung, choice.config)
        ways = {(), narrow, *((name,) for name in narrow)} if problem.k else {()}
        tiles = tiles_of(problem, choice.config)
        most = min(ceil_div(problem.k, choice.config.tile_k), 4 * gpu.sm_count // max(tiles, 1)) if may_split else 1
        for parts in SPLITS:
            if parts > max(most, 1):
                break
            config = replace(choice.config, split_k=parts) if parts > 1 else choice.config
            for packs in sorted(ways):
                us = (
                    packing_us(problem, config, packs, gpu)
                    + (
                        fp32_us(problem, choice, config, len(narrow) - len(packs), gpu)
                        if problem.dtype == "f32"
                        else product_us(problem, rung, choice, config, len(narrow) - len(packs), gpu)
                    )
                    + summing_us(problem, parts, gpu)
                )
                found.append(Candidate(choice, rung, config, packs, us))
    return found


def fp32_cost(problem: GemmProblem, choice: Choice, config: GemmConfig, gpu: Gpu) -> float:
    """Model of the busiest SM's work, in products at full rate: its whole tiles. `config`: k perhaps in parts.

    Whole tiles count, so a ragged edge and a last wave that few SMs share both cost what they cost.
    """
    blocks = _blocks_of_busiest(problem, config, gpu)
    steps = ceil_div(ceil_div(problem.k, config.tile_k), config.split_k) * config.tile_k
    fixed = FIXED_STEPS_OF_K / min(blocks, config.min_blocks)
    return blocks * config.tile_m * config.tile_n * (steps + fixed) / choice.efficiency


def _blocks_of_busiest(problem: GemmProblem, config: GemmConfig, gpu: Gpu) -> int:
    return max(1, ceil_div(tiles_of(problem, config) * config.split_k, gpu.sm_count))


def fp32_us(problem: GemmProblem, choice: Choice, config: GemmConfig, tested: int, gpu: Gpu) -> float:
    """f12 alone, testing every element of `tested` operands: its arithmetic, slower where warps are few, or the bytes.

    Of 362 times on an H200 (fp32-f12-sweep-H200.json and the table that ships, NN and NT) this misses by a factor of
    1.15 in the root mean square, be it that nothing is tested or both operands are.
    """
    hiding = HIDING + HIDING_TESTED * tested
    a_block = config.threads / 32 / gpu.arch.warp_schedulers  # warps a scheduler
    full = config.min_blocks * a_block
    here = min(_blocks_of_busiest(problem, config, gpu) * a_block, full)
    slower = (1 + TESTED * tested) * (here + hiding) / here * full / (full + hiding)
    arithmetic = fp32_cost(problem, choice, config, gpu) * slower / (gpu.ffma_tflops * 1e6 / gpu.sm_count / 2)
    return LAUNCH_US + max(arithmetic, problem.bytes / (gpu.dram_gb_s * 1e3 * OF_BANDWIDTH))


def fp32x3_us(problem: GemmProblem, rung: Rung, choice: Choice, gpu: Gpu) -> float:
    """t02, or t03 with both splitting launches: its arithmetic, slower where warps are few, or the bytes.

    Of the times in precision-sizes-H200.json that it was fitted to this misses by a factor of 1.10 in the root mean
    square. Of other GPUs nothing was measured.
    """
    config, arch = choice.config, gpu.arch
    blocks = _blocks_of_busiest(problem, config, gpu)
    room = arch.shared_per_sm // (rung.shared_bytes(config, problem) + arch.shared_reserved)
    beside = min(blocks, config.min_blocks, room)
    a_block = config.threads / 32 / arch.warp_schedulers
    here, full = beside * a_block, config.min_blocks * a_block
    slower = (here + HIDING_PARTS) / here * full / (full + HIDING_PARTS)
    steps = ceil_div(problem.k, config.tile_k) * config.tile_k + FIXED_OF_PARTS / min(blocks, config.min_blocks)
    rate = gpu.assumed_tflops(problem.kind) * choice.efficiency * 1e6 / gpu.sm_count / 2
    bandwidth = gpu.dram_gb_s * 1e3 * OF_BANDWIDTH
    total = LAUNCH_US + max(blocks * config.tile_m * config.tile_n * steps / rate * slower, problem.bytes / bandwidth)
    for matrix, elements in ((problem.a, problem.m * problem.k), (problem.b, problem.k * problem.n)):
        if rung.splits:  # 4 bytes an element are read, 6 written
            total += SPLIT_US + 10 * elements * (problem.batch if matrix.batch_stride else 1) / bandwidth
    return total
