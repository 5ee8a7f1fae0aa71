"""The command line. Each command reads its options, calls the library, prints; heavy modules load inside commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .arch import DEFAULT_GPU
from .errors import EmulatorFault, InvalidOperand, TilewrightError

if TYPE_CHECKING:
    from .problems import GemmProblem

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    help="GEMM kernels for NVIDIA GPUs, rung by rung; on a GPU, or on the emulator without one.",
)  # fmt: skip
ladder_app = typer.Typer(no_args_is_help=True, help="Climb a ladder: check every rung, then measure or count it.")
cache_app = typer.Typer(no_args_is_help=True, help="The cache of compiled kernels.")
app.add_typer(ladder_app, name="ladder")
app.add_typer(cache_app, name="cache")

EMULATOR_SIZE = 256
GPU_SIZE = 4096
WIDTH = 100

Json = Annotated[Path | None, typer.Option("--json", help="Write the records to this file.", metavar="FILE")]


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=WIDTH)
    return console


def _progress(total: int) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=_console(stderr=True), transient=True)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    if version:
        print(f"tilewright {__version__}")
        raise typer.Exit


# --- ladder -----------------------------------------------------------------------------------------------------------


@ladder_app.command(
    "gemm",
    epilog="Examples:  tilewright ladder gemm --rungs f05..f09   |   "
    "tilewright ladder gemm --emulator --gpu A100 --size 128 --json climb.json",
)
def ladder_gemm(
    size: Annotated[
        int | None, typer.Option(help=f"m = n = k. Default {GPU_SIZE}, on the emulator {EMULATOR_SIZE}.")
    ] = None,
    m: Annotated[int | None, typer.Option(help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option(help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option(help="Length of the sums.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of the operands.")] = "f32",
    layout: Annotated[str, typer.Option(help="A then B: n row-major, t transposed in memory.")] = "nn",
    rungs: Annotated[str | None, typer.Option(help="Such as f05..f09 or f01,f12. Default: all.")] = None,
    gpu: Annotated[str, typer.Option(help="Without a GPU: the one whose limits apply.")] = DEFAULT_GPU,
    emulator: Annotated[bool, typer.Option("--emulator", help="Use the emulator although there is a GPU.")] = False,
    seconds: Annotated[float, typer.Option(help="On a GPU: measured time a rung.")] = 1.0,
    json_file: Json = None,
) -> None:
    """Climb the GEMM rungs: each is checked against float64, then timed on a GPU or counted on the emulator."""
    from .jit.device import driver, gpu_available
    from .lab.suite import select_rungs

    chosen = select_rungs(rungs, dtype)
    on_gpu = not emulator and gpu_available()
    default = size if size is not None else (GPU_SIZE if on_gpu else EMULATOR_SIZE)
    sizes = [default if extent is None else extent for extent in (m, n, k)]
    problem = _problem(sizes, layout, dtype)
    reason = ""
    if not on_gpu and not emulator:
        try:
            driver()
            reason = "The CUDA driver sees no GPU"
        except TilewrightError:
            reason = "No CUDA GPU here"
    records = _climb(chosen, problem, on_gpu, gpu, seconds, reason)
    if json_file is not None:
        from .lab.record import write_json

        write_json(json_file, records)
        print(f"{len(records)} records in {json_file}", file=sys.stderr)
    wrong = [record for record in records if not record["result"]["right"]]
    for record in wrong:
        print(f"WRONG: {record['case']['rung']}: {record['result']['reason']}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


def _problem(sizes: list[int], layout: str, dtype: str) -> GemmProblem:
    from .problems import GemmProblem

    m, n, k = sizes
    for name, extent in (("m", m), ("n", n), ("k", k)):
        if extent < 1:
            raise InvalidOperand(f"{name}={extent}: sizes must be at least 1.")
    return GemmProblem.dense(m, n, k, layout=layout, dtype=dtype)


def _climb(
    rungs: Any, problem: GemmProblem, on_gpu: bool, gpu_name: str, seconds: float, reason: str
) -> list[dict[str, Any]]:
    from .arch import find_gpu
    from .lab.ladder import Step, climb_on_emulator, climb_on_gpu
    from .report.tables import COMPILER, EXECUTED, MEASURED, rich_table

    out = _console()
    steps = [Step(rung, rung.default, problem) for rung in rungs]
    what = f"{problem.dtype} {problem.layout.upper()} {problem.m} x {problem.n} x {problem.k}"
    if not on_gpu:
        _warn_if_long(problem, len(steps))
    with _progress(len(steps)) as bar:
        task = bar.add_task("", total=len(steps))
        done = [-1]

        def say(text: str) -> None:
            known = text in {step.rung.id for step in steps}
            done[0] += known
            bar.update(task, description=text, completed=max(done[0], 0))

        if on_gpu:
            records = climb_on_gpu(steps, seconds=seconds, say=say)
        else:
            records = climb_on_emulator(steps, find_gpu(gpu_name), say=say)
    if on_gpu:
        origin = records[0]["provenance"]
        out.print(rich_table(f"{what} on {origin['gpu']}", MEASURED, records))
        if origin["reference"] is None:
            out.print(f"No column 'of cuBLAS': {origin['no_reference']}", style="yellow")
        return records
    if reason:
        out.print(f"{reason}: every rung runs on the emulator, which knows what a kernel does but no times.")
    out.print(rich_table(f"{what}, compiled for {gpu_name} ({find_gpu(gpu_name).arch})", COMPILER, records))
    out.print(
        "\nExecuted on the emulator: instructions a thread; sectors a global load; wavefronts a shared\n"
        "load; FLOP per byte of global traffic; the roofline's bound on that as a share of FFMA peak."
    )
    out.print(rich_table("", EXECUTED, records))
    return records


def _warn_if_long(problem: GemmProblem, rungs: int) -> None:
    """The emulator runs some 20 million thread instructions a second; a product takes 1.2 to 6 of them."""
    estimate = problem.m * problem.n * problem.k * rungs * 3 / 40e6
    if estimate > 60:
        print(f"This will take about {estimate / 60:.0f} minutes on the emulator; Ctrl-C stops it.", file=sys.stderr)


# --- doctor, explain --------------------------------------------------------------------------------------------------


@app.command(epilog="Example:  tilewright doctor --json report.json")
def doctor(json_file: Json = None) -> None:
    """Say what was found here, what is missing, and how to get it."""
    from .lab.doctor import examine

    findings = examine()
    out = _console()
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    for finding in findings:
        mark = Text("yes", "green") if finding.found else Text("no", "yellow")
        table.add_row(mark, finding.name, Text("\n".join(filter(None, (finding.detail, finding.advice)))))
    out.print(table)
    if json_file is not None:
        from .lab.record import write_json

        write_json(json_file, [finding.__dict__ for finding in findings])
    if any(not finding.found and finding.required for finding in findings):
        raise typer.Exit(1)


@app.command(epilog="Example:  tilewright explain --m 4096 --n 4096 --k 64 --layout nt --gpu A100")
def explain(
    m: Annotated[int, typer.Option(help="Rows of the result.")],
    n: Annotated[int, typer.Option(help="Columns of the result.")],
    k: Annotated[int, typer.Option(help="Length of the sums.")],
    layout: Annotated[str, typer.Option(help="A then B: n row-major, t transposed in memory.")] = "nn",
    dtype: Annotated[str, typer.Option(help="Type of the operands.")] = "f32",
    rung: Annotated[str | None, typer.Option(help="A rung to run instead of the plan's choice.")] = None,
    gpu: Annotated[str, typer.Option(help="The GPU to plan for.")] = DEFAULT_GPU,
) -> None:
    """Say which rung and config would run a product, why, and what was refused."""
    import numpy as np

    from .plan import explain as explain_arrays

    problem = _problem([m, n, k], layout, dtype)
    shapes = ((problem.m, problem.k), (problem.k, problem.n))
    a, b = (  # never read: their shapes and strides are what matters
        np.empty(shape[::-1], np.float32).T if letter == "t" else np.empty(shape, np.float32)
        for letter, shape in zip(layout.lower(), shapes, strict=True)
    )
    print(explain_arrays(a, b, rung=rung, gpu=gpu))


# --- emulate ----------------------------------------------------------------------------------------------------------


@app.command(
    epilog="Example:  tilewright emulate axpy.cu --entry axpy --grid 4,1 --block 128 --arg 'f32[512]=random' "
    "--arg 'f32[512]=nan' --arg 'f32=2.5' --arg 'i32=512'"
)
def emulate(
    file: Annotated[Path, typer.Argument(help="CUDA C++ (.cu) or PTX (.ptx).", exists=True, dir_okay=False)],
    entry: Annotated[str, typer.Option(help='The kernel\'s name, declared extern "C".')],
    grid: Annotated[str, typer.Option(help="Blocks: x or x,y or x,y,z.")] = "1",
    block: Annotated[str, typer.Option(help="Threads a block: x or x,y or x,y,z.")] = "32",
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter, in order: 'f32[4,8]=random', 'i32=1024', ... "
            "Fills: zeros, ones, arange, random, nan, or a .npy file."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The GPU whose limits apply.")] = DEFAULT_GPU,
    shared_bytes: Annotated[int, typer.Option(help="Dynamic shared memory a block.")] = 0,
    include: Annotated[list[Path] | None, typer.Option(help="Folder of quoted includes.")] = None,
    save_args: Annotated[Path | None, typer.Option(help="Write the arrays afterwards here, as argN.npy.")] = None,
    json_file: Json = None,
) -> None:
    """Run your own kernel on the emulator: a fault says what, on which line, in which block, warp and lanes."""
    from .emu import emulate as run

    try:
        result = run(
            file,
            entry,
            _triple("grid", grid),
            _triple("block", block),
            list(arg or ()),
            gpu=gpu,
            shared_bytes=shared_bytes,
            include=tuple(include or ()),
        )
    except EmulatorFault as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        raise typer.Exit(1) from None
    _print_emulation(result)
    if save_args is not None:
        import numpy as np

        save_args.mkdir(parents=True, exist_ok=True)
        for index, array in enumerate(result.arrays):
            if isinstance(array, np.ndarray):
                np.save(save_args / f"arg{index}.npy", array)
    if json_file is not None:
        from .lab.record import write_json

        write_json(json_file, result.counters.to_dict())


def _triple(name: str, text: str) -> tuple[int, int, int]:
    try:
        parts = [int(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise InvalidOperand(f"--{name} {text!r} is not one to three whole numbers of at least 1, such as 4 or 4,2.")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def _print_emulation(result: Any) -> None:
    from rich.table import Table

    counters, out = result.counters, _console()
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    rows: list[tuple[str, Any]] = [
        ("threads", counters.threads),
        ("thread instructions", counters.thread_instructions),
        *((f"  {name}", count) for name, count in sorted(counters.by_class.items(), key=lambda item: -item[1])),
        ("global loads", f"{counters.global_load_requests} requests, {counters.global_load_sectors} sectors"),
        ("global stores", f"{counters.global_store_requests} requests, {counters.global_store_sectors} sectors"),
        ("shared loads", f"{counters.shared_load_requests} requests, {counters.shared_load_wavefronts} wavefronts "
         f"(ideal {counters.shared_load_ideal})"),
        ("shared stores", f"{counters.shared_store_requests} requests, {counters.shared_store_wavefronts} wavefronts "
         f"(ideal {counters.shared_store_ideal})"),
        ("asynchronous copies", f"{counters.async_copy_requests} requests, {counters.async_copy_bytes} bytes"),
        ("floating-point operations", ", ".join(f"{v} {k}" for k, v in counters.flops.items()) or "0"),
    ]  # fmt: skip
    for name, value in rows:
        table.add_row(name, str(value))
    out.print("No fault.")
    out.print(table)


# --- cache, bench, report ---------------------------------------------------------------------------------------------


@cache_app.command("info")
def cache_info() -> None:
    """Where the cache is, how many kernels it holds, how large it is."""
    from .jit.compile import kernel_cache

    cache = kernel_cache()
    print(f"{cache.folder}: {len(cache.keys())} kernels, {cache.size() / 1e6:.1f} MB")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel."""
    from .jit.compile import kernel_cache

    print(f"{kernel_cache().clear()} kernels removed")


