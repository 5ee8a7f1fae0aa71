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

    @property
    def period(self) -> int:
        """Elements after which the pattern repeats."""
        return 1 << self.base + self.shift + self.bits

    def __call__(self, offset: int) -> int:
        """The place of element `offset`."""
        return offset ^ (offset >> self.shift & self.target)


def conflict_free(inner: int) -> Swizzle:
    """The swizzle that spreads lines of `inner` 16-bit elements (a power of two, at least 8) over the banks.

    Eight consecutive lines, read at one column of 16-byte chunks, then lie in eight different 16-byte columns of the
    128-byte row of banks: ldmatrix takes one wavefront a matrix. Raises InvalidOperand for another `inner`.
    """
    if inner < 8 or inner & (inner - 1):
        raise InvalidOperand(
            f"a line of {inner} elements is not a power of two of 16-byte chunks; try 16, 32, 64 or 128."
        )
    line_bit = inner.bit_length() - 1
    return Swizzle(min(3, line_bit - 3), 3, max(3, line_bit - 3))
