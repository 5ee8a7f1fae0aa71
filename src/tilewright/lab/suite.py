"""Suites: benchmark cases as data (benchmarks/*.json), run on a GPU into records.

Also a command for machines without the command line's packages: python -m tilewright.lab.suite SUITE --out DIR
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import TilewrightError
from ..gpus import find_gpu
from .fingerprint import case_hash, stamp, suite_hash, why_stale
from .kinds import KINDS, SECONDS, Run
from .ladder import Progress, silent
from .record import read_records, went_wrong, who, write_json

PACKAGED = Path(__file__).parents[1] / "benchmarks"
"""The suites and records that an installed wheel brings."""
_CHECKOUT = Path(__file__).parents[3] / "benchmarks"


def benchmarks() -> Path:
    """The folder of suites and records: benchmarks/ below the working folder, else the package's own."""
    here = Path("benchmarks")
    return next((folder for folder in (here, PACKAGED, _CHECKOUT) if any(folder.glob("*.json"))), here)


def suites() -> dict[str, Path]:
    """The suites that are known by name."""
    return {path.stem: path for path in sorted(benchmarks().glob("*.json"))}


def find_suite(name: str) -> Path:
    """The file of a suite by its name in benchmarks/, or by its path. Raises TilewrightError with the names there."""
    known = suites()
    if name in known:
        return known[name]
    if Path(name).is_file():
        return Path(name)
    close = difflib.get_close_matches(name, known, 1)
    raise TilewrightError(
        f"there is no suite {name!r}.{f' Did you mean {close[0]!r}?' if close else ''} Known by name: "
        f"{', '.join(known) or 'none'}. Or give a suite's file."
    )


def read_suite(path: Path) -> dict[str, Any]:
    """{"name", "kind", "cases"} of a suite's file. Raises TilewrightError naming what is wrong with it."""
    try:
        suite = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{path} cannot be read as a suite: {error}") from error
    if not isinstance(suite, dict) or not {"name", "kind", "cases"} <= suite.keys() or suite["kind"] not in KINDS:
        raise TilewrightError(f'{path} is not a suite: it needs "name", "cases", and a "kind" of {", ".join(KINDS)}.')
    if missing := [key for key in KINDS[suite["kind"]].needs if key not in suite]:
        names = ", ".join(f'"{key}"' for key in missing)
        raise TilewrightError(f"{path} is not a suite: one of kind {suite['kind']} needs {names} too.")
    if not re.fullmatch(r"[\w.-]+", suite["name"]):
        raise TilewrightError(f"{path}: the name {suite['name']!r} is not a file name.")
    return suite


def missing_cases(suite: dict[str, Any], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases without records, or with one that no longer holds. A record that does not name its case has none."""
    if KINDS[suite["kind"]].whole:
        holds = bool(records) and not any(why_stale(record, suite) for record in records)
        return [] if holds else list(suite["cases"])
    found = {record["provenance"].get("case") for record in records}
    stale = {record["provenance"].get("case") for record in records if why_stale(record, suite)}
    return [case for case in suite["cases"] if (name := case_hash(suite, case)) not in found or name in stale]


def _earlier(path: Path, name: str) -> list[dict[str, Any]]:
    """The records of an earlier run that was stopped, of the last one in the same folder, or of those that ship."""
    places = (path.with_name(f"{path.name}.part"), path, benchmarks() / "results" / path.name)
    found = next((read_records(place) for place in places if place.is_file()), [])
    return [record for record in found if record["suite"] == name]


def run_suite(
    suite: dict[str, Any], out: Path, seconds: float = SECONDS, say: Progress = silent, keep: bool = False
) -> tuple[Path, list[dict[str, Any]]]:
    """Run a suite on GPU 0 and write its records to `out`. DeviceError without a GPU, where its kind needs one.

    The records of each case are written when it is done, to a file that ends in .part and gets the suite's name at the
    end: a run that is stopped loses one case, and leaves the file of an earlier run as it was. keep: run only the
    missing_cases of an earlier run, stopped or whole, and keep the records of the others, and the figures of peers that
    are not installed now.
    """
    kind, start = KINDS[suite["kind"]], time.perf_counter()
    if kind.needs_gpu:
        from ..jit.device import device, need_gpu

        need_gpu(
            f"suite {suite['name']} is measured",
            f"The records that come with tilewright: tilewright report {suite['name']}",
        )
        gpu = device(0).gpu
    else:
        gpu = find_gpu(suite["gpu"])
    path = out / f"{suite['name']}-{gpu.name.replace(' ', '-')}.json"
    part = path.with_name(f"{path.name}.part")
    earlier = _earlier(path, suite["name"]) if keep else []
    cases = missing_cases(suite, earlier)
    if not cases:
        return path, earlier
    kept_cases = {case_hash(suite, case) for case in suite["cases"] if case not in cases}
    kept = [record for record in earlier if record["provenance"].get("case") in kept_cases]
    before = kept[0]["provenance"]["run_seconds"] if kept else 0.0
    if kind.kernels is not None:
        from .precompile import compile_together

        say(None, "compiling")
        compile_together(kind.kernels(suite | {"cases": cases}, gpu))
    made: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    for run in [cases] if kind.whole else [[case] for case in cases]:
        new = kind.make(suite | {"cases": run}, Run(gpu, seconds, _after(len(made), say)))
        made += stamp(new, suite, 0.0, None if kind.whole else run[0])
        spent = round(before + time.perf_counter() - start, 1)
        records = _in_order(suite, [*kept, *_or_earlier(made, earlier)], spent)
        write_json(part, records)
    os.replace(part, path)
    return path, records


def _or_earlier(records: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records; in the place of a peer that is missing now its earlier one, if that has figures."""

    def who(record: dict[str, Any]) -> str:
        case = {key: value for key, value in record["case"].items() if key not in ("config", "config_text", "version")}
        return json.dumps(case, sort_keys=True)

    figures = {who(record): record for record in earlier if record["result"].get("right")}
    return [figures.get(who(each), each) if each["result"].get("right", False) is None else each for each in records]


def _in_order(suite: dict[str, Any], records: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Records in the order of their suite's cases, with what all of them took and the suite as it is now."""
    order = {case_hash(suite, case): number for number, case in enumerate(suite["cases"])}
    ordered = sorted(records, key=lambda record: order.get(record["provenance"].get("case"), 0))
    now = {"suite": suite_hash(suite), "run_seconds": seconds}
    return [record | {"provenance": record["provenance"] | now} for record in ordered]


def _after(done: int, say: Progress) -> Progress:
    """`say`, told of steps that follow the first `done`."""
    return lambda step, text: say(None if step is None else done + step, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run benchmark suites on a GPU and write their records.")
    parser.add_argument("suite", nargs="+", help="names of suites in benchmarks/, or files")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the records")
    parser.add_argument("--missing", action="store_true", help="only the cases that records lack or that are stale")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="measured time per case")
    given = parser.parse_args(arguments)
    wrong = 0
    for name in given.suite:
        try:
            written, records = run_suite(
                read_suite(find_suite(name)), given.out, given.seconds,
                lambda _, text: print(f"  {text}", file=sys.stderr, flush=True), given.missing,
            )  # fmt: skip
        except TilewrightError as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
        for record in records:
            case, result = record["case"], record["result"]
            figures = {k: round(v, 4) for k, v in result.items() if isinstance(v, float)}
            print(who(record), case.get("config_text", ""), case.get("m"), case.get("layout"), figures, flush=True)
            if result.get("right", False) is not True:
                print(f"  {result.get('reason')}", flush=True)
            wrong += went_wrong(record)
        print(f"{len(records)} records in {written}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
