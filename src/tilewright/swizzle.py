"""Swizzle<bits, base, shift>: the permutation of shared-memory offsets that cuda/tile/tile16.cuh compiles in."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidOperand


@dataclass(frozen=True)
class Swizzle:
    """Offsets (in elements) whose `bits` bits from `base` on are xored with the `bits` bits `shift` above them.

    2**base elements stay together; the pattern repeats every 2**(base + shift + bits) elements. `shift` >= `bits`, or
    InvalidOperand: then applying it twice gives the offset back.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or self.shift < self.bits:
            raise InvalidOperand(
                f"Swizzle<{self.bits}, {self.base}, {self.shift}> is not one: bits and base must not be negative, and "
                f"shift ({self.shift}) must be at least bits ({self.bits}), or source and target bits overlap."
            )

    @property
    def target(self) -> int:
        """The bits that change, as a mask."""
        return (1 << self.bits) - 1 << self.base

    def __call__(self, offset: int) -> int:
        """The place of element `offset`."""
        return offset ^ (offset >> self.shift & self.target)
