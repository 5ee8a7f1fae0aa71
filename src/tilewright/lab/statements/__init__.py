"""The statements of five documents that can be checked, each statement held against a record or a calculation of the
lab."""

from __future__ import annotations

from pathlib import Path

from ...errors import InvalidOperand, suggests
from ..suite import benchmarks
from .cutlass import LEARN_CUTLASS
from .flash import PART_5, PART_8
from .gemm import CLIMB, DOUBLE_BUFFERING
from .statement import TITLES, ClaimTable, Statement, Verdict, judge

STATEMENTS: tuple[Statement, ...] = (*PART_5, *DOUBLE_BUFFERING, *PART_8, *CLIMB, *LEARN_CUTLASS)

__all__ = ["STATEMENTS", "TITLES", "ClaimTable", "Statement", "Verdict", "claims"]


@suggests
def claims(document: str | None = None, *, folder: Path | None = None) -> ClaimTable:
    """Return what became of the documents' statements here: holds, differs because, or not measurable here because.

    document: "000" to "004"; None: all. folder: of the records; by default benchmarks/results. Raises InvalidOperand.
    """
    if document is not None and document not in TITLES:
        raise InvalidOperand(f"document {document!r} is not one of {', '.join(TITLES)}.")
    table = judge(STATEMENTS, folder or benchmarks() / "results")
    if document is None:
        return table
    return ClaimTable(tuple(verdict for verdict in table.verdicts if verdict.document == document))
