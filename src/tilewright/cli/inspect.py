"""`tilewright inspect` shows what a compiled kernel is made of, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU
from .complete import gpu_option, kernel_argument, kernel_option
from .console import Progress
from .grids import show_result
from .options import Json, read_dtype

EXAMPLE = (
    "Examples:\n\n  tilewright inspect f09\n\n  tilewright inspect f08 --diff f09\n\n"
    "  tilewright inspect a09 --config b_c=32 --boards\n\n"
    "  tilewright inspect a04 --config '(128, 64, 64, 4): load_2_2_2_fragments' --config b_r=128 --gpu A100\n\n"
    "  tilewright inspect f11 --space\n\n  tilewright inspect mine.cu --entry scale --threads 256"
)


def inspect(
    what: Annotated[str, kernel_argument("A rung (f09, a17), or a .cu, .ptx or .cubin file.")],
    diff: Annotated[str | None, kernel_option("Another rung or file, shown next to it.")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(help="Of a rung: tile_k=16,stages=3 changes its default. Given more than once: a table."),
    ] = None,
    space: Annotated[
        bool,
        typer.Option("--space", help="A table of every config of the rung's space: minutes where it has hundreds."),
    ] = False,
    gpu: Annotated[str, gpu_option("The GPU that it is compiled for.")] = DEFAULT_GPU,
    boards: Annotated[bool, typer.Option("--boards", help="Occupancy on every known GPU too.")] = False,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a rung's operands. Default: its own type.", callback=read_dtype),
    ] = None,
    d_head: Annotated[int, typer.Option(help="Of an attention rung.")] = 128,
    entry: Annotated[str, typer.Option(help="Of a file with several kernels: which.")] = "",
    diff_entry: Annotated[str, typer.Option(help="Of the file of --diff: which. Default: that of --entry.")] = "",
    threads: Annotated[int, typer.Option(help="Of a file: threads per block, for its occupancy.", min=0)] = 0,
    shared: Annotated[int, typer.Option(help="Of a file: bytes of dynamic shared memory per block.", min=0)] = 0,
    include: Annotated[list[Path] | None, typer.Option(help="Of a file: folder of headers.", exists=True)] = None,
    json_file: Json = None,
) -> None:
    """Show registers, spills, occupancy and machine code of a kernel, of two side by side, or of many configs."""
    from ..lab import inspection
    from ..lab.record import json_result
    from ..lab.shown import Shown

    configs = config or []
    table = space or len(configs) > 1
    if table and (diff or entry or threads or shared or include or boards):
        raise InvalidOperand("a table of configs takes --gpu, --dtype and --d-head only.")
    if space and configs:
        raise InvalidOperand("--space shows every config: omit --config, or omit --space.")
    if diff_entry and not diff:
        raise InvalidOperand("--diff-entry names a kernel of the file of --diff: give that too, or use --entry.")
    with json_result(json_file, [what, diff]) as write:
        found: Shown
        if table:
            with Progress(1.0) as progress:
                found = inspection.inspect_space(
                    what, configs or None, gpu=gpu, dtype=dtype, d_head=d_head, say=progress.show
                )  # fmt: skip
        else:
            options = {
                "config": configs[0] if configs else None, "gpu": gpu, "dtype": dtype, "d_head": d_head, "entry": entry,
                "threads": threads, "shared": shared, "include": tuple(include or ()), "boards": boards,
            }  # fmt: skip
            found = (
                inspection.inspect_diff(what, diff, other_entry=diff_entry, **options)
                if diff
                else inspection.inspect(what, **options)  # type: ignore[arg-type]
            )
        show_result(found)
        write(found.to_dict())
