"""`tilewright tune` measures which kernel is fastest for the shapes given, and keeps the results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import CacheError, InvalidOperand, TilewrightError
from ..gpus import DEFAULT_GPU, GPUS, Gpu, find_gpu
from .climb import why_no_gpu
from .complete import gpu_option
from .console import Progress, console, note, say, show
from .ladder import dense_problem
from .options import Json, OutDtype, attention_problems, read_dtype, read_extents

if TYPE_CHECKING:
    from ..gemm.problem import GemmProblem
    from ..plan.entries import AnyEntry
    from ..plan.space import Space
    from ..plan.store import Store
    from ..tuning.run import Tunable

EXAMPLES = (
    "Examples:\n\n  tilewright tune --shapes 4096x4096x4096,1000x1000x1000 --dtype bf16 --layout nn,nt\n\n"
    "  tilewright tune --shapes 128x28672x4096 --dtype bf16 --dry-run\n\n"
    "  tilewright tune --shapes 4096x4096x1024 --dtype bf16 --epilogue bias,silu,residual\n\n"
    "  tilewright tune --attention 4x32/8x4096x128,1x16x16384x64 --causal\n\n"
    "  tilewright tune --export mine.json\n\n  tilewright tune --merge theirs.json"
)


def tune(
    shapes: Annotated[
        str,
        typer.Option(help="m x n x k, or m x n x k x batch; several with commas: 4096x4096x4096,512x512x64x48."),
    ] = "",
    attention: Annotated[
        str, typer.Option(help="batch x heads x length x d_head, with commas; 32/8 heads: 32 of queries, 8 of keys.")
    ] = "",
    causal: Annotated[bool, typer.Option("--causal", help="Attention in which a query sees no later key.")] = False,
    dtype: Annotated[
        str | None,
        typer.Option(help="Types of the operands, with commas. Default: f32, for attention bf16.", callback=read_dtype),
    ] = None,
    out_dtype: OutDtype = None,
    precision: Annotated[str, typer.Option(help="For f32 operands: ieee, tf32 or fp32x3.")] = "ieee",
    layout: Annotated[str, typer.Option(help="A then B: n row-major, t transposed; several with commas.")] = "nn",
    epilogue: Annotated[
        str,
        typer.Option(
            help="Measure products with this epilogue: of bias, residual, row_scale, col_scale and one activation "
            "(relu, gelu, gelu_tanh, silu, sigmoid, tanh), with commas."
        ),
    ] = "",
    rungs: Annotated[str | None, typer.Option(help="Such as h09..h11, f12, or a16,a17. Default: all.")] = None,
    seconds: Annotated[float, typer.Option(help="Most time spent on measuring one problem, about.", min=0.01)] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="Compiling processes. Default: all cores but one.", min=1)] = None,
    keep: Annotated[int, typer.Option(help="Candidates compiled and measured per problem.", min=1)] = 24,
    again: Annotated[bool, typer.Option("--again", help="Measure again what the store already has.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the candidates in the model's order; needs no GPU.")
    ] = False,
    gpu: Annotated[str, gpu_option("Without a GPU: the one that --dry-run and --export apply to.")] = DEFAULT_GPU,
    listed: Annotated[bool, typer.Option("--list", help="Print the results that are stored here.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write the store to this file.", metavar="FILE")
    ] = None,
    import_file: Annotated[
        Path | None,
        typer.Option("--import", help="Take over a file's results, replacing the store's.", metavar="FILE"),
    ] = None,
    merge_file: Annotated[
        Path | None, typer.Option("--merge", help="Take over a file's results where they are newer.", metavar="FILE")
    ] = None,
    json_file: Json = None,
) -> None:
    """Measure which kernel is fastest for each shape on this GPU, and keep the results for matmul and attention."""
    named = find_gpu(gpu)
    if shapes and attention:
        raise InvalidOperand("--shapes and --attention: tune one after the other, since --rungs and --dtype differ.")
    if epilogue and not shapes:
        raise InvalidOperand("--epilogue applies to products: give --shapes, or omit it.")
    if attention and (precision, layout, out_dtype) != ("ieee", "nn", None):
        raise InvalidOperand("--precision, --layout and --out-dtype apply to products: give --shapes, or omit them.")
    if causal and not attention:
        raise InvalidOperand("--causal applies to attention: give --attention, or omit it.")
    problems: list[Any]
    if attention:
        problems = attention_problems(attention, dtype or "bf16", causal)
    else:
        problems = _problems(shapes, dtype or "f32", layout, precision, out_dtype, epilogue)
    if not (problems or listed or export or import_file or merge_file):
        raise InvalidOperand(
            "nothing to tune: give --shapes, such as 4096x4096x4096, or --attention; or --list, --export, --import, "
            "--merge."
        )
    if export is not None:
        from ..lab.record import check_writable

        check_writable(export, [import_file, merge_file])  # before the work, not after it
    from ..lab.record import json_result

    with json_result(json_file, [export, import_file, merge_file]) as write:
        for path, replace in ((import_file, True), (merge_file, False)):
            if path is not None:
                _take_over(path, replace)
        told: dict[str, Any] = {}
        family = _tunable(bool(attention), rungs, keep, problems)
        if dry_run:
            where = _gpu_here() or named
            told["candidates"] = [_show_space(family.name(p), family.explore(p, where), where.name) for p in problems]
        elif problems:
            if reason := why_no_gpu():
                raise TilewrightError(f"{reason}: tuning measures. --dry-run prints what would be tried.")
            told["tuned"] = _tune(family, problems, seconds, jobs, again)
        if listed:
            told["stores"] = _show_stores()
        if export is not None:
            _export(export, _store(named))
        write(told)
    if any(not tuned["candidates"] for tuned in told.get("tuned", ())):
        raise typer.Exit(1)


def _problems(
    shapes: str, dtypes: str, layouts: str, precision: str, out_dtype: str | None, epilogue: str
) -> list[GemmProblem]:
    found: list[GemmProblem] = []
    for shape in filter(None, (part.strip() for part in shapes.split(","))):
        sizes = read_extents(shape, "--shapes: ")
        found += [
            dense_problem(sizes, lay.strip(), d.strip(), precision, out_dtype)
            for d in dtypes.split(",")
            for lay in layouts.split(",")
        ]
    if epilogue:
        from ..tuning.fused import read_words, with_epilogue

        words = read_words(epilogue)
        found = [with_epilogue(problem, *words) for problem in found]
    return found


def _tunable(attention: bool, rungs: str | None, keep: int, problems: list[Any]) -> Tunable:
    """Return what is tuned: products, or attention, by the rungs named."""
    if attention:
        from ..lab.attention import select_attention_rungs
        from ..tuning.attention import TunableAttention

        return TunableAttention(tuple(select_attention_rungs(rungs)), keep)
    from ..lab.select import select_rungs
    from ..tuning.products import TunableProducts

    kinds = dict.fromkeys((problem.dtype, problem.precision) for problem in problems) if rungs else ()
    chosen = (rung for kind in kinds for rung in select_rungs(rungs, *kind))
    return TunableProducts(tuple(dict.fromkeys(chosen)), keep)


def _gpu_here() -> Gpu | None:
    if why_no_gpu():
        return None
    from ..jit.device import device

    return device(0).gpu


def _store(named: Gpu) -> Store:
    """The store of this machine's GPU, else of the one named."""
    from ..plan.tables import store_of

    return store_of(_gpu_here() or named)


