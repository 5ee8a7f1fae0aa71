"""Commands that measure, and that show what was measured: bench, report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidOperand
from .climb import in_minutes
from .complete import known_rungs, known_suites
from .console import Progress, console, note, say, show
from .exercise import sizes_of
from .grids import show_result
from .options import Json

if TYPE_CHECKING:
    from ..lab.stale import Stale


def bench(
    suite: Annotated[
        list[str] | None, typer.Argument(help="Names of suites in benchmarks/, or files.", autocompletion=known_suites)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("benchmarks/results"),
    seconds: Annotated[
        float | None, typer.Option(help="Measured time per case; without it 0.4.", min=0.01, show_default=False)
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="List the suites whose records no longer match kernels and suite.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="With --stale: measure their cases that are stale or missing.")
    ] = False,
    entry: Annotated[str | None, typer.Option(help="With a .cu file: the kernel, where it has several.")] = None,
    against: Annotated[
        str | None,
        typer.Option(help="With a .cu file: a rung (f09) or cublas, in pairs with it.", autocompletion=known_rungs),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With a .cu file: a size instead of its `let` line, n=4096.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run benchmark suites on a GPU and write their records; or judge and time your own .cu file."""
    from ..lab.kinds import SECONDS
    from ..lab.record import json_result
    from ..lab.suite import benchmarks, find_suite, read_suite, suites

    if json_file not in (None, "-") and Path(json_file).resolve().parent in (
        out.resolve(),
        (benchmarks() / "results").resolve(),
    ):
        raise InvalidOperand(
            f"--json {json_file} lies in the folder of the records, which it could replace: it holds what was run, not "
            "the records. Name another folder, or - for standard output."
        )
    names, seconds = suite or [], seconds or SECONDS
    own = [name for name in names if name.endswith(".cu")]
    if own and (len(names) > 1 or stale or run):
        raise InvalidOperand(f"{own[0]} is timed by itself: omit suites, other files, --stale and --run.")
    if not own and (against is not None or set_ or entry is not None):
        raise InvalidOperand(
            "--entry, --against and --set are for a .cu file of your own, which `tilewright new` writes."
        )
    if own:
        _time_own(own[0], entry, set_, against, seconds, json_file)
        return
    if run and not stale:
        raise InvalidOperand("--run measures what --stale lists: give both, or name suites.")
    if not names and not stale:
        raise InvalidOperand(f"name a suite, or give --stale. Suites: {', '.join(suites())}.")
    with json_result(json_file, names) as write:
        if stale:
            found = _stale(out if out.is_dir() else benchmarks() / "results", names)
            if not run:
                write([asdict(entry) | {"file": str(entry.file) if entry.file else None} for entry in found])
                return
            names = list(dict.fromkeys(entry.suite for entry in found if entry.measurable))
        written = _measure([read_suite(find_suite(name)) for name in names], out, seconds, keep=stale)
        write(written)
    if any(entry["wrong"] for entry in written):
        note(f"{sum(entry['wrong'] for entry in written)} results are wrong; see the records' reasons")
        raise typer.Exit(1)


def _time_own(
    file: str, entry: str | None, sizes: list[str] | None, against: str | None, seconds: float, json_file: str | None
) -> None:
    """Judge and time one kernel file, and print its times."""
    from ..lab.own_timing import time_own
    from ..lab.record import json_result

    with json_result(json_file, [file]) as write:
        found = time_own(file, entry=entry, sizes=sizes_of(sizes), against=against, seconds=seconds)
        show_result(found)
        write(found.to_dict())


def _measure(suites: list[dict[str, Any]], out: Path, seconds: float, keep: bool) -> list[dict[str, Any]]:
    """Run suites and print where their records are; a suite that cannot run is named, and the others go on."""
    from ..errors import MissingDependency
    from ..lab.record import went_wrong
    from ..lab.stale import why_stale
    from ..lab.suite import run_suite

    told = []
    for description in suites:
        try:
            with Progress(None) as progress:
                written, records = run_suite(description, out, seconds, progress.show, keep)
        except MissingDependency as error:
            if len(suites) == 1:
                raise
            note(f"{description['name']}: {error}")
            continue
        say(f"{len(records)} records in {written}")
        if left := sum(1 for record in records if keep and why_stale(record, description)):
            say(f"{left} of them are of an earlier run: the peers that they measure are not installed here")
        wrong = sum(map(went_wrong, records))
        told.append({"suite": description["name"], "file": str(written), "records": len(records), "wrong": wrong})
    return told


