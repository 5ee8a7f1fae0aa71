"""`tilewright profile` shows what kernels wait for and which pipes they keep busy, by Nsight Compute."""

from __future__ import annotations

from typing import Annotated

import typer

from .complete import kernel_argument
from .console import Progress
from .exercise import sizes_of
from .grids import show_result
from .options import Json, read_dtype

EXAMPLE = (
    "Examples:\n\n  tilewright profile f09 f12 cublas\n\n  tilewright profile h13 cublas --size 8192\n\n"
    "  tilewright profile mine.cu f09 cublas --set n=4096\n\n"
    "  tilewright profile a17 flash --size 4096 --causal --json profile.json"
)


def profile(
    names: Annotated[
        list[str],
        kernel_argument(
            "Rungs (f09, f09:tile_k=8), .cu files, cublas, flash (FlashAttention-2) or cudnn.", "KERNEL..."
        ),
    ],
    size: Annotated[int, typer.Option(help="m = n = k, or queries and keys.", min=1)] = 4096,
    dtype: Annotated[
        str | None, typer.Option(help="Type of the operands. Default: the first rung's.", callback=read_dtype)
    ] = None,
    layout: Annotated[str, typer.Option(help="Of a product: A then B, n row-major, t transposed.")] = "nn",
    batch: Annotated[int, typer.Option(help="Of attention.", min=1)] = 4,
    heads: Annotated[int, typer.Option(help="Of attention.", min=1)] = 16,
    d_head: Annotated[int, typer.Option(help="Of attention.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="Attention in which a query sees no later key.")] = False,
    entry: Annotated[str | None, typer.Option(help="Of a .cu file with several kernels: which.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Of a .cu file: a size instead of its `let` line, n=4096.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            help="Time per kernel in which clock and power are read; power is a mean of the last second.", min=1.0
        ),
    ] = 1.0,
    json_file: Json = None,
) -> None:
    """Show stalls, pipes, clock and power of kernels side by side, and the emulator's counts next to the hardware's."""
    from ..lab.profiling import profile as run
    from ..lab.record import json_result

    with json_result(json_file, names) as write:
        with Progress(len(names)) as progress:
            found = run(
                names, size=size, dtype=dtype, layout=layout, batch=batch, heads=heads, d_head=d_head, causal=causal,
                seconds=seconds, entry=entry, sizes=sizes_of(sets), say=progress.show,
            )  # fmt: skip
        show_result(found)
        write(found.records())
