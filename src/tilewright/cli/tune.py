"""`tilewright tune` measures which kernel is fastest for the shapes given, and keeps the results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..arch import DEFAULT_GPU, GPUS, Gpu, find_gpu
from ..errors import CacheError, InvalidOperand, TilewrightError
from .climb import why_no_gpu
from .console import Progress, console, note
from .ladder import dense_problem

if TYPE_CHECKING:
    from ..ladder import Rung
    from ..problems import GemmProblem
    from ..tuning.store import Store

EXAMPLES = (
    "Examples:\n\n  tilewright tune --shapes 4096x4096x4096,1000x1000x1000 --dtype bf16 --layout nn,nt\n\n"
    "  tilewright tune --shapes 128x28672x4096 --dtype bf16 --dry-run\n\n"
    "  tilewright tune --export mine.json      tilewright tune --merge theirs.json"
)


def tune(
    shapes: Annotated[str, typer.Option(help="m x n x k, several with commas: 4096x4096x4096,1x8192x8192.")] = "",
    dtype: Annotated[str, typer.Option(help="Types of the operands, with commas.")] = "f32",
    layout: Annotated[str, typer.Option(help="A then B: n row-major, t transposed; several with commas.")] = "nn",
    rungs: Annotated[str | None, typer.Option(help="Such as h09..h11 or f12. Default: all of the type.")] = None,
    seconds: Annotated[float, typer.Option(help="Measuring a problem: at most about this long.", min=0.01)] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="Compiling processes. Default: one a core but one.", min=1)] = None,
    keep: Annotated[int, typer.Option(help="Candidates compiled and measured for a problem.", min=1)] = 24,
    again: Annotated[bool, typer.Option("--again", help="Measure also what the store has already.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the candidates in the model's order; needs no GPU.")
    ] = False,
    gpu: Annotated[
        str, typer.Option(help="Without a GPU: the one that --dry-run and --export speak of.")
    ] = DEFAULT_GPU,
    listed: Annotated[bool, typer.Option("--list", help="Print what the stores here hold.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the store to this file.", metavar="FILE")
    ] = None,
    import_file: Annotated[
        Path | None,
        typer.Option("--import", help="Take over a file's results, in place of the store's.", metavar="FILE"),
    ] = None,
    merge_file: Annotated[
        Path | None, typer.Option("--merge", help="Take over a file's results where they are newer.", metavar="FILE")
    ] = None,
) -> None:
    """Measure which kernel is fastest for each shape on this GPU, and keep the results for matmul."""
    named = find_gpu(gpu)
    problems = _problems(shapes, dtype, layout)
    if not (problems or listed or export or import_file or merge_file):
        raise InvalidOperand(
            "nothing to tune: give --shapes, such as 4096x4096x4096; or --list, --export, --import, --merge."
        )
    if export is not None:
        from ..lab.record import check_writable

        check_writable(export)  # before the work, not after it
    for path, replace in ((import_file, True), (merge_file, False)):
        if path is not None:
            _take_over(path, replace)
    failed = 0
    if dry_run:
        for problem in problems:
            _print_space(problem, _gpu_here() or named, _rungs(rungs, problem.dtype), keep)
    elif problems:
        if reason := why_no_gpu():
            raise TilewrightError(f"{reason}: tuning measures. --dry-run prints what would be tried.")
        failed = _tune(problems, rungs, seconds, jobs, keep, again)
    if listed:
        _print_stores()
    if export is not None:
        _export(export, _store(named))
    if failed:
        raise typer.Exit(1)


def _problems(shapes: str, dtypes: str, layouts: str) -> list[GemmProblem]:
    found = []
    for shape in filter(None, (part.strip() for part in shapes.split(","))):
        try:
            sizes = [int(extent) for extent in shape.lower().split("x")]
        except ValueError:
            sizes = []
        if len(sizes) != 3:
            raise InvalidOperand(f"--shapes: {shape!r} is no m x n x k. Write 4096x4096x4096, several with commas.")
        found += [dense_problem(sizes, lay.strip(), d.strip()) for d in dtypes.split(",") for lay in layouts.split(",")]
    return found


def _rungs(text: str | None, dtype: str) -> tuple[Rung, ...]:
    from ..lab.suite import select_rungs

    return select_rungs(text, dtype)


def _gpu_here() -> Gpu | None:
    if why_no_gpu():
        return None
    from ..jit.device import device

    return device(0).gpu


def _store(named: Gpu) -> Store:
    """The store of this machine's GPU, else of the one named."""
    from ..tuning.tables import store_of

    return store_of(_gpu_here() or named)


