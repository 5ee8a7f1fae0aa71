"""ldmatrix and stmatrix: 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp.

Lane i gives the address of row i % 8, 16 bytes, of matrix i / 8. Counted as one request, each matrix a wavefront for
every two rows that meet in a bank (emu/banks.py).
"""

from __future__ import annotations

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from ..trace import Site
from .mma import read_registers, registers, whole_warps, write_registers
from .registry import Step, executes


def rows_to_words(rows: np.ndarray, transposed: bool) -> np.ndarray:
    """uint16 [warps, matrices, 8 rows, 8] -> what the lanes hold: uint32 [warps, matrices, 32].

    Lane l: elements (l / 4, 2 (l % 4)) and the next, of the matrix or of its transpose.
    """
    held = np.ascontiguousarray(rows.swapaxes(2, 3) if transposed else rows)
    return held.view(np.uint32).reshape(len(rows), -1, 32)


def words_to_rows(words: np.ndarray, transposed: bool) -> np.ndarray:
    """The inverse of rows_to_words."""
    rows = np.ascontiguousarray(words).view(np.uint16).reshape(len(words), -1, 8, 8)
    return np.ascontiguousarray(rows.swapaxes(2, 3)) if transposed else rows


class giving_lanes:
    """While inside, only the lanes that give an address are active: the first 8 of each warp for every matrix."""

    def __init__(self, machine: Machine, matrices: int) -> None:
        self.machine, self.outer = machine, machine.mask
        self.giving = None if matrices == 4 else np.arange(machine.lanes) % 32 < 8 * matrices

    def __enter__(self) -> None:
        if self.giving is not None:
            self.machine.set_mask(self.giving if self.outer is None else self.giving & self.outer)

    def __exit__(self, *_: object) -> None:
        if self.giving is not None:
            self.machine.set_mask(self.outer)


def load_rows(
    machine: Machine, site: Site, instruction: Instruction, base: np.ndarray, offset: int, matrices: int
) -> np.ndarray | None:
    """The rows at the lanes' shared addresses: uint16 [warps, matrices, 8, 8]; zeros where a lane is left out."""
    with giving_lanes(machine, matrices):
        pattern = machine.shared.locate(site, "read", instruction, base, offset, 16, counted_as="matrix")
    if pattern is None:
        return None
    whole = np.zeros(machine.lanes, np.complex128)
    got = machine.shared.views[16].take(pattern.index, mode="clip")
    whole[slice(None) if pattern.lanes is None else pattern.lanes] = got
    return whole.view(np.uint16).reshape(-1, 4, 8, 8)[:, :matrices]


@executes(
    "ldmatrix.sync.aligned.m8n8.{num:x1|x2|x4}{trans:.trans|}.shared{::cta|}.b16",
    "ldmatrix.sync.aligned.{num:x1|x2|x4}{trans:.trans|}.m8n8.shared{::cta|}.b16",  # an older spelling, CUTLASS's
    kind="memory_shared",
)
def load_matrix(machine: Machine, instruction: Instruction) -> Step:
    """One, two or four matrices, one a register; with .trans transposed."""
    matrices, transposed = int(instruction.fields["num"][1:]), bool(instruction.fields["trans"])
    held = registers(instruction.operands[0])
    machine.expect(instruction, len(held) == matrices, f"needs {matrices} registers")
    put = write_registers(machine, instruction, held, "b32")
    base, offset = machine.pointer(instruction, instruction.operands[1])
    site = machine.trace.site(instruction.index, "shared_load")

    def step() -> None:
        whole_warps(machine, instruction)
        rows = load_rows(machine, site, instruction, base, offset, matrices)
        if rows is not None:
            put(rows_to_words(rows, transposed))

    return step


@executes(
    "stmatrix.sync.aligned.m8n8.{num:x1|x2|x4}{trans:.trans|}.shared{::cta|}.b16",
    "stmatrix.sync.aligned.{num:x1|x2|x4}{trans:.trans|}.m8n8.shared{::cta|}.b16",  # DeepGEMM's spelling
    kind="memory_shared",
    destination="none",
)
def store_matrix(machine: Machine, instruction: Instruction) -> Step:
    """One, two or four matrices, one a register, to the rows that the lanes name; with .trans transposed."""
    matrices, transposed = int(instruction.fields["num"][1:]), bool(instruction.fields["trans"])
    held = registers(instruction.operands[1])
    machine.expect(instruction, len(held) == matrices, f"needs {matrices} registers")
    read = read_registers(machine, instruction, held, "b32")
    base, offset = machine.pointer(instruction, instruction.operands[0])
    site = machine.trace.site(instruction.index, "shared_store")

    def step() -> None:
        whole_warps(machine, instruction)
        rows = words_to_rows(read(), transposed)
        with giving_lanes(machine, matrices):
            pattern = machine.shared.locate(site, "write", instruction, base, offset, 16)
        if pattern is not None:
            whole = np.zeros((machine.lanes // 32, 4, 8, 8), np.uint16)
            whole[:, :matrices] = rows
            flat = whole.reshape(machine.lanes, 8).view(np.complex128).reshape(-1)
            machine.shared.store(pattern, flat if pattern.lanes is None else flat[pattern.lanes])

    return step


@executes("movmatrix.sync.aligned.m8n8.trans.b16", kind="shuffle")
def transpose(machine: Machine, instruction: Instruction) -> Step:
    """A matrix in one register of a warp, transposed."""
    to, source = (registers(operand) for operand in instruction.operands)
    machine.expect(instruction, len(to) == len(source) == 1, "needs one register and one more")
    put = write_registers(machine, instruction, to, "b32")
    read = read_registers(machine, instruction, source, "b32")

    def step() -> None:
        whole_warps(machine, instruction)
        put(rows_to_words(words_to_rows(read(), False), True))

    return step
