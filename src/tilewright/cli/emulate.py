"""`tilewright emulate`: a person's own kernel on the emulator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import EmulatorFault, InvalidOperand, TilewrightError
from ..gpus import DEFAULT_GPU
from .console import Progress, console, note
from .options import Json

if TYPE_CHECKING:
    from ..emu import Counters
    from ..emu.arguments import Argument

EXAMPLE = (
    "Example:\n\n  tilewright emulate axpy.cu --entry axpy --grid 4 --block 128 --arg 'x=f32[512]=random' "
    "--arg 'y=f32[512]=zeros' --arg a=2.5 --arg n=512 --reference 'y = a * x + y'\n\n"
    "Exit status: 0 for a kernel that is right, 1 for a fault or a wrong result, 2 for a launch that is refused."
)


def emulate(
    file: Annotated[Path, typer.Argument(help="CUDA C++ or PTX.", exists=True, dir_okay=False)],
    entry: Annotated[str, typer.Option(help="The kernel's name: scale, or 'scale<float, 4>'.")],
    grid: Annotated[str, typer.Option(help="Blocks: x or x,y or x,y,z.")] = "1",
    block: Annotated[str, typer.Option(help="Threads per block: x or x,y or x,y,z.")] = "32",
    cluster: Annotated[str | None, typer.Option(help="Blocks per cluster: x or x,y or x,y,z.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter, in order or by name: 'f32[4,8]=random', 1024, 'x=f32[4,8]=random', n=1024, x=FILE.npy, "
            "x=FILE.npz:NAME. Fills: zeros, ones, arange, random, nan, FILE.npy; empty: to read it before it is "
            "written is a fault."
        ),
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option(help="What a __constant__ or __device__ variable holds: 'table=f32[4]=ones'.")
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            help="What a buffer should hold after the launch, of the arguments before it: 'y = a * x + np.sin(y)'; or "
            "FILE.py with check(before, after)."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Relative and absolute, for --reference. Default: by the buffer's type, 1e-5 for f32.", min=0
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Go on after a fault and report all of them.")] = False,
    gpu: Annotated[str, typer.Option(help="The GPU whose limits apply.")] = DEFAULT_GPU,
    shared_bytes: Annotated[int, typer.Option(help="Dynamic shared memory per block.", min=0)] = 0,
    include: Annotated[list[Path] | None, typer.Option(help="Folder of headers.", exists=True)] = None,
    seed: Annotated[int, typer.Option(help="Seed of 'random', and of --explore.", min=0)] = 0,
    explore: Annotated[
        str | None,
        typer.Option(
            help="Also run N other legal orders of warps, blocks and asynchronous completions, or as many as begin in "
            "a time: 20, or 30s.",
            metavar="N",
        ),
    ] = None,
    order: Annotated[
        int | None, typer.Option(help="Run this one of the orders that --explore has, with the same --seed.", min=1)
    ] = None,
    red_zones: Annotated[
        bool,
        typer.Option("--red-zones", help="Find accesses of a shared array that end in its neighbour."),
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again whenever the source, a header of --include or a file changes.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are faults.")] = False,
    jobs: Annotated[
        int, typer.Option(help="Processes that share the blocks, where those do not talk to one another.", min=1)
    ] = 1,
    limit: Annotated[int, typer.Option(help="Instructions after which a launch counts as endless.", min=1)] = 10**8,
    save_args: Annotated[
        Path | None,
        typer.Option(help="Write the buffers afterwards to this folder, as NAME.npy or argN.npy.", metavar="DIR"),
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Write what was found as SARIF.", metavar="FILE")
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write what was found as JUnit XML.", metavar="FILE")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run your own kernel on the emulator: a fault says what, on which line, in which block, warp and lanes."""
    from ..emu.orders import Order
    from ..emu.own_kernel import emulate as run
    from ..emu.own_kernel import load
    from ..emu.reference import Reference, after_of
    from ..lab.record import check_writable, json_result, save_array, write_text
    from ..report.ci import junit, sarif

    shapes = triple("grid", grid), triple("block", block)
    references = [Reference.of(text) for text in reference or ()]
    for place in (sarif_file, junit_file):
        if place is not None:
            check_writable(place)
    folders = tuple(include or ())

    def once() -> None:
        given = Given.of(arg or (), seed)
        started = time.perf_counter()
        with json_result(json_file) as write:
            hazards, allowed, wrong, result = [], [], [], None
            names = given.named_by(load(file, entry, gpu, folders).names)
            with Progress(1.0) as progress:

                def show(done: int, total: int) -> None:
                    progress.show(done / total, f"{done} of {total} blocks")

                try:
                    result = run(
                        file, entry, *shapes, given.values, gpu=gpu, shared_bytes=shared_bytes, include=folders,
                        seed=seed, cluster=None if cluster is None else triple("cluster", cluster), limit=limit,
                        progress=show, constants=dict(_named(text, "--constant") for text in constant or ()),
                        hazards="collect" if every else "raise", order=order, red_zones=red_zones, strict=strict,
                        jobs=jobs,
                        explore=int(explore) if explore and explore.isdigit() else explore or 0,
                    )  # fmt: skip
                    hazards, allowed = result.hazards, result.allowed
                except EmulatorFault as error:
                    hazards = [error.hazard]
            if result is not None:
                for number, run_of in ((0, result), *result.differing.items()):
                    after = after_of(run_of, names.buffers, names.kinds)
                    found = [said for one in references if (said := one.wrong(names.before, after, tolerance))]
                    wrong += [f"{said} (in order {Order(seed, number)})" if number else said for said in found]
            faults = [hazard for hazard in hazards if hazard.level == "error"]
            lines = (f"{'FAULT' if hazard.level == 'error' else 'WARNING'}: {hazard}" for hazard in hazards)
            for text in (*lines, *(f"WRONG: {one}" for one in wrong)):
                note(text)
            for hazard in allowed:
                note(f"ALLOWED: {hazard.kind} at {hazard.file}:{hazard.line}: {hazard.allowed}")
            if sarif_file is not None:
                write_text(sarif_file, sarif(file, [*hazards, *allowed], wrong))
            if junit_file is not None:
                write_text(junit_file, junit(file, entry, faults, wrong, time.perf_counter() - started))
            if result is not None:
                if result.printed:
                    print(result.printed, end="" if result.printed.endswith("\n") else "\n")
                if not faults and not wrong:
                    print("No fault." if not references else "No fault, and the result is right.")
                if result.explored:
                    told_apart = ", ".join(map(str, result.differing))
                    says = f"order {told_apart} left other results" if told_apart else "all with the same result"
                    print(f"{result.explored} other orders of warps, blocks and completions: {says}.")
                if result.alone:
                    note(f"One process ran it: {result.alone}.")
                print_counters(result.counters)
                if save_args is not None:
                    for name, array in zip(names.files, result.arrays, strict=True):
                        save_array(save_args / f"{name}.npy", array)
                    note(f"{len(names.files)} arrays in {save_args}")
            write(
                {
                    "fault": faults[0].to_dict() if faults else None,
                    "hazards": [hazard.to_dict() for hazard in hazards],
                    "allowed": [hazard.to_dict() for hazard in allowed],
                    "wrong": wrong,
                    "explored": 0 if result is None else result.explored,
                    "differing": [] if result is None else list(result.differing),
                    "counters": None if result is None else result.counters.to_dict(),
                }
            )
            if faults or wrong:
                raise typer.Exit(1)

    if not watch:
        once()
        return
    files = [Path(text) for one in arg or () for text in re.findall(r"[^=]+\.np[yz]", one)]
    run_on_changes(once, [file, *folders, *(Path(one.text) for one in references if not one.buffer), *files])