@cache_app.command("export")
def cache_export(archive: Annotated[Path, typer.Argument(help="The zip file to write.")]) -> None:
    """Write all compiled kernels to an archive."""
    from .jit.compile import kernel_cache

    print(f"{kernel_cache().export(archive)} kernels in {archive}")


@cache_app.command("import")
def cache_import(archive: Annotated[Path, typer.Argument(help="A file that `cache export` wrote.")]) -> None:
    """Take over the kernels of an archive. They are machine code: import only what you trust."""
    from .jit.compile import kernel_cache

    print(f"{kernel_cache().load_archive(archive)} kernels taken over from {archive}")


@app.command(epilog="Example:  tilewright bench benchmarks/fp32-ladder.json --out benchmarks/results")
def bench(
    suite: Annotated[list[Path], typer.Argument(help="Suites: files such as benchmarks/fp32-ladder.json.")],
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("benchmarks/results"),
    seconds: Annotated[float, typer.Option(help="Measured time a case.")] = 1.0,
) -> None:
    """Run benchmark suites on a GPU and write their records."""
    from .lab.suite import read_suite, run_suite

    wrong = 0
    for path in suite:
        description = read_suite(path)
        with _progress(1) as bar:
            task = bar.add_task(description["name"], total=None)

            def say(text: str, bar: Any = bar, task: Any = task) -> None:
                bar.update(task, description=text)

            written, records = run_suite(description, out, seconds, say)
        wrong += sum(not record["result"].get("right", True) for record in records)
        print(f"{len(records)} records in {written}")
    if wrong:
        print(f"{wrong} results are wrong; see the records' reasons", file=sys.stderr)
        raise typer.Exit(1)


