"""wmma: load, multiply and store of whole fragments. Numbers as in mma.py; the layout is fragments.py's.

A and B of 16 bits are read piece by piece (8 rows of 16 bytes, whatever the layout): from shared memory as ldmatrix
does it, up to four pieces per request; from global memory 4 bytes per lane. Where the other index is the contiguous
one, the pieces are transposed in the registers. Elements of 8 bits are read in this way where k is the contiguous
index; otherwise, as those of 32 and 64 bits, one by one. C and D move two neighbouring elements of a row at once if
rows are contiguous (not of 64 bits), else one. That is what the machine code does, so the counts are its counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .fragments import LANE, G, T, neighbours
from .ldmatrix import load_rows, rows_to_words
from .memory import by_space
from .mma import SIZE, operations, product, read_registers, registers, sizes, whole_warps, write_registers
from .registry import Step, executes

_SHAPE = "{shape:m16n16k16|m32n8k16|m8n32k16}"
_SPACE = "{space:.global|.shared|.shared::cta|}"
_LAYOUT = "{layout:row|col}"


def _space(instruction: Instruction) -> str:
    return instruction.fields["space"].lstrip(".").split("::")[0]


def _pitch(machine: Machine, instruction: Instruction, at: int, default: int) -> np.ndarray:
    if len(instruction.operands) > at:
        return machine.source(instruction, instruction.operands[at], "u32")
    return np.array([default], np.uint32)


def _aligned(machine: Machine, instruction: Instruction, base: np.ndarray, offset: int, line: int) -> None:
    """Warn of a matrix in global memory that does not begin at a multiple of 32 bytes, or of a line's where that has
    fewer: CUDA asks for it. Arrays in shared memory that say nothing lie at smaller ones in many kernels."""
    wanted = min(line, 32)
    at = np.broadcast_to(base, (machine.lanes,)).astype(np.int64) + offset
    bad = at % wanted != 0
    if machine.mask is not None:
        bad &= machine.mask
    if bad.any():
        where = int(at[bad][0])
        machine.report(
            "matrix_alignment",
            f"a matrix at {where:#x}, {machine.memory.describe(where)}, which is not a multiple of {wanted}",
            instruction, np.flatnonzero(bad), where,
        )  # fmt: skip


def _addresses(
    machine: Machine, base: np.ndarray, offset: int, pitch: np.ndarray, line: np.ndarray, along: np.ndarray, size: int
) -> np.ndarray:
    """Address of (line, along) of each lane, int64 [lanes]; line and along are [32]."""
    warps = machine.lanes // 32
    start = np.broadcast_to(base, (machine.lanes,)).astype(np.int64).reshape(warps, 32) + offset
    step = np.broadcast_to(pitch, (machine.lanes,)).astype(np.int64).reshape(warps, 32)
    return (start + (line * step + along) * size).reshape(-1)


def _load_lanes(
    machine: Machine, instruction: Instruction, address: np.ndarray, nbytes: int, local: bool
) -> np.ndarray:
    """One element per lane, from global memory: an unsigned integer [lanes], 0 for lanes that are left out."""
    machine.expect(instruction, not local, "has no matrix in local memory")
    site = machine.trace.site(instruction.index, "global_load")
    values = np.zeros(machine.lanes, f"u{nbytes}")
    found = machine.port.locate(site, instruction, address.view(np.uint64), 0, nbytes, False)
    if found is not None:
        lanes, index = found
        values[slice(None) if lanes is None else lanes] = machine.memory.views[nbytes].take(index, mode="clip")
    return values


def _load_shared_lanes(machine: Machine, instruction: Instruction, address: np.ndarray, nbytes: int) -> np.ndarray:
    """Do as _load_lanes, from shared memory."""
    site = machine.trace.site(instruction.index, "shared_load")
    values = np.zeros(machine.lanes, f"u{nbytes}")
    pattern = machine.shared.locate(site, "read", instruction, address, 0, nbytes)
    if pattern is not None:
        got = machine.shared.views[nbytes].take(pattern.index, mode="clip")
        values[slice(None) if pattern.lanes is None else pattern.lanes] = got
    return values


def _memory_kind(fields: dict[str, str]) -> str:
    return "memory_" + (fields["space"].lstrip(".").split("::")[0] or "global")


class _Operand:
    """A (m x k) or B (k x n) in memory, in pieces of eight lines by four registers' elements along k."""

    def __init__(self, machine: Machine, instruction: Instruction) -> None:
        self.machine, self.instruction = machine, instruction
        fields = instruction.fields
        m, n, k = sizes(fields["shape"])
        self.is_a = fields["side"] == "a"
        extent = m if self.is_a else n
        self.size = SIZE[fields["type"]]
        self.width = max(self.size, 4)
        """Bytes of a register."""
        self.together = self.width // self.size
        """Elements of a register."""
        depth = k // (4 * self.together)  # pieces along k
        self.pieces = extent // 8 * depth
        self.down = extent // 8 if self.is_a else depth
        self.k_inner = self.is_a == (fields["layout"] == "row")
        line = k if self.k_inner else extent
        self.line = line * self.size
        """Bytes of a row, or of a column where those lie in one piece."""
        self.pitch = _pitch(machine, instruction, 2, line)

    def origin(self, piece: np.ndarray | int) -> tuple[np.ndarray | int, np.ndarray | int]:
        """(line, along) of a piece's first element."""
        first, second = piece % self.down, piece // self.down
        mn, along = (first, second) if self.is_a else (second, first)
        mn, along = 8 * mn, 4 * self.together * along
        return (mn, along) if self.k_inner else (along, mn)

    def by_rows(self, base: np.ndarray, offset: int) -> np.ndarray:
        """Registers [warps, pieces, 32], read from shared memory by rows of 16 bytes."""
        machine = self.machine
        site = machine.trace.site(self.instruction.index, "shared_load")
        words = np.zeros((machine.lanes // 32, self.pieces, 32), np.uint32)
        for first in range(0, self.pieces, 4):
            count = min(4, self.pieces - first)
            line, along = self.origin(first + LANE // 8 % count)
            lines = line + LANE % 8
            address = _addresses(machine, base, offset, self.pitch, lines, np.asarray(along), self.size)
            rows = load_rows(machine, site, self.instruction, address, 0, count)
            if rows is not None:  # a lane holds neighbours along k: pieces whose lines run along m or n are transposed
                words[:, first : first + count] = rows_to_words(rows, not self.k_inner)
        return words

    def by_lanes(self, base: np.ndarray, offset: int, load: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
        """The same, a register per lane where its elements are neighbours in memory, else an element."""
        machine, size, width = self.machine, self.size, self.width
        words = np.zeros((machine.lanes // 32, self.pieces, 32), f"u{width}")
        parts = words[..., None].view(f"u{size}")

        def at(line: np.ndarray, along: np.ndarray) -> np.ndarray:
            return _addresses(machine, base, offset, self.pitch, line, along, size)

        for piece in range(self.pieces):
            line, along = self.origin(piece)
            if self.k_inner:
                words[:, piece] = load(at(line + G, along + self.together * T), width).reshape(-1, 32)
            elif size == 2:
                lines = load(at(line + G, along + 2 * T), width).view(np.uint16).reshape(len(words), 1, 8, 8)
                words[:, piece] = rows_to_words(lines, True)[:, 0]
            else:
                for part in range(self.together):
                    address = at(line + self.together * T + part, along + G)
                    parts[:, piece, :, part] = load(address, size).reshape(-1, 32)
        return words


@executes(
    f"wmma.load.{{side:a|b}}.sync.aligned.{_LAYOUT}.{_SHAPE}{_SPACE}.{{type:f16|bf16|s8|u8}}",
    f"wmma.load.{{side:a|b}}.sync.aligned.{_LAYOUT}.{{shape:m16n16k8}}{_SPACE}.{{type:tf32}}",
    f"wmma.load.{{side:a|b}}.sync.aligned.{_LAYOUT}.{{shape:m8n8k4}}{_SPACE}.{{type:f64}}",
    kind=_memory_kind,
)
def load_operand(machine: Machine, instruction: Instruction) -> Step:
    """A (m x k) or B (k x n): `{registers}, [address]{, pitch in elements}`."""
    operand = _Operand(machine, instruction)
    held = registers(instruction.operands[0])
    wanted = 8 if instruction.fields["type"] == "f16" else operand.pieces
    machine.expect(instruction, len(held) == wanted, f"needs {wanted} registers")
    put = write_registers(machine, instruction, held, f"b{8 * operand.width}")
    base, offset = machine.pointer(instruction, instruction.operands[1])

    def shared(base: np.ndarray, offset: int) -> None:
        if operand.size == 2 or (operand.size == 1 and operand.k_inner):
            finish(operand.by_rows(base, offset))
        else:
            finish(
                operand.by_lanes(base, offset, lambda at, nbytes: _load_shared_lanes(machine, instruction, at, nbytes))
            )

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        _aligned(machine, instruction, base, offset, operand.line)
        finish(operand.by_lanes(base, offset, lambda at, nbytes: _load_lanes(machine, instruction, at, nbytes, local)))

    def finish(words: np.ndarray) -> None:
        put(np.concatenate([words] * (wanted // operand.pieces), axis=1))

    load = by_space(machine, instruction, _space(instruction), base, offset, shared, elsewhere)

    def step() -> None:
        whole_warps(machine, instruction)
        load()

    return step


class _Accesses:
    """The layout of C or D in memory: one access a list entry, each of the elements of one or two registers or
    halves."""

    def __init__(self, instruction: Instruction) -> None:
        fields = instruction.fields
        m, n, _ = sizes(fields["shape"])
        self.size = SIZE[fields["type"]]
        self.width = max(self.size, 4)
        """Bytes of a register."""
        by_rows = fields["layout"] == "row"
        self.default_pitch = n if by_rows else m
        row, column = neighbours(m, n)
        line, along = (row, column) if by_rows else (column, row)
        self.pieces = len(row)
        self.registers = self.pieces * 2 * self.size // self.width
        self.both = by_rows and self.size < 8
        """Whether an access moves two elements."""
        width = 2 if self.both else 1
        self.nbytes = self.size * width
        self.places = [(line[p, :, h], along[p, :, h]) for p in range(self.pieces) for h in range(0, 2, width)]

    def pack(self, parts: np.ndarray) -> np.ndarray:
        """Elements [warps, pieces, 32, 2] as one unsigned integer an access: [warps, accesses, 32]."""
        if self.both:
            return np.ascontiguousarray(parts).view(f"u{self.nbytes}")[..., 0]
        return np.moveaxis(parts, 3, 2).reshape(len(parts), -1, 32)

    def unpack(self, words: np.ndarray) -> np.ndarray:
        """The inverse of pack."""
        if self.both:
            return np.ascontiguousarray(words)[..., None].view(f"u{self.size}")
        return np.moveaxis(words.reshape(len(words), self.pieces, 2, 32), 2, 3)

    def to_registers(self, parts: np.ndarray) -> np.ndarray:
        """[warps, pieces, 32, 2] -> [warps, registers, 32] of `width` bytes."""
        if self.size >= 4:
            return np.moveaxis(parts, 3, 2).reshape(len(parts), -1, 32)
        return np.ascontiguousarray(parts).view(np.uint32)[..., 0]

    def from_registers(self, words: np.ndarray) -> np.ndarray:
        """The inverse of to_registers."""
        if self.size >= 4:
            return np.moveaxis(words.reshape(len(words), self.pieces, 2, 32), 2, 3)
        return np.ascontiguousarray(words)[..., None].view(np.uint16)


@executes(
    f"wmma.load.c.sync.aligned.{_LAYOUT}.{_SHAPE}{_SPACE}.{{type:f32|f16|s32}}",
    f"wmma.load.c.sync.aligned.{_LAYOUT}.{{shape:m16n16k8}}{_SPACE}.{{type:f32}}",
    f"wmma.load.c.sync.aligned.{_LAYOUT}.{{shape:m8n8k4}}{_SPACE}.{{type:f64}}",
    kind=_memory_kind,
)
def load_accumulator(machine: Machine, instruction: Instruction) -> Step:
    """C (m x n): `{registers}, [address]{, pitch in elements}`."""
    how = _Accesses(instruction)
    held = registers(instruction.operands[0])
    machine.expect(instruction, len(held) == how.registers, f"needs {how.registers} registers")
    put = write_registers(machine, instruction, held, f"b{8 * how.width}")
    base, offset = machine.pointer(instruction, instruction.operands[1])
    pitch = _pitch(machine, instruction, 2, how.default_pitch)

    def gather(base: np.ndarray, offset: int, load: Callable[[np.ndarray], np.ndarray]) -> None:
        words = np.zeros((machine.lanes // 32, len(how.places), 32), f"u{how.nbytes}")
        for i, (line, along) in enumerate(how.places):
            address = _addresses(machine, base, offset, pitch, line, along, how.size)
            words[:, i] = load(address).reshape(-1, 32)
        put(how.to_registers(how.unpack(words)))

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        _aligned(machine, instruction, base, offset, how.default_pitch * how.size)
        gather(base, offset, lambda address: _load_lanes(machine, instruction, address, how.nbytes, local))

    load = by_space(
        machine, instruction, _space(instruction), base, offset,
        lambda base, offset: gather(
            base, offset, lambda address: _load_shared_lanes(machine, instruction, address, how.nbytes)
        ),
        elsewhere,
    )  # fmt: skip

    def step() -> None:
        whole_warps(machine, instruction)
        load()

    return step


@executes(
    f"wmma.store.d.sync.aligned.{_LAYOUT}.{_SHAPE}{_SPACE}.{{type:f32|f16|s32}}",
    f"wmma.store.d.sync.aligned.{_LAYOUT}.{{shape:m16n16k8}}{_SPACE}.{{type:f32}}",
    f"wmma.store.d.sync.aligned.{_LAYOUT}.{{shape:m8n8k4}}{_SPACE}.{{type:f64}}",
    kind=_memory_kind,
    destination="none",
)
def store_accumulator(machine: Machine, instruction: Instruction) -> Step:
    """D (m x n): `[address], {registers}{, pitch in elements}`."""
    how = _Accesses(instruction)
    held = registers(instruction.operands[1])
    machine.expect(instruction, len(held) == how.registers, f"needs {how.registers} registers")
    read = read_registers(machine, instruction, held, f"b{8 * how.width}")
    base, offset = machine.pointer(instruction, instruction.operands[0])
    pitch = _pitch(machine, instruction, 2, how.default_pitch)

    def scatter(base: np.ndarray, offset: int, store: Callable[[np.ndarray, np.ndarray], None]) -> None:
        words = how.pack(how.from_registers(read()))
        for i, (line, along) in enumerate(how.places):
            address = _addresses(machine, base, offset, pitch, line, along, how.size)
            store(address, np.ascontiguousarray(words[:, i]).reshape(-1))

    def to_shared(address: np.ndarray, values: np.ndarray) -> None:
        site = machine.trace.site(instruction.index, "shared_store")
        pattern = machine.shared.locate(site, "write", instruction, address, 0, how.nbytes)
        if pattern is not None:
            machine.shared.store(pattern, values if pattern.lanes is None else values[pattern.lanes])

    def to_global(address: np.ndarray, values: np.ndarray) -> None:
        site = machine.trace.site(instruction.index, "global_store")
        found = machine.port.locate(site, instruction, address.view(np.uint64), 0, how.nbytes, True)
        if found is not None:
            lanes, index = found
            machine.port.store(index, how.nbytes, values if lanes is None else values[lanes])

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        machine.expect(instruction, not local, "has no matrix in local memory")
        _aligned(machine, instruction, base, offset, how.default_pitch * how.size)
        scatter(base, offset, to_global)

    store = by_space(
        machine, instruction, _space(instruction), base, offset,
        lambda base, offset: scatter(base, offset, to_shared), elsewhere,
    )  # fmt: skip

    def step() -> None:
        whole_warps(machine, instruction)
        store()

    return step


def _multiply(machine: Machine, instructions: Sequence[Instruction]) -> Step:
    fields = instructions[0].fields
    kinds = (fields["d"], fields.get("a", "f16"), fields.get("b", "f16"), fields["c"])
    return product(machine, instructions, "wmma", sizes(fields["shape"]), kinds, bool(fields.get("saturate")))


_MULTIPLY = "wmma.mma.sync.aligned.{row|col}.{row|col}."


@executes(
    _MULTIPLY + _SHAPE + ".{d:f32}.{a:bf16}.{b:bf16}.{c:f32}",
    _MULTIPLY + _SHAPE + ".{d:f32|f16}.{c:f32|f16}",
    _MULTIPLY + "{shape:m16n16k8}.{d:f32}.{a:tf32}.{b:tf32}.{c:f32}",
    _MULTIPLY + _SHAPE + ".{d:s32}.{a:s8}.{b:s8}.{c:s32}{saturate:.satfinite|}",
    _MULTIPLY + _SHAPE + ".{d:s32}.{a:u8}.{b:u8}.{c:s32}{saturate:.satfinite|}",
    _MULTIPLY + "{shape:m8n8k4}{.rn|}.{d:f64}.{a:f64}.{b:f64}.{c:f64}{.rn|}",
    kind="tensor",
    flops=operations,
    together=_multiply,
)
def multiply(machine: Machine, instruction: Instruction) -> Step:
    """D = A B + C. The layouts say how A and B were loaded; the registers hold them one way."""
    return _multiply(machine, [instruction])
