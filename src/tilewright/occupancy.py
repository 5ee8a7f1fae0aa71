"""Occupancy: how many blocks of a kernel an SM holds, and what limits them.

The rules are those of the CUDA occupancy calculator: registers are handed out a warp at a time in units of
`Arch.register_unit`, shared memory in units of `Arch.shared_unit` plus what the system keeps of each block.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gpus import Arch
from .jit import Resources


@dataclass(frozen=True)
class Occupancy:
    """`fraction`: resident warps of those an SM can hold. `limiter`: registers, shared memory, warps, or blocks."""

    blocks: int
    warps: int
    fraction: float
    limiter: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(resources: Resources, threads: int, shared_bytes: int, arch: Arch) -> Occupancy:
    """Of a kernel with these resources, at `threads` a block and `shared_bytes` of dynamic shared memory a block.

    A kernel that does not fit at all has 0 blocks.
    """
    warps = _up(threads, 32) // 32
    registers_a_block = _up(resources.registers * 32, arch.register_unit) * warps
    shared_a_block = _up(resources.shared_bytes + shared_bytes + arch.shared_reserved, arch.shared_unit)
    limits = {  # of equal limits the first is named: full of warps is full
        "warps": arch.warps_per_sm // warps,
        "blocks": arch.blocks_per_sm,
        "registers": arch.registers_per_sm // registers_a_block if registers_a_block else arch.blocks_per_sm,
        "shared memory": arch.shared_per_sm // shared_a_block,
    }
    if threads > arch.threads_per_block or resources.shared_bytes + shared_bytes > arch.shared_per_block:
        limits["shared memory" if threads <= arch.threads_per_block else "warps"] = 0
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps, blocks * warps / arch.warps_per_sm, limiter)
