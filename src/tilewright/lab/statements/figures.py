"""Figures of ours that statements are held against: out of records, or calculated; each knows where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import TilewrightError
from ..fingerprint import why_stale
from ..record import find_records, who
from ..suite import read_suite

Record = dict[str, Any]


@dataclass
class Results:
    """The records of a folder, read once, and those that were asked for."""

    folder: Path
    used: list[Record] = field(default_factory=list)
    _suites: dict[str, list[Record]] = field(default_factory=dict)

    def find(self, suite: str, rung: str, **case: Any) -> Record:
        """The one record of a suite whose subject is a rung or a peer and whose case has these values.

        Raises TilewrightError when there is none, or more than one.
        """
        if suite not in self._suites:
            self._suites[suite] = find_records(self.folder, suite)
        held = [r for r in self._suites[suite] if all(r["case"].get(name) == value for name, value in case.items())]
        found = [r for r in held if who(r) == rung] or [r for r in held if who(r).split("_")[0] == rung]
        if len(found) != 1:
            asked = ", ".join([rung, *(f"{name}={value}" for name, value in case.items())])
            raise TilewrightError(f"{self.folder.name} has {len(found)} records of suite {suite} for {asked}.")
        self.used.append(found[0])
        return found[0]

    def stale(self, records: Iterable[Record]) -> str:
        """Why figures of these records may no longer hold; "" where they do."""
        reasons = [why_stale(record, _definition(self.folder.parent, record["suite"])) for record in records]
        return next(filter(None, reasons), "")


@lru_cache(maxsize=64)
def _definition(folder: Path, suite: str) -> dict[str, Any] | None:
    path = folder / f"{suite}.json"
    return read_suite(path) if path.is_file() else None


@dataclass(frozen=True)
class Figure:
    """A number, worked out of records, or of nothing but a calculation. `origin` says how, in words."""

    work_out: Callable[[Results], float]
    origin: str

    def __sub__(self, other: Figure) -> Figure:
        return Figure(lambda r: self.work_out(r) - other.work_out(r), f"{self.origin} - {other.origin}")

    def __truediv__(self, other: Figure | float) -> Figure:
        if isinstance(other, Figure):
            return Figure(lambda r: self.work_out(r) / other.work_out(r), f"{self.origin} / {other.origin}")
        return Figure(lambda r: self.work_out(r) / other, f"{self.origin} / {other:g}")

    def __rmul__(self, factor: float) -> Figure:
        return Figure(lambda r: factor * self.work_out(r), self.origin)


def of(suite: str, rung: str, name: str, **case: Any) -> Figure:
    """A figure of a record; `name` may reach into it: "stalls/barrier"."""

    def work_out(results: Results) -> float:
        value: Any = results.find(suite, rung, **case)["result"]
        for part in name.split("/"):
            value = value[int(part) if isinstance(value, list) else part]
        return float(value)

    told = "".join(f" {value}" if key == "config_text" else f" {key} {value}" for key, value in case.items())
    return Figure(work_out, f"{suite} {rung}{told} {name}")


def best_of_sweep(tile: str) -> Figure:
    """The best share of cuBLAS's speed of f12's configs with a tile, 4096 cubed NN."""

    def work_out(results: Results) -> float:
        record = results.find("fp32-f12-sweep", "f12", m=4096, n=4096, k=4096, layout="nn")
        configs = record["result"]["configs"]
        return max(float(c["ratio_to_cublas"]) for c in configs if c["config_text"].startswith(f"{tile} "))

    return Figure(work_out, f"fp32-f12-sweep, best {tile}")


def percent(share: Figure) -> Figure:
    """A share as so many percent."""
    return Figure(lambda r: 100 * share.work_out(r), share.origin)


def change(before: Figure, after: Figure) -> Figure:
    """Return by how many percent a figure rises."""
    origin = f"{before.origin} -> {after.origin}"
    return Figure(lambda r: 100 * (after.work_out(r) / before.work_out(r) - 1), origin)


def calculated(value: Callable[[], float], how: str) -> Figure:
    """A figure that the lab calculates from nothing but its data."""
    return Figure(lambda results: float(value()), f"calculated: {how}")


# --- what a statement says of its figure ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """When our figure agrees with theirs. `words` completes "holds where ours is ..."."""

    holds: Callable[[float, float], bool]
    words: str


def about(tolerance: float = 0.1) -> Rule:
    """Within a share of theirs."""
    return Rule(lambda ours, theirs: abs(ours - theirs) <= tolerance * abs(theirs), f"within {tolerance:.0%} of theirs")


ABOUT = about()


def within(points: float) -> Rule:
    """Within so many units of theirs."""
    return Rule(lambda ours, theirs: abs(ours - theirs) <= points, f"within {points:g} of theirs")


ALIKE = Rule(
    lambda ours, theirs: ours * theirs > 0 and 0.5 <= ours / theirs <= 2, "of the same sign, from half to twice theirs"
)
SAME_WAY = Rule(lambda ours, theirs: ours * theirs > 0, "of the same sign")
AT_LEAST = Rule(lambda ours, theirs: ours >= theirs, "at least theirs")
AT_MOST = Rule(lambda ours, theirs: ours <= theirs, "at most theirs")
EQUAL = Rule(lambda ours, theirs: abs(ours - theirs) < 1e-9, "the same")
