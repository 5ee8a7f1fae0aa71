"""`tilewright occupancy` says how many blocks of a kernel an SM holds, and what limits them."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import typer

from ..gpus import DEFAULT_GPU
from .grids import numbers, show_grid, show_result
from .options import Json

EXAMPLE = (
    'Examples:\n\n  tilewright occupancy --threads 256 --registers 64 --shared 49152 --gpu "RTX 4090"\n\n'
    "  tilewright occupancy --threads 128,256,512,1024 --gpu sm_89\n\n"
    "  tilewright occupancy --registers 32,64,128 --json -"
)


def occupancy(
    threads: Annotated[str, typer.Option(help="Threads per block; several with commas make a table.")] = "256",
    registers: Annotated[str, typer.Option(help="Registers per thread; several with commas.")] = "32",
    shared: Annotated[str, typer.Option(help="Bytes of shared memory per block; several with commas.")] = "0",
    gpu: Annotated[str, typer.Option(help="A GPU, or an architecture such as sm_89.")] = DEFAULT_GPU,
    json_file: Json = None,
) -> None:
    """Say how many blocks of a kernel an SM holds at once, what limits them, and what would allow more."""
    from ..lab.record import json_result
    from ..lab.residency import occupancy as calculate
    from ..lab.shown import Grid

    with json_result(json_file) as write:
        found = [
            calculate(t, r, s, gpu)
            for t, r, s in product(
                numbers("threads", threads), numbers("registers", registers), numbers("shared", shared)
            )
        ]
        if len(found) == 1:
            show_result(found[0])
        else:
            names = ("threads", "registers", "shared B", "blocks", "warps", "occupancy", "limited by")
            rows = tuple(
                (str(f.threads), str(f.registers), str(f.shared_bytes), str(f.blocks), str(f.warps),
                 f"{f.fraction:.1%}", f.limiter) for f in found
            )  # fmt: skip
            show_grid(Grid(f"{found[0].gpu}: blocks and warps that an SM holds at once", names, rows))
        write([one.to_dict() for one in found])
