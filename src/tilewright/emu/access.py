"""The common part of the ways to shared, global and local memory (shared_memory.py, global_port.py, local_memory.py).

A loop repeats its address patterns: in shared memory exactly, in global memory up to a common shift. What follows from
a pattern (bounds, alignment, bank conflicts, sectors, element indices) is therefore worked out once and remembered at
the instruction; only that the addresses are the same is checked each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import coalesce
from .compiled import address
from .ptx import Instruction
from .uses import Parts

if TYPE_CHECKING:
    from .machine import Machine


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and bool((a == b).all())


def only_writes(machine: Machine, instruction: Instruction) -> bool:
    """Return whether an atomic is an exchange whose old value nobody uses."""
    exchange = ".exch" in instruction.opcode
    return exchange and not (instruction.opcode.startswith("atom") and machine.uses(instruction.operands[0]))


def judged(instruction: Instruction, nbytes: int) -> int:
    """Return of how many bytes some have to hold a value for a load: structs, which have padding, are not copied as
    floats."""
    kind = instruction.fields.get("type", "")
    return int(kind[1:]) // 8 if kind in ("f32", "f64") else nbytes


def unfilled(parts: Parts, marks: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return which accesses, whose bytes begin at the marks `first`, lack a byte of these parts."""
    lacking = np.zeros(len(first), bool)
    for offset, size in parts:
        lacking |= (marks[(first + offset)[:, None] + np.arange(size)] == 0).any(axis=1)
    return lacking


def at_one_place(lanes: np.ndarray | None, offsets: np.ndarray) -> np.ndarray:
    """Return the rows [2, n] of accesses to one place by lanes of one warp, each with the next of these."""
    if len(offsets) < 2 or (offsets[1:] > offsets[:-1]).all():
        return np.zeros((2, 0), np.int64)
    warps = (np.arange(len(offsets)) if lanes is None else lanes) // 32
    order = np.lexsort((offsets, warps))
    first, second = order[:-1], order[1:]
    same_place = (offsets[first] == offsets[second]) & (warps[first] == warps[second])
    return np.stack([first[same_place], second[same_place]])


def in_warps(machine: Machine, lanes: np.ndarray | None, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of `lanes` laid out as [warps, 32] with the mask of the active; warps with none left out."""
    if lanes is None:
        grid = addresses.reshape(-1, 32)
        return grid, np.ones(grid.shape, bool)
    every = np.zeros(machine.lanes, np.int64)
    active = np.zeros(machine.lanes, bool)
    every[lanes] = addresses
    active[lanes] = True
    keep = active.reshape(-1, 32).any(axis=1)
    return every.reshape(-1, 32)[keep], active.reshape(-1, 32)[keep]


def count_sectors(machine: Machine, lanes: np.ndarray | None, addresses: np.ndarray, nbytes: int, start: int) -> int:
    """Sectors of all warps of an access: addresses int64 from `start` on, one for each of `lanes`."""
    if machine.compiled is not None:
        places = 0 if lanes is None else address(lanes)
        return int(machine.compiled.sectors(address(addresses), places, len(addresses), nbytes, start))
    grid, active = in_warps(machine, lanes, addresses + start)
    return int(coalesce.sectors(grid, nbytes, active).sum())
