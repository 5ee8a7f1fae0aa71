"""The records that no longer match what would be measured now, and about how long measuring them again takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fingerprint import NO_SUITE, case_hash, why_stale
from .kinds import KINDS
from .record import HOME, of_boards
from .suite import missing_cases, read_suite, suites

NEVER = "never measured"


@dataclass(frozen=True)
class Stale:
    """A suite whose records do not all hold: how many of them, why, and about how many seconds their cases take."""

    suite: str
    file: Path | None
    records: int
    stale: int
    why: str
    seconds: float
    known: bool
    """Whether `seconds` is from the time that the recorded run took; else it is an estimate by the suite's kind."""
    needs_gpu: bool = True
    gpu: str = ""
    """What the records were measured on; "" where there are none, or no GPU was needed."""

    @property
    def name(self) -> str:
        """Return the suite, and the GPU where it is not the one of the tables."""
        return self.suite if HOME in self.gpu or not self.gpu else f"{self.suite} on {self.gpu.removeprefix('NVIDIA ')}"

    @property
    def measurable(self) -> bool:
        """Return whether a suite makes these records."""
        return self.why != NO_SUITE


def _seconds(suite: dict[str, Any] | None, records: list[dict[str, Any]]) -> tuple[float, bool]:
    """(seconds of what is to be measured again, whether by the time that a run took)."""
    if suite is None:
        return 0.0, False
    kind, again = KINDS[suite["kind"]], missing_cases(suite, records)
    if records and "run_seconds" in records[0]["provenance"]:
        measured = len({record["provenance"].get("case") for record in records} - {None}) or len(suite["cases"])
        return float(records[0]["provenance"]["run_seconds"]) * len(again) / measured, True
    parts = kind.parts(suite) if kind.parts is not None else max(len(records), len(suite["cases"]))
    return kind.record_s * parts, False


def _never(suite: dict[str, Any], records: list[dict[str, Any]]) -> int:
    """Return how many cases have no record, where records say their case."""
    found = {record["provenance"].get("case") for record in records} - {None}
    return sum(case_hash(suite, case) not in found for case in suite["cases"]) if found else 0


def find_stale(results: Path) -> list[Stale]:
    """The suites whose records in a folder do not hold, those never measured, and records that no suite makes.

    Each GPU's records are judged by themselves. A second table in a suite's own file (tune-heldout-shapes) is as stale
    as the first, and not named.
    """
    measured = of_boards(results)
    known = {name: read_suite(path) for name, path in suites().items()}
    made = {path for (name, _), (path, _) in measured.items() if name in known}
    keys = {key for key, (path, _) in measured.items() if key[0] in known or path not in made}
    never = {(name, "") for name in known.keys() - {name for name, _ in measured}}
    found = []
    for name, gpu in sorted(keys | never):
        suite = known.get(name)
        path, records = measured.get((name, gpu), (None, []))
        reasons = Counter(filter(None, (why_stale(record, suite) for record in records)))
        if not records:
            reasons = Counter({NEVER: 1})
        elif suite is not None and (missing := _never(suite, records)):
            reasons[f"{missing} of {len(suite['cases'])} cases {NEVER}"] = 1
        if reasons:
            seconds, taken = _seconds(suite, records)
            why = ", ".join(reasons)
            needs_gpu = suite is None or KINDS[suite["kind"]].needs_gpu
            stale = sum(bool(why_stale(record, suite)) for record in records)
            found.append(Stale(name, path, len(records), stale, why, seconds, taken, needs_gpu, gpu))
    return found
