"""From a peer to a record: who among its candidates is right, who of these is fastest, and how it does in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ConfigRejected, DeviceError, MissingDependency
from ...jit.timing import Start
from ..check import CheckResult
from ..ground import Ground
from ..ladder import verdict_dict
from .entrant import ROWS, Contender, Entrant, Peer, judge, race

FINALISTS = 5
"""Of more candidates, so many are compared in pairs."""
ROUNDS = 9


@dataclass(frozen=True)
class Field:
    """A peer's candidates after the race: `best`, in its order; who was refused, and why."""

    version: str
    best: tuple[Entrant, ...]
    entered: int
    refused: dict[str, str]


def _tried(candidate: Entrant, ground: Ground, rows: int | None) -> CheckResult:
    """Its verdict. What a library raises is a refusal; a lost GPU is not."""
    try:
        return judge(candidate, ground, rows)
    except DeviceError:
        raise
    except Exception as error:  # whatever another's library means by it
        return CheckResult(False, float("inf"), 0.0, f"{type(error).__name__}: {error}")


def hold_race(entry: Contender, ground: Ground) -> Field:
    """Judge all and race those that are right. A lone candidate is neither judged nor raced here."""
    candidates = entry.candidates
    if len(candidates) == 1:
        return Field(entry.version, tuple(candidates), 1, {})
    verdicts = [_tried(candidate, ground, ROWS) for candidate in candidates]
    refused = {c.text: v.reason for c, v in zip(candidates, verdicts, strict=True) if not v.ok}
    right = [c for c, v in zip(candidates, verdicts, strict=True) if v.ok]
    if len(right) > 1:
        times = race(right, ground, ROUNDS)
        right = [right[index] for index in sorted(range(len(right)), key=times.__getitem__)]
    return Field(entry.version, tuple(right[:FINALISTS]), len(candidates), refused)


def launches_of(candidate: Entrant, ground: Ground) -> list[Start]:
    """One launch a buffer set."""
    return [candidate.prepare(buffers) for buffers in ground.sets]


def settled(field: Field, ground: Ground, seconds: float) -> Entrant:
    """The finalist that does best in short pairs with cuBLAS; without cuBLAS, the race's first."""
    if len(field.best) == 1 or ground.references is None:
        return field.best[0]
    return max(field.best, key=lambda each: float(ground.timed(launches_of(each, ground), seconds / 4)["ratio"]))


def peer_record(peer: Peer, ground: Ground, suite: str, seconds: float, origin: dict[str, Any]) -> dict[str, Any]:
    """A record of a peer's best candidate. Where it is not there or cannot: "right" is None, and "reason" says why."""
    problem = ground.problem

    def record(candidate: Entrant | None, version: str, result: dict[str, Any]) -> dict[str, Any]:
        case = {
            "peer": peer.id, "version": version, "config": candidate.config if candidate else {},
            "config_text": candidate.text if candidate else "", "m": problem.m, "n": problem.n, "k": problem.k,
            "dtype": problem.dtype, "out_dtype": problem.out_dtype, "layout": problem.layout,
        }  # fmt: skip
        return {"suite": suite, "case": case, "result": result, "provenance": origin}

    try:
        field = hold_race(peer.enter(ground), ground)
    except (MissingDependency, ConfigRejected) as error:
        return record(None, "", {"right": None, "reason": str(error)})
    counts = {"candidates": field.entered, "refused": field.refused}
    if not field.best:
        text, reason = next(iter(field.refused.items()))
        return record(None, field.version, {"right": False, "reason": f"{text}: {reason}", **counts})
    best = settled(field, ground, seconds)
    verdict = _tried(best, ground, None)
    result = verdict_dict(verdict) | best.facts | counts
    if verdict.ok:
        result |= ground.timed(launches_of(best, ground), seconds)
    return record(best, field.version, result)
