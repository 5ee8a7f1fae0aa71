"""`tilewright rungs` lists what each rung teaches; `tilewright show` prints one with its source, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU, find_gpu
from .complete import gpu_option, kernel_argument, kernel_option
from .console import console, say
from .options import Json

if TYPE_CHECKING:
    from ..lab.kernel_source import KernelSource, SourceLine


def rungs(json_file: Json = None) -> None:
    """List every rung in climbing order, with what it teaches: of products, attention, its gradients, and groups."""
    from rich.table import Table
    from rich.text import Text

    from ..lab.record import json_result
    from ..lab.rung_table import rungs as find

    with json_result(json_file) as write:
        found = find()
        (grid,) = found.grids()
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in grid.names:
            table.add_column(name, overflow="fold")
        for row in grid.rows:
            table.add_row(*map(Text, row))
        console().print(table)
        write(found.to_dict()["rows"])


def show(
    what: Annotated[
        str,
        kernel_argument("A rung (f09, f09:tile_k=8, a17), or a .cu, .ptx or .cubin file."),
    ],
    diff: Annotated[
        str | None,
        kernel_option("New lines are those that this rung or file has not. Default: the rung below."),
    ] = None,
    sass: Annotated[bool, typer.Option("--sass", help="After each line the machine code that it became.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="After each line the PTX that it became.")] = False,
    line: Annotated[int | None, typer.Option(help="Only this line of the file.")] = None,
    file: Annotated[
        str | None, typer.Option(help="A file that it includes instead of its own: gemm/warp_tiled.cuh.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="tile_k=16,stages=3 changes its default.")] = None,
    entry: Annotated[str, typer.Option(help="Of a file with several kernels: which.")] = "",
    gpu: Annotated[str, gpu_option("With --sass or --ptx: compiled for this GPU.")] = DEFAULT_GPU,
    plain: Annotated[bool, typer.Option("--plain", help="The source alone, as it lies in the file.")] = False,
    json_file: Json = None,
) -> None:
    """Print what a rung teaches and its source: new lines are marked, and what they became can be shown."""
    from ..lab.record import json_result
    from ..lab.rung_source import show as find

    if plain and (sass or ptx or line is not None):
        raise InvalidOperand("--plain prints the source alone: omit --sass, --ptx and --line.")
    with json_result(json_file, [what, diff]) as write:
        found = find(
            what, diff=diff, config=config, gpu=gpu, compiled=sass or ptx, sass=sass, file=file, entry=entry
        )  # fmt: skip
        if line is not None and line not in (known := [each.number for each in found.lines]):
            lines = f"lines in {found.file} are {known[0]} to {known[-1]}" if known else f"{found.file} is empty"
            raise InvalidOperand(f"--line {line}: {found.name}'s {lines}.")
        if plain:
            print(found.text, end="")
        else:
            _print_head(found, what, config, gpu)
            for each in found.lines:
                if line in (None, each.number):
                    _print_line(each, sass, ptx)
            _print_end(found, sass or ptx)
        write(found.to_dict() | {"source": found.text})


def _print_head(found: KernelSource, what: str, config: str | None, gpu: str) -> None:
    """A rung's idea and configs, and where its source lies; a file's name."""
    from ..jit.source import CUDA_ROOT
    from ..lab.rung_table import types_of
    from ..lab.subject import named, read_config

    rung, words = named(what, config)
    if rung is None:
        print(f"source  {found.file}\n")
        return
    say(f"{found.name} ({types_of(rung)}): {found.teaches}")
    say(f"config  {found.config}", indent=8)
    say(f"        {read_config(rung, words, find_gpu(gpu).arch).legend}")
    if found.below:
        say(f"below   {found.below} {found.below_config}".rstrip(), indent=8)
    print(f"source  {CUDA_ROOT / found.file}\n")


def _print_line(line: SourceLine, sass: bool, ptx: bool) -> None:
    """One line of the source, + where it is new, and what it became."""
    print(f"{'+' if line.new else ' '} {line.text}".rstrip())
    if sass and line.sass:
        print("    | SASS: " + ", ".join(f"{group} {count}" for group, count in line.groups))
    for text in line.ptx if ptx else ():
        print(f"    | {text}")
    for text in line.sass if sass else ():
        print(f"    | {text}")


def _print_end(found: KernelSource, compiled: bool) -> None:
    """Print what is new, in words, and where the machine code comes from."""
    new = sum(line.new for line in found.lines)
    print()
    if found.below and not new:
        differ = ": the configs differ" if found.below_config not in ("", found.config) else ""
        say(f"No line is new over {found.below}{differ}.")
    elif found.below:
        say(f"+ {new} of {len(found.lines)} lines are new over {found.below}.")
    if found.uses:
        say("They bring in " + ", ".join(f"{use.name} ({use.file}:{use.line})" for use in found.uses) + ".")
    for name in dict.fromkeys(each.name for each in found.switches):
        places = [f"{each.file}:{each.line}" for each in found.switches if each.name == name]
        say(f"{name} is read in {', '.join(places[:6])}{' ...' * (len(places) > 6)}.")
    if found.by_file:
        say("Instructions by file: " + ", ".join(f"{file} {count}" for file, count in found.by_file) + ".")
    files = [each.file for each in found.switches] + [file for file, _ in found.by_file]
    if compiled and files and not any(line.sass or line.ptx for line in found.lines):
        say(f"No line shown here became instructions by itself. Try --file {files[0]}")


SHOW_EXAMPLE = (
    "Examples:\n\n  tilewright show f09\n\n  tilewright show f09 --sass --line 22\n\n"
    "  tilewright show f09 --diff f05\n\n  tilewright show mine.cu --sass\n\n"
    "  tilewright show f08 --file gemm/warp_tiled.cuh --ptx\n\n  tilewright show a17 --plain"
)
