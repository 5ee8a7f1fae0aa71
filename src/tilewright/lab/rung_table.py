"""Every rung of the ladders with what it teaches, as a typed result."""

from __future__ import annotations

from dataclasses import dataclass

from ..attn.backward_rung import BackwardRung
from ..attn.backward_rungs import BACKWARD_RUNGS
from ..attn.rung import AttentionRung
from ..attn.rungs import EVERY_RUNG
from ..gemm.rung import Rung
from ..gemm.rungs import GEMM_RUNGS
from ..grouped.rungs import GROUPED_RUNGS
from .shown import Grid, Shown


@dataclass(frozen=True)
class RungRow:
    """One rung: its id, the types of its operands, and what is new over the rung below."""

    rung: str
    types: str
    teaches: str


@dataclass(frozen=True, repr=False)
class RungTable(Shown):
    """The rungs in climbing order."""

    rows: tuple[RungRow, ...]

    def grids(self) -> tuple[Grid, ...]:
        """One row per rung."""
        rows = tuple((row.rung, row.types, row.teaches) for row in self.rows)
        return (Grid("", ("rung", "types", "what is new over the rung below"), rows),)


def types_of(rung: Rung | AttentionRung | BackwardRung) -> str:
    """The types of a rung's operands, and how it multiplies float32 where that is not as it is."""
    types = ", ".join(getattr(rung, "dtypes", ("bf16", "f16")))
    return types if getattr(rung, "precision", "ieee") == "ieee" else f"{types} as {rung.precision}"  # type: ignore[union-attr]


def rungs() -> RungTable:
    """Return every rung with what it teaches: those of products and attention, in climbing order, then those of
    attention's gradients and of grouped products."""
    every: list[Rung | AttentionRung | BackwardRung] = [*GEMM_RUNGS, *EVERY_RUNG, *BACKWARD_RUNGS, *GROUPED_RUNGS]
    return RungTable(tuple(RungRow(rung.id, types_of(rung), rung.teaches) for rung in every))