def _tune(family: Tunable, problems: list[Any], seconds: float, jobs: int | None, again: bool) -> list[dict[str, Any]]:
    """Tune and print; what was found for each problem as data, with no candidates where nothing could be measured."""
    from ..tuning.run import tune_family

    told = []
    with Progress(len(problems)) as progress:
        for tuned in tune_family(family, problems, seconds=seconds, jobs=jobs, again=again, say=progress.show):
            entry, measured = tuned.entry, tuned.space is not None
            fused = f" with {entry.epilogue}" if entry.epilogue else ""
            progress.print(f"{tuned}" + ("" if measured else f"  (known already{fused}; --again measures)"))
            if measured:
                note(f"  {tuned.space}")
                if entry.duel:
                    note(f"  {entry.duel}")
                for failure in entry.failed:
                    note(f"  {failure.kind}: {failure.rung} {failure.config}: {failure.reason}")
            told.append(_entry_data(entry) | {"problem": tuned.name, "measured": measured})
    return told


def _entry_data(entry: AnyEntry) -> dict[str, Any]:
    """A tuning result as plain data for JSON: the candidates are in order, the fastest first."""
    return {
        "class": entry.key,
        "shape": list(entry.shape),
        "epilogue": entry.epilogue,
        "finished": entry.finished,
        "duel": entry.duel,
        "when": entry.when,
        "candidates": [
            {"rung": timed.rung, "config": str(timed.config), "packs": list(timed.packs), "us": timed.ms * 1e3}
            for timed in entry.timed
        ],
        "failed": [asdict(failure) for failure in entry.failed],
    }


