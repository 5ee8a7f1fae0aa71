"""Commands about the installation and its records: doctor, cache, bench, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Progress, console, note
from .options import Json

cache_app = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")


def doctor(json_file: Json = None) -> None:
    """Say what was found here, what is missing, and how to get it."""
    from dataclasses import asdict

    from rich.table import Table
    from rich.text import Text

    from ..lab.doctor import examine
    from ..lab.record import json_result

    with json_result(json_file) as write:
        findings = examine()
        table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
        for finding in findings:
            mark = Text("yes", "green") if finding.found else Text("no", "red" if finding.required else "yellow")
            detail = Text("\n".join(filter(None, (finding.detail, finding.advice))), overflow="fold")
            table.add_row(mark, finding.name, detail)
        console().print(table)
        write([asdict(finding) for finding in findings])
    if any(not finding.found and finding.required for finding in findings):
        raise typer.Exit(1)


@cache_app.command("info", epilog="Example:  tilewright cache info")
def cache_info(json_file: Json = None) -> None:
    """Say where the cache is, how many kernels it holds, how large it is and may become."""
    from ..jit import limits
    from ..jit.compile import kernel_cache
    from ..lab.record import json_result

    with json_result(json_file) as write:
        cache = kernel_cache()
        kernels, size, most = len(cache.keys()), cache.size(), limits.cache_bytes()
        print(f"{cache.folder}: {kernels} kernels, {size / 1e6:.1f} MB of at most {most / 1e6:.0f} MB")
        write({"folder": str(cache.folder), "kernels": kernels, "bytes": size, "most_bytes": most})


@cache_app.command("clear", epilog="Example:  tilewright cache clear")
def cache_clear() -> None:
    """Remove every compiled kernel."""
    from ..jit.compile import kernel_cache

    print(f"{kernel_cache().clear()} kernels removed")


@cache_app.command("export", epilog="Example:  tilewright cache export kernels.zip")
def cache_export(archive: Annotated[Path, typer.Argument(help="The zip file to write.")]) -> None:
    """Write all compiled kernels to an archive."""
    from ..jit.compile import kernel_cache

    print(f"{kernel_cache().export(archive)} kernels in {archive}")


@cache_app.command("import", epilog="Example:  tilewright cache import kernels.zip")
def cache_import(archive: Annotated[Path, typer.Argument(help="A file that `cache export` wrote.")]) -> None:
    """Take over the kernels of an archive. They are machine code: import only what you trust."""
    from ..jit.compile import kernel_cache

    print(f"{kernel_cache().load_archive(archive)} kernels taken over from {archive}")


def bench(
    suite: Annotated[list[str], typer.Argument(help="Names of suites in benchmarks/, or files.")],
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("benchmarks/results"),
    seconds: Annotated[float, typer.Option(help="Measured time a case.", min=0.01)] = 1.0,
) -> None:
    """Run benchmark suites on a GPU and write their records."""
    from ..lab.record import went_wrong
    from ..lab.suite import find_suite, read_suite, run_suite

    wrong = 0
    for description in [read_suite(find_suite(name)) for name in suite]:
        with Progress(None) as progress:
            written, records = run_suite(description, out, seconds, progress.show)
        wrong += sum(map(went_wrong, records))
        print(f"{len(records)} records in {written}")
    if wrong:
        note(f"{wrong} results are wrong; see the records' reasons")
        raise typer.Exit(1)


def report(
    write: Annotated[
        bool, typer.Option("--write/--check", help="Make the tables of README.md and docs/*.md anew, or only compare.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds README.md, docs and benchmarks/results.")] = Path("."),
    json_file: Json = None,
) -> None:
    """Compare the tables in README and docs with the records, or make them anew with --write."""
    from ..lab.record import json_result, write_text
    from ..report.tables import fill, pages_of

    with json_result(json_file) as result:
        pages = pages_of(root)
        made = {page: fill(page.read_text(encoding="utf-8"), root / "benchmarks" / "results") for page in pages}
        stale = [page for page, text in made.items() if text != page.read_text(encoding="utf-8")]
        shown = ", ".join(map(str, stale))
        if write:
            for page in stale:
                write_text(page, made[page])
        result({"pages": list(map(str, pages)), "out_of_date": list(map(str, stale)), "written": write})
        if write:
            print(f"written: {shown}" if stale else "nothing to write: all tables agree with the records")
        elif stale:
            note(f"out of date: {shown}. Run: tilewright report --write")
            raise typer.Exit(1)
        else:
            print(f"all tables in {len(pages)} pages agree with the records")