def _stale(results: Path, names: list[str]) -> list[Stale]:
    """Print the suites whose records do not hold, of those named or of all; the same as data."""
    from ..lab.stale import find_stale
    from ..report.terminal import tables

    found = [entry for entry in find_stale(results) if not names or entry.suite in names]
    columns = ("suite", "records", "stale", "about s", "why")
    rows = [(e.name, str(e.records), str(e.stale), f"{e.seconds:.0f}" if e.measurable else "-", e.why) for e in found]
    if not found:
        say(f"all records in {results} match the kernels and suites that are here")
        return found
    show(f"Records in {results}:", tables(columns, rows, console().width))
    total = sum(entry.seconds for entry in found if entry.measurable and entry.needs_gpu)
    say(f"about {in_minutes(total)} of a GPU: by the recorded runs where they say how long they took, else a guess")
    return found


def report(
    suite: Annotated[
        list[str] | None, typer.Argument(help="Print the records of these suites instead.", autocompletion=known_suites)
    ] = None,
    write: Annotated[
        bool, typer.Option("--write/--check", help="Make the tables of README.md and docs/*.md anew, or only compare.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds README.md, docs and benchmarks/results.")] = Path("."),
    json_file: Json = None,
) -> None:
    """Compare the tables in README and docs with the records, or make them anew with --write; or print records."""
    from ..lab.record import json_result
    from ..report.regions import pages_of

    if suite and (write or root != Path(".")):
        raise InvalidOperand("a suite's records are printed: omit --write and --root, which are of the pages' tables.")
    with json_result(json_file, () if suite else pages_of(root)) as result:
        if suite:
            result(_print_records(suite))
            return
        told = _report(root, write)
        result(told)
        shown = ", ".join(told["out_of_date"])
        if write:
            say(f"written: {shown}" if shown else "nothing to write: all tables agree with the records")
        elif shown:
            note(f"out of date: {shown}. Run: tilewright report --write")
            raise typer.Exit(1)
        else:
            say(f"all tables in {len(told['pages'])} pages agree with the records")


def _report(root: Path, write: bool) -> dict[str, Any]:
    """Compare the pages below a folder with the records, and write them where asked."""
    from ..lab.record import write_text
    from ..report import traces
    from ..report.regions import fill, pages_of

    pages = pages_of(root)
    made = {page: fill(page.read_text(encoding="utf-8"), root / "benchmarks" / "results") for page in pages}
    changed = [page for page, text in made.items() if text != page.read_text(encoding="utf-8")]
    if write:
        for page in changed:
            write_text(page, made[page])
    if (root / "docs").is_dir():
        changed += _pictures(root, write)
    if (root / "src").is_dir() and (old := traces.outdated()):
        changed.append(traces.SHIPPED)
        if write:
            traces.write(old, note)
    return {"pages": list(map(str, pages)), "out_of_date": list(map(str, changed)), "written": write}


def _pictures(root: Path, write: bool) -> list[Path]:
    """The pictures of docs whose records have changed; where node is there, all are drawn anew to write those."""
    from ..lab.record import write_text
    from ..report import pictures

    folder, charts = root / "docs" / "pictures", pictures.pictures(root / "benchmarks" / "results")
    old = [folder / name for name, chart in charts.items() if not pictures.shows(folder / name, chart)]
    if not write:
        return old
    if why := pictures.why_not_drawn(root):
        if old:
            note(f"{', '.join(file.name for file in old)} stay as they were: {why}")
        return []
    drawn = {folder / name: text for name, text in pictures.draw(root, charts).items()}
    changed = [file for file, text in drawn.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    folder.mkdir(exist_ok=True)
    for file in changed:
        write_text(file, drawn[file])
    return changed


def _print_records(names: list[str]) -> list[dict[str, Any]]:
    """Print the newest records of suites as tables; the records."""
    from ..errors import TilewrightError, did_you_mean
    from ..lab.record import find_records, of_boards
    from ..lab.suite import benchmarks
    from ..report.tables import PAGES, days, terminal_tables

    told = []
    for name in names:
        records = find_records(benchmarks() / "results", name)
        if not records:
            known = dict.fromkeys(suite for suite, _ in of_boards(benchmarks() / "results"))
            near = did_you_mean(name, known) or f" Suites: {', '.join(known)}."
            raise TilewrightError(f"there are no records of {name!r} in {benchmarks() / 'results'}.{near}")
        columns = PAGES.get(name)
        if columns is None:
            raise TilewrightError(
                f"no table is defined for {name!r}. --json writes its records. Tables: {', '.join(PAGES)}."
            )
        gpu = records[0]["provenance"].get("gpu")
        title = f"{name}, {f'on {gpu}, ' if gpu else ''}{days(records)}"
        show(title, terminal_tables(columns, records, console().width))
        told += records
    return told
