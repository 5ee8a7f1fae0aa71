"""`tilewright emulate`: a person's own kernel on the emulator."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU
from .complete import gpu_option
from .options import Json
from .watch import run_on_changes

EXAMPLE = (
    "Example:\n\n  tilewright emulate axpy.cu --entry axpy --grid 4 --block 128 --arg 'x=f32[512]=random' "
    "--arg 'y=f32[512]=zeros' --arg a=2.5 --arg n=512 --reference 'y = a * x + y'\n\n"
    "Exit status: 0 for a kernel that is right, 1 for a fault or a wrong result, 2 for a launch that is refused."
)


def emulate(
    file: Annotated[Path, typer.Argument(help="CUDA C++ or PTX.", exists=True, dir_okay=False)],
    entry: Annotated[
        str, typer.Option(help="The kernel's name: scale, or 'scale<float, 4>'. Default: the file's only one.")
    ] = "",
    grid: Annotated[str, typer.Option(help="Blocks: x or x,y or x,y,z.")] = "1",
    block: Annotated[str, typer.Option(help="Threads per block: x or x,y or x,y,z.")] = "32",
    cluster: Annotated[str | None, typer.Option(help="Blocks per cluster: x or x,y or x,y,z.")] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter, in order or by name: 'f32[4,8]=random', 1024, 'x=f32[4,8]=random', n=1024, x=FILE.npy, "
            "x=FILE.npz:NAME, x=FILE.safetensors:NAME. Fills: zeros, ones, arange, random, nan, FILE.npy; empty: to "
            "read it before it is written is a fault."
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
    gpu: Annotated[str, gpu_option("The GPU whose limits apply.")] = DEFAULT_GPU,
    shared_bytes: Annotated[int, typer.Option(help="Dynamic shared memory per block.", min=0)] = 0,
    include: Annotated[list[Path] | None, typer.Option(help="Folder of headers.", exists=True)] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the compiler: --option=--std=c++20, --option=-DTILE=32.")
    ] = None,
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
    from ..emu.own_kernel import load
    from ..emu.reference import Reference
    from ..lab.record import check_reports, check_writable, json_result, make_folder, write_text
    from ..lab.subject import only_kernel
    from ..report.ci import junit, sarif
    from .emulated import Given, outcome_of, print_outcome

    options: dict[str, Any] = {
        "grid": triple("grid", grid), "block": triple("block", block), "gpu": gpu, "shared_bytes": shared_bytes,
        "include": tuple(include or ()), "options": tuple(option or ()), "seed": seed, "limit": limit,
        "cluster": None if cluster is None else triple("cluster", cluster),
        "constants": dict(_named(text, "--constant") for text in constant or ()),
        "hazards": "collect" if every else "raise", "order": order, "red_zones": red_zones, "strict": strict,
        "jobs": jobs, "explore": int(explore or 0) if re.fullmatch("[0-9]{0,9}", explore or "") else explore,
    }  # fmt: skip
    references = [Reference.of(text) for text in reference or ()]
    arrays = [Path(text) for one in arg or () for text in re.findall(r"[^=]+\.(?:np[yz]|safetensors)", one)]
    read = [file, *(Path(one.text) for one in references if not one.buffer), *arrays]
    outputs = check_reports((sarif_file, junit_file), read)

    def once() -> None:
        given = Given.of(arg or (), seed)
        started = time.perf_counter()
        with json_result(json_file, [*read, *outputs]) as write:
            name = entry or only_kernel(file)
            names = given.named_by(load(file, name, gpu, options["include"], options["options"]).names)
            if save_args is not None:
                make_folder(save_args)
                for each in names.saved_to(save_args):
                    check_writable(each, [*read, *outputs, json_file])
            outcome = outcome_of(file, name, given.values, options, names, references, tolerance)
            if sarif_file is not None:
                write_text(sarif_file, sarif(file, [*outcome.hazards, *outcome.allowed], outcome.wrong))
            if junit_file is not None:
                seconds = time.perf_counter() - started
                write_text(junit_file, junit(file, name, outcome.faults, outcome.wrong, seconds))
            print_outcome(outcome, names, is_judged=bool(references), folder=save_args)
            write(outcome.to_dict())
            if not outcome.is_right:
                raise typer.Exit(1)

    if not watch:
        once()
        return
    run_on_changes(once, [*read, *options["include"]])


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
