"""`tilewright emulate`: a person's own kernel on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import EmulatorFault, InvalidOperand
from ..gpus import DEFAULT_GPU
from .console import Progress, console, note
from .options import Json

if TYPE_CHECKING:
    from ..emu import Counters

EXAMPLE = (
    "Example:\n\n  tilewright emulate axpy.cu --entry axpy --grid 4 --block 128 --arg 'f32[512]=random' "
    "--arg 'f32[512]=nan' --arg 'f32=2.5' --arg 'i32=512'"
)


def emulate(
    file: Annotated[Path, typer.Argument(help="CUDA C++ or PTX.", exists=True, dir_okay=False)],
    entry: Annotated[str, typer.Option(help="The kernel's name: scale, or 'scale<float, 4>'.")],
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
    shared_bytes: Annotated[int, typer.Option(help="Dynamic shared memory a block.", min=0)] = 0,
    include: Annotated[list[Path] | None, typer.Option(help="Folder of quoted includes.", exists=True)] = None,
    seed: Annotated[int, typer.Option(help="Seed of 'random'.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="Instructions after which a block counts as endless.", min=1)] = 10**8,
    save_args: Annotated[
        Path | None, typer.Option(help="Write the buffers afterwards to this folder, as argN.npy.", metavar="DIR")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run your own kernel on the emulator: a fault says what, on which line, in which block, warp and lanes."""
    from ..emu import emulate as run
    from ..lab.record import json_result, save_array

    shapes = triple("grid", grid), triple("block", block)
    arguments, fault = list(arg or ()), None
    with json_result(json_file) as write:
        with Progress(1.0) as progress:

            def show(done: int, total: int) -> None:
                progress.show(done / total, f"{done} of {total} blocks")

            try:
                result = run(
                    file, entry, *shapes, arguments, gpu=gpu, shared_bytes=shared_bytes, include=tuple(include or ()),
                    seed=seed, limit=limit, progress=show,
                )  # fmt: skip
            except EmulatorFault as error:
                fault = error
        if fault is not None:
            note(f"FAULT: {fault}")
            write({"fault": fault.hazard.to_dict()})
            raise typer.Exit(1)
        if result.printed:
            print(result.printed, end="" if result.printed.endswith("\n") else "\n")
        print_counters(result.counters)
        if save_args is not None:
            places = [number for number, text in enumerate(arguments) if "[" in text.partition("=")[0]]
            for number, array in zip(places, result.arrays, strict=True):
                save_array(save_args / f"arg{number}.npy", array)
            note(f"{len(places)} arrays in {save_args}")
        write({"fault": None, "counters": result.counters.to_dict()})


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
        table.add_row(f"  {kind}", f"{count:,}", f"{count / counters.threads:.4g} a thread")
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
    print("No fault.")
    console().print(table)
