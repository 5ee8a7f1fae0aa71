"""One launch as the machine takes it: checked, and plain data, so that processes can be told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Triple = tuple[int, int, int]
LIMIT = 10**8
"""Instructions that a launch may take, those of blocks side by side counted once: most of an hour on the emulator."""


@dataclass(frozen=True)
class Task:
    """A launch whose memory and variables are placed."""

    ptx: str
    entry: str
    grid: Triple
    block: Triple
    params: bytes
    """The parameter buffer as the PTX lays it out."""
    symbols: dict[str, int]
    """Module variable -> address in global memory."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    gpu: str
    ctas: int
    """Blocks of a batch: they run side by side. Those of a cluster stand next to one another, by their ranks."""
    limit: int | None
    """Instructions of all batches; None: LIMIT for each."""
    cluster: Triple | None
    red_zones: bool
    """Whether shared variables lie apart (program.Code.red_zones)."""
    strict: bool
    """Whether warnings are errors."""
    sources: Mapping[str, str] | None
    """File name -> text, for the lines in reports."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def batches(self) -> range:
        """The first block of each batch."""
        return range(0, self.blocks, self.ctas)
