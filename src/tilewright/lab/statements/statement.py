"""A statement of a document, and the verdict when it is held against our figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import TilewrightError
from ..ladder import Progress, silent
from ..shown import Grid, Shown
from .figures import ABOUT, Figure, Results, Rule

HOLDS, DIFFERS, NOT_HERE = "holds", "differs", "not measurable here"
TITLES = {
    "000": "Flash Attention from Scratch, part 5 (RTX 3090)",
    "001": "Double buffering & cp.async (H100)",
    "002": "Flash Attention from Scratch, part 8 (A100)",
    "003": "SGEMM and mixed-precision GEMM, kernels 01 to 15 (RTX 5070 Ti)",
    "004": "Learn CUTLASS the hard way! (RTX 4090)",
}
"""The documents, as docs/sources.md names them, and the GPU of each."""


@dataclass(frozen=True)
class Statement:
    """One checkable statement. `because`: why ours differs, or why nothing here measures it."""

    document: str
    quote: str
    theirs: float | None
    unit: str
    ours: Figure | None = None
    rule: Rule = ABOUT
    because: str = ""
    note: str = ""
    """What the figure is of, where the quote is cells of a table."""


@dataclass(frozen=True)
class Verdict:
    """A statement held against our figure. `machine`: where ours was measured; `record`: of what it is worked out."""

    id: str
    document: str
    quote: str
    theirs: float | None
    unit: str
    ours: float | None
    machine: str
    record: str
    verdict: str
    rule: str
    because: str
    note: str
    stale: str
    """Why its records may no longer hold; "" where they do."""

    @property
    def said(self) -> str:
        """The quote in quotation marks, and what its figure is of."""
        return f'"{self.quote}"' + (f" ({self.note})" if self.note else "")

    @property
    def origin(self) -> str:
        """Return where our figure comes from; "-" without one."""
        return self.record if self.machine in ("-", "calculated") else f"{self.machine}: {self.record}"

    @property
    def words(self) -> str:
        """The verdict with its reason, or with the rule by which it holds."""
        if self.verdict == HOLDS:
            return f"{self.verdict}: {self.rule}"
        if not self.because:
            return self.verdict
        return f"{self.verdict} because {self.because}"


@dataclass(frozen=True, repr=False)
class ClaimTable(Shown):
    """Statements of the documents, each with what was found here."""

    verdicts: tuple[Verdict, ...]

    def counts(self) -> dict[str, int]:
        """Return how many hold, differ, and cannot be measured here."""
        return {word: sum(v.verdict == word for v in self.verdicts) for word in (HOLDS, DIFFERS, NOT_HERE)}

    @property
    def summary(self) -> str:
        """The counts in words: 102 hold, 68 differ, 7 are not measurable here."""
        words = zip(("hold", "differ", "are not measurable here"), self.counts().values(), strict=True)
        return ", ".join(f"{count} {word}" for word, count in words)

    def grids(self) -> tuple[Grid, ...]:
        """One table per document."""
        made = []
        for document in dict.fromkeys(verdict.document for verdict in self.verdicts):
            rows = tuple(
                (v.id, v.said, figure(v.theirs, v.unit), figure(v.ours, v.unit), v.words)
                for v in self.verdicts if v.document == document
            )  # fmt: skip
            title = f"{document}: {TITLES[document]}"
            made.append(Grid(title, ("id", "statement", "theirs", "here", "verdict"), rows))
        last = made[-1]
        return (*made[:-1], Grid(last.title, last.names, last.rows, f"{len(self.verdicts)}: {self.summary}."))


def figure(value: float | None, unit: str) -> str:
    """A figure with its unit, in three digits that count; a dash for none."""
    if value is None:
        return "-"
    digits = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    sign = "+" if unit.startswith("% more") and value > 0 else ""
    return f"{sign}{digits}{'%' if unit.startswith('%') else unit and ('x' if unit == 'x' else f' {unit}')}"


def judge(statements: Sequence[Statement], folder: Path, progress: Progress = silent) -> ClaimTable:
    """Hold statements against the records of a folder. A record that is missing is said, not raised."""
    results, verdicts = Results(folder), []
    for done, (number, statement) in enumerate(_numbered(statements)):
        name = f"{statement.document}.{number:02d}"
        progress(done / len(statements), f"statement {name}")
        verdicts.append(_verdict(name, statement, results))
    return ClaimTable(tuple(verdicts))


def _numbered(statements: Sequence[Statement]) -> list[tuple[int, Statement]]:
    counts: dict[str, int] = {}
    found = []
    for statement in statements:
        counts[statement.document] = counts.get(statement.document, 0) + 1
        found.append((counts[statement.document], statement))
    return found


def _verdict(name: str, statement: Statement, results: Results) -> Verdict:
    s, results.used = statement, []
    ours, machine, record, stale, because = None, "-", "-", "", s.because
    verdict = NOT_HERE
    if s.ours is not None:
        assert s.theirs is not None
        record = s.ours.origin
        try:
            ours = s.ours.work_out(results)
        except (TilewrightError, KeyError, TypeError) as error:
            because = f"its record is not there ({error})"
        else:
            verdict = HOLDS if s.rule.holds(ours, s.theirs) else DIFFERS
            origins = [used["provenance"] for used in results.used]
            where = dict.fromkeys(str(o.get("gpu") or f"NVRTC {o['nvrtc']}, {o['arch']}") for o in origins)
            machine = ", ".join(where) or "calculated"
            stale = results.stale(results.used)
    return Verdict(
        name, s.document, s.quote, s.theirs, s.unit, ours, machine, record, verdict,
        s.rule.words if s.ours is not None else "", because if verdict != HOLDS else "", s.note, stale,
    )  # fmt: skip