def run_on_changes(once: Callable[[], None], places: Sequence[Path]) -> None:
    """Run now, and again whenever one of the files changes (or one in a folder), until Ctrl-C. Errors are shown."""
    from ..emu.hazards import forget_files

    def stamps() -> list[tuple[str, int, int]]:
        paths = [path for place in places for path in (place.rglob("*") if place.is_dir() else (place,))]
        found = [(str(path), path.stat()) for path in paths if path.is_file()]
        return [(path, stat.st_mtime_ns, stat.st_size) for path, stat in found]

    try:
        while True:
            seen = stamps()
            forget_files()
            try:
                once()
            except typer.Exit:
                pass
            except TilewrightError as error:
                note(f"ERROR: {error}")
            note(f"Waiting for a change of {places[0]}. Ctrl-C ends.")
            while stamps() == seen:
                time.sleep(0.2)
    except KeyboardInterrupt:
        return


@dataclass
class Names:
    """What the arguments are called: the parameters' names where they are known, else argN."""

    before: dict[str, Any]
    """The arguments before the launch, as numbers."""
    kinds: dict[str, str]
    """Buffer -> its type where the command line names it."""
    buffers: list[str]
    files: list[str]
    """What --save-args calls the buffers."""


@dataclass
class Given:
    """The arguments of the command line: `values` for `emulate`, `arguments` as they were read."""

    values: list[Any] | dict[str, Any]
    arguments: list[Argument]
    keys: list[str]
    """The names given with them; "" without."""

    @classmethod
    def of(cls, texts: Sequence[str], seed: int) -> Given:
        """Read them in the order given. Raises InvalidOperand, also where only some are named."""
        import numpy as np

        from ..emu.arguments import TYPES, parse_argument

        random = np.random.default_rng(seed)
        keys, arguments, values = [], [], []
        for text in texts:
            match = re.match(r"\s*([A-Za-z_]\w*)\s*=\s*(.*)", text, re.DOTALL)
            key, rest = (match[1], match[2]) if match and match[1] not in TYPES else ("", text)
            argument = parse_argument(rest, random)
            keys.append(key)
            arguments.append(argument)
            values.append(rest if argument.array is None or argument.empty else argument.array)
        if any(keys) and not all(keys):
            raise InvalidOperand(
                f"--arg {texts[keys.index('')]!r} has no name, and others have. Name all or none of them."
            )
        if len(set(keys)) < len(keys) and any(keys):
            raise InvalidOperand(f"--arg: a name is given twice among {', '.join(keys)}.")
        return cls(dict(zip(keys, values, strict=True)) if any(keys) else values, arguments, keys)

    def named_by(self, known: Sequence[str]) -> Names:
        """Their names, of which `known` are the parameters' in order; [] where those are not known."""
        from ..emu.parameters import as_numbers

        order = list(range(len(self.arguments)))
        names = [f"arg{number}" for number in order]
        if any(self.keys):
            names = self.keys
            order.sort(key=lambda number: list(known).index(names[number]) if names[number] in known else len(known))
        elif len(known) == len(names):
            names = list(known)
        buffers = [number for number in order if self.arguments[number].array is not None]
        before = {
            names[number]: argument.scalar if argument.array is None else as_numbers(argument.array, argument.kind)
            for number, argument in enumerate(self.arguments)
        }
        return Names(
            before,
            {names[number]: self.arguments[number].kind for number in buffers},
            [names[number] for number in buffers],
            [names[number] if any(self.keys) else f"arg{number}" for number in buffers],
        )