def _show_space(name: str, space: Space[Any], gpu: str) -> dict[str, Any]:
    """Print the candidates of a problem; the same as data."""
    from ..report.terminal import legend, tables

    names = ("#", "rung", "config", "blocks", "per SM", "waves", "registers", "bound by")
    rows = [
        (
            str(number), candidate.rung.id.split("_")[0], candidate.text, str(p.blocks), str(p.resident),
            f"{p.waves:.2f}", f"~{p.registers}", p.limiter,
        ) for number, candidate in enumerate(space.kept, 1) for p in (candidate.prediction,)
    ]  # fmt: skip
    title = f"{name} on {gpu}: the model's order, nothing measured"
    told = [legend(names)] + ([space.kept[0].config.legend] if space.kept else [])
    show(title, tables(names, rows, console().width, keys=2), "\n".join(told))
    console().print(str(space), markup=False)
    return {
        "problem": name,
        "gpu": gpu,
        "considered": space.considered,
        "put_aside": space.pruned,
        "kept": [
            {"rung": candidate.rung.id, "config": candidate.text, "prediction": candidate.prediction._asdict()}
            for candidate in space.kept
        ],
    }


def _show_stores() -> list[dict[str, Any]]:
    """Print what the stores hold; the same as data."""
    from ..plan.entries import decode
    from ..plan.store import default_folder, stored_files
    from ..plan.tables import shipped
    from ..tuning.families import entries_of

    files = stored_files()
    if not files:
        say(f"nothing has been tuned here: there is no store in {default_folder()}")
    told: list[dict[str, Any]] = []
    for path in files:
        try:
            table = decode(path.read_bytes())
            held = entries_of(table)
        except (OSError, CacheError) as error:
            note(f"{path}: {error}")
            continue
        say(f"{path}: {len(held)} problems tuned on {table.gpu}, {table.driver}")
        entries = [_entry_data(entry) for entry in held.values()]
        told.append(
            {"file": str(path), "gpu": table.gpu, "driver": table.driver, "problems": len(held), "entries": entries}
        )
        for key, entry in held.items():
            best = entry.best
            state = "" if entry.finished else ", stopped early"
            fused = f", with {entry.epilogue}" if entry.epilogue else ""
            say(f"  {key}: {best}, {best.ms * 1e3:.4g} us, of {len(entry.timed)}{state}{fused}", indent=2)
    for name in GPUS:
        if ships := len(shipped(name)):
            say(f"shipped with the package: {ships} problems tuned on {name}")
            told.append({"file": None, "gpu": name, "driver": None, "problems": ships, "entries": []})
    return told


def _take_over(path: Path, replace: bool) -> None:
    from ..plan.entries import decode
    from ..plan.store import Store
    from ..plan.tables import driver_name
    from ..tuning.families import entries_of

    try:
        table = decode(path.read_bytes())
        entries_of(table)
    except OSError as error:
        raise CacheError(f"{path} cannot be read: {error}") from error
    except CacheError as error:
        raise CacheError(f"{path}: {error}. Give a file that `tilewright tune --export` wrote.") from error
    here, gpu = _gpu_here(), table.gpu
    store = Store(gpu, driver_name() if here is not None and here.name == gpu else table.driver)
    before = store.table
    if not store.take_over(table, replace):
        raise CacheError(f"{store.path} cannot be written; nothing was taken over.")
    changed = store.table.differing(before)
    if here is not None and here.name != gpu:
        note(f"they are of {gpu}; plans for the {here.name} of this machine do not ask them")
    print(f"{changed} of {len(table)} results taken over from {path} into {store.path}")


def _export(path: Path, store: Store) -> None:
    from ..lab.record import write_bytes
    from ..plan.entries import encode

    if not len(store.table):
        raise CacheError(f"there is nothing to export: {store.path} holds no results. Tune first: --shapes ...")
    write_bytes(path, encode(store.table))
    note(f"{len(store.table)} results in {path}")
