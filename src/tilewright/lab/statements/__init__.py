"""The statements of five documents that can be checked, each statement held against a record or a calculation of the
lab."""

from __future__ import annotations

from pathlib import Path

from ...errors import InvalidOperand, suggests
from ..ladder import Progress, silent
from ..suite import benchmarks
from .cutlass import LEARN_CUTLASS
from .flash import PART_5, PART_8
from .gemm import CLIMB, DOUBLE_BUFFERING
from .statement import TITLES, ClaimTable, Statement, Verdict, judge

STATEMENTS: tuple[Statement, ...] = (*PART_5, *DOUBLE_BUFFERING, *PART_8, *CLIMB, *LEARN_CUTLASS)

__all__ = ["STATEMENTS", "TITLES", "ClaimTable", "Statement", "Verdict", "claims"]


@suggests
def claims(document: str | None = None, *, folder: Path | None = None, progress: Progress = silent) -> ClaimTable:
    """Return what became of the documents' statements here: holds, differs because, or not measurable here because.

    document: "000" to "004"; None: all. folder: of the records; by default benchmarks/results. progress: is told the
    share that is done and what is next. Raises InvalidOperand.
    """
    if document is not None and document not in TITLES:
        raise InvalidOperand(f"document {document!r} is not one of {', '.join(TITLES)}.")
    asked = [statement for statement in STATEMENTS if document in (None, statement.document)]
    return judge(asked, folder or benchmarks() / "results", progress)
