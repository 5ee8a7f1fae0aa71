"""One emulated launch as SARIF and as JUnit, so that a CI shows what was found at its line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .. import __version__
from ..emu.hazards import KINDS, Hazard
from ..lab.exercise import Cost

WRONG = "wrong_result"
COSTS = {
    "sectors": "The lanes of a warp touch more sectors of 32 bytes than hold the bytes that they ask for.",
    "wavefronts": "Lanes meet in banks of shared memory: an access takes more wavefronts than it needs.",
}


def sarif(file: Path, hazards: Sequence[Hazard], wrong: Sequence[str], costs: Sequence[Cost] = ()) -> str:
    """A SARIF 2.1.0 log with one result for each hazard and for each reference that does not hold, and a note for what
    a line asks for beyond its need."""
    rules = {hazard.kind: KINDS[hazard.kind] for hazard in hazards} | (
        {WRONG: "The result is not the reference's."} if wrong else {}
    )
    rules |= {cost.unit: COSTS[cost.unit] for cost in costs}
    results = [_of(hazard, file) for hazard in hazards]
    results += [_result(WRONG, text, str(file), None, "error") for text in wrong]
    results += [_result(cost.unit, cost.words, cost.file or str(file), cost.line, "note") for cost in costs]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tilewright",
                        "version": __version__,
                        "rules": [{"id": kind, "help": {"text": text}} for kind, text in rules.items()],
                    }
                },
                "results": results,
            }
        ],
    }
    return json.dumps(log, indent=1) + "\n"


def _of(hazard: Hazard, file: Path) -> dict[str, Any]:
    """A hazard as a result; one that a comment allows is suppressed, with the reason."""
    level = "note" if hazard.allowed else hazard.level
    found = _result(hazard.kind, str(hazard), hazard.file or str(file), hazard.line if hazard.file else None, level)
    if hazard.allowed:
        found["suppressions"] = [{"kind": "inSource", "justification": hazard.allowed}]
    return found


def _result(rule: str, text: str, file: str, line: int | None, level: str) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": Path(file).as_posix()}}
    if line is not None:
        place["region"] = {"startLine": line}
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }


def junit(file: Path, entry: str, hazards: Sequence[Hazard], wrong: Sequence[str], seconds: float) -> str:
    """A JUnit report with one test case: the kernel."""
    said = [(h.kind, h.message, str(h)) for h in hazards] + [(WRONG, text, text) for text in wrong]
    return junit_of(file, entry, said, seconds)


def junit_of(file: Path, entry: str, said: Sequence[tuple[str, str, str]], seconds: float) -> str:
    """A JUnit report with one test case, the kernel, and its failures: kind, message and text of each."""
    count = len(said)
    suite = ElementTree.Element(
        "testsuite",
        name="tilewright",
        tests="1",
        failures=str(min(count, 1)),
        errors="0",
        time=f"{seconds:.3f}",
    )
    case = ElementTree.SubElement(suite, "testcase", classname=str(file), name=entry, time=f"{seconds:.3f}")
    for kind, message, text in said:
        failure = ElementTree.SubElement(case, "failure", type=kind, message=_printable(message))
        failure.text = _printable(text)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Without the characters that XML does not have."""
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff") else "?" for c in text)
