"""`tilewright new` writes a kernel to start from; `tilewright check` runs one as its comments say, and scores it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidOperand, in_shell
from ..gpus import DEFAULT_GPU
from .complete import gpu_option, known_starters
from .console import Progress, say
from .grids import show_result
from .options import Json
from .watch import run_on_changes

NEW_EXAMPLE = "Examples:\n\n  tilewright new mine.cu\n\n  tilewright new product.cu --kind matmul"
CHECK_EXAMPLE = (
    "Examples:\n\n  tilewright check mine.cu\n\n  tilewright check mine.cu --set n=256 --json -\n\n"
    "  tilewright check mine.cu --watch\n\n  tilewright check mine.cu --sarif mine.sarif --junit mine.xml\n\n"
    "Exit status: 0 for a kernel that is right and scores what its file asks for, 1 for one that is not, 2 for a file "
    "that does not say what to run."
)


def new(
    file: Annotated[Path, typer.Argument(help="The file to write: mine.cu.")],
    kind: Annotated[
        str,
        typer.Option(
            help="transpose, matmul, sum; or a lesson's exercise: axpy, copy, shared, tiles, banks, shuffle, pipeline, "
            "fragments, swizzle, softmax, transaction, proxy.",
            autocompletion=known_starters,
        ),
    ] = "transpose",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json_file: Json = None,
) -> None:
    """Write a kernel to start from, with what it must compute in its comments."""
    from ..lab.record import json_result
    from ..lab.starters import new_kernel

    with json_result(json_file, [file]) as write:
        made = new_kernel(file, kind, force=force)
        say(f"{made}: the exercise {kind!r}, to be improved. Next: tilewright check {in_shell(made)}")
        write({"file": str(made), "kind": kind})


def sizes_of(texts: list[str] | None) -> dict[str, int]:
    """The sizes that --set names: n=256. Raises InvalidOperand."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip().isascii() or not value.strip().isdigit():
            raise InvalidOperand(f"--set {text!r} is not NAME=NUMBER, such as n=256.")
        found[name.strip()] = int(value)
    return found


def check(
    file: Annotated[Path, typer.Argument(help="A .cu file with // check: lines (tilewright new writes one).")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="A size instead of its `let` line: n=256.")] = None,
    gpu: Annotated[str, gpu_option("The GPU whose limits apply.")] = DEFAULT_GPU,
    seed: Annotated[int, typer.Option(help="Seed of 'random'.", min=0)] = 0,
    watch: Annotated[bool, typer.Option("--watch", help="Run again whenever the file changes.")] = False,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Write what was found as SARIF.", metavar="FILE")
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write the verdict as JUnit XML.", metavar="FILE")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run a kernel on the emulator as its comments say, and score it: right, hazards, sectors, conflicts."""
    from ..lab.exercise import run_exercise, scored
    from ..lab.exercise_lines import read_exercise
    from ..lab.record import check_reports, json_result, write_text
    from ..report.ci import junit_of, sarif

    outputs = check_reports((sarif_file, junit_file), [file])

    def once() -> None:
        started = time.perf_counter()
        with json_result(json_file, [file, *outputs]) as write:
            exercise = read_exercise(file, sizes_of(set_))
            with Progress(1.0) as progress:
                ran = run_exercise(exercise, gpu, seed, progress.blocks)
            found = scored(exercise, ran)
            if found.printed:
                print(found.printed, end="" if found.printed.endswith("\n") else "\n")
            show_result(found)
            if sarif_file is not None:
                write_text(sarif_file, sarif(file, ran.hazards, ran.wrong, ran.costs))
            if junit_file is not None:
                failures = [("failed", text.splitlines()[0], text) for text in found.reasons]
                write_text(junit_file, junit_of(file, found.entry, failures, time.perf_counter() - started))
            write(found.to_dict())
        if not found.passed:
            raise typer.Exit(1)

    if watch:
        run_on_changes(once, [file, *file.parent.glob("*.py")])
    else:
        once()