@app.command(epilog="Example:  tilewright report --write")
def report(
    write: Annotated[bool, typer.Option("--write", help="Put the tables into README.md and docs/*.md.")] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds README.md, docs and benchmarks/results.")] = Path("."),
) -> None:
    """Compare the tables in README and docs with the records, or make them anew with --write."""
    from .report.tables import fill, pages_of

    stale = []
    for page in pages_of(root):
        old = page.read_text(encoding="utf-8")
        new = fill(old, root / "benchmarks" / "results")
        if new != old:
            stale.append(str(page))
            if write:
                page.write_text(new, encoding="utf-8")
    if write:
        print(f"written: {', '.join(stale) or 'nothing; all tables were up to date'}")
    elif stale:
        print(f"out of date: {', '.join(stale)}; run: tilewright report --write", file=sys.stderr)
        raise typer.Exit(1)
    else:
        print("all tables agree with the records")


def main() -> None:
    """Entry of the command. Exit status: 0 fine, 1 a wrong result or a fault, 2 bad input, 130 Ctrl-C."""
    try:
        app(standalone_mode=False)
    except TilewrightError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (typer.Abort, KeyboardInterrupt):
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        # typer's own usage errors know how to show themselves
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        raise SystemExit(getattr(error, "exit_code", 2)) from None


if __name__ == "__main__":
    main()