def _named(text: str, option: str) -> tuple[str, str]:
    """`name=value` in two. Raises InvalidOperand."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidOperand(f"{option} {text!r} is not NAME=VALUE, such as 'table=f32[4]=ones'.")
    return name.strip(), value


def triple(name: str, text: str) -> tuple[int, int, int]:
    """One to three sizes with commas between, the rest 1. Raises InvalidOperand."""
    try:
        parts = [int(part) for part in text.split(",")]
    except ValueError:
        parts = []
    if not 1 <= len(parts) <= 3 or min(parts) < 1:
        raise InvalidOperand(f"--{name} {text!r} is not one to three whole numbers of at least 1, such as 4 or 4,2.")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def print_counters(counters: Counters) -> None:
    """What was executed, as a table; kinds of access that did not happen are left out."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("threads", f"{counters.threads:,}")
    table.add_row("thread instructions", f"{counters.thread_instructions:,}")
    for kind, count in sorted(counters.by_class.items(), key=lambda item: -item[1]):
        table.add_row(f"  {kind}", f"{count:,}", f"{count / counters.threads:.4g} per thread")
    for name, requests, sectors in (
        ("global loads", counters.global_load_requests, counters.global_load_sectors),
        ("global stores", counters.global_store_requests, counters.global_store_sectors),
        ("global atomics", counters.global_atomic_requests, counters.global_atomic_sectors),
        ("asynchronous copies", counters.async_copy_requests, counters.async_copy_sectors),
    ):
        if requests:
            table.add_row(name, f"{requests:,}", f"requests, {sectors:,} sectors: {sectors / requests:.2f} a request")
    for name, requests, wavefronts, ideal in (
        ("shared loads", counters.shared_load_requests, counters.shared_load_wavefronts, counters.shared_load_ideal),
        ("shared stores", counters.shared_store_requests, counters.shared_store_wavefronts,
         counters.shared_store_ideal),
        ("  copies' shared side", counters.async_copy_requests, counters.async_copy_wavefronts,
         counters.async_copy_ideal),
    ):  # fmt: skip
        if requests:
            each, best = wavefronts / requests, ideal / requests
            words = f"requests, {wavefronts:,} wavefronts: {each:.2f} a request, at best {best:.2f}"
            table.add_row(name, f"{requests:,}", words)
    local = counters.local_load_bytes + counters.local_store_bytes
    if local:
        table.add_row("local memory", f"{local:,}", "bytes")
    for pipe, count in counters.flops.items():
        table.add_row(f"FLOP by {pipe}", f"{count:,}")
    console().print(table)