def _tune(
    problems: list[GemmProblem], rungs: str | None, seconds: float, jobs: int | None, keep: int, again: bool
) -> int:
    """Tune and print; the number of problems for which nothing could be measured."""
    from ..tuning.run import tune_problems

    failed = 0
    by_dtype: dict[str, list[GemmProblem]] = {}
    for problem in problems:
        by_dtype.setdefault(problem.dtype, []).append(problem)
    with Progress(len(problems)) as progress:
        done = 0
        for dtype, same in by_dtype.items():
            chosen = _rungs(rungs, dtype) if rungs else None
            results = tune_problems(
                same, rungs=chosen, seconds=seconds, jobs=jobs, again=again, kept=keep,
                say=partial(_show, progress, done),
            )  # fmt: skip
            for tuned in results:
                known = "  (known already; --again measures)" if tuned.space is None else ""
                progress.print(f"{tuned}{known}")
                if tuned.space is not None:
                    note(f"  {tuned.space}")
                for failure in tuned.entry.failed if tuned.space is not None else ():
                    note(f"  {failure.kind}: {failure.rung} {failure.config}: {failure.reason}")
                failed += not tuned.entry.timed
            done += len(same)
    return failed


def _show(progress: Progress, before: int, number: int, text: str) -> None:
    progress.show(before + number, text)


def _print_space(problem: GemmProblem, gpu: Gpu, rungs: tuple[Rung, ...], keep: int) -> None:
    from rich.table import Table

    from ..tuning.space import explore

    space = explore(problem, gpu, rungs, keep)
    table = Table(
        title=f"{problem.dtype} {problem.layout} {problem.m} x {problem.n} x {problem.k} on {gpu.name}: the model's "
        "order, nothing measured", box=None, padding=(0, 1), pad_edge=False, title_justify="left",
    )  # fmt: skip
    for column in ("#", "rung", "config"):
        table.add_column(column)
    for column in ("blocks", "an SM", "waves", "registers"):
        table.add_column(column, justify="right")
    table.add_column("bound by")
    for number, candidate in enumerate(space.kept, 1):
        p = candidate.prediction
        table.add_row(
            str(number), candidate.rung.id.split("_")[0], candidate.text, str(p.blocks), str(p.resident),
            f"{p.waves:.2f}", f"~{p.registers}", p.limiter,
        )  # fmt: skip
    console().print(table)
    console().print(str(space), markup=False)


def _print_stores() -> None:
    from ..tuning.entries import decode_named
    from ..tuning.store import default_folder, stored_files
    from ..tuning.tables import shipped

    files = stored_files()
    if not files:
        print(f"nothing has been tuned here: there is no store in {default_folder()}")
    for path in files:
        try:
            table, gpu, driver = decode_named(path.read_bytes())
        except (OSError, CacheError) as error:
            note(f"{path}: {error}")
            continue
        print(f"{path}: {len(table)} problems tuned on {gpu}, {driver}")
        for key, entry in sorted(table.items()):
            best = entry.best
            state = "" if entry.finished else ", stopped early"
            print(f"  {key}: {best}, {best.ms * 1e3:.4g} us, of {len(entry.timed)}{state}")
    for name in GPUS:
        if table := shipped(name):
            print(f"shipped with the package: {len(table)} problems tuned on {name}")


def _take_over(path: Path, replace: bool) -> None:
    from ..tuning.entries import decode_named
    from ..tuning.store import Store
    from ..tuning.tables import driver_name

    try:
        table, gpu, driver = decode_named(path.read_bytes())
    except OSError as error:
        raise CacheError(f"{path} cannot be read: {error}") from error
    except CacheError as error:
        raise CacheError(f"{path}: {error}. Give a file that `tilewright tune --export` wrote.") from error
    here = _gpu_here()
    store = Store(gpu, driver_name() if here is not None and here.name == gpu else driver)
    before = dict(store.table)
    if not store.add(table.values(), replace):
        raise CacheError(f"{store.path} cannot be written; nothing was taken over.")
    changed = sum(before.get(key) != entry for key, entry in store.table.items())
    if here is not None and here.name != gpu:
        note(f"they are of {gpu}; plans for the {here.name} of this machine do not ask them")
    print(f"{changed} of {len(table)} results taken over from {path} into {store.path}")


def _export(path: Path, store: Store) -> None:
    from ..lab.record import write_bytes
    from ..tuning.entries import encode

    if not store.table:
        raise CacheError(f"there is nothing to export: {store.path} holds no results. Tune first: --shapes ...")
    write_bytes(path, encode(store.table, store.gpu, store.driver))
    note(f"{len(store.table)} results in {path}")
