"""What instructions ask of global memory, in sectors; bulk copies are counted by their bytes."""

from __future__ import annotations

from ..emu.trace import InstructionRow

SECTOR = 32
_STORES = ("st.", "red.", "atom.")
_BULK = ("cp.async.bulk.", "cp.reduce.async.bulk.")


def opcode(row: InstructionRow) -> str:
    """The instruction's name, without its guard."""
    return next(part for part in row.ptx.split() if not part.startswith("@"))


def sectors_of(row: InstructionRow) -> int:
    """The sectors of global memory that an instruction asks for: of bulk copies those that hold their bytes."""
    return row.sectors or (_held(row) if _is_bulk(opcode(row)) else 0)


def fewest_sectors(row: InstructionRow) -> int:
    """The sectors that would hold the bytes that an instruction's lanes move, each once: at least one per request, at
    most those that it asked for (lanes that read one address together need fewer than their bytes fill)."""
    return min(sectors_of(row), max(row.requests, _held(row)))


def is_store(row: InstructionRow) -> bool:
    """Return whether what an instruction asks of global memory is written there, or merged."""
    name = opcode(row)
    return name.startswith(_STORES) or (_is_bulk(name) and ".global.shared::cta" in name)


def _is_bulk(name: str) -> bool:
    """A bulk copy between global and shared memory, not from block to block."""
    return name.startswith(_BULK) and ".global" in name


def _held(row: InstructionRow) -> int:
    return -(-row.bytes // SECTOR)
