"""`tilewright occupancy` says how many blocks of a kernel an SM holds, and what limits them."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU
from .complete import gpu_option, kernel_argument
from .grids import numbers, show_grid, show_result
from .options import Json

EXAMPLE = (
    'Examples:\n\n  tilewright occupancy --threads 256 --registers 64 --shared 49152 --gpu "RTX 4090"\n\n'
    "  tilewright occupancy --threads 128,256,512,1024 --gpu sm_89\n\n"
    "  tilewright occupancy f08 f09 f09:tile_k=8\n\n  tilewright occupancy mine.cu --threads 256\n\n"
    "  tilewright occupancy --registers 32,64,128 --json -"
)


def occupancy(
    kernels: Annotated[
        list[str] | None,
        kernel_argument("Kernels: f09, f09:tile_k=8, a .cu, .ptx or .cubin file.", "[RUNG|FILE]..."),
    ] = None,
    threads: Annotated[
        str, typer.Option(help="Threads per block; several with commas make a table. Default: 256, or the file's.")
    ] = "",
    registers: Annotated[str, typer.Option(help="Registers per thread; several with commas. Default: 32.")] = "",
    shared: Annotated[
        str, typer.Option(help="Bytes of shared memory per block; several with commas. Of a file: of its launch.")
    ] = "0",
    entry: Annotated[str, typer.Option(help="Of a file with several kernels: which.")] = "",
    gpu: Annotated[str, gpu_option("A GPU, or an architecture such as sm_89.")] = DEFAULT_GPU,
    json_file: Json = None,
) -> None:
    """Say how many blocks of a kernel an SM holds at once, what limits them, and what would allow more."""
    from ..lab.record import json_result
    from ..lab.residency import occupancy as calculate
    from ..lab.residency import occupancy_of
    from ..lab.shown import Grid
    from ..lab.subject import named

    if kernels and registers:
        raise InvalidOperand("a kernel brings its registers: omit --registers, or omit the kernel.")
    if entry and not kernels:
        raise InvalidOperand("--entry names a kernel of a file: give the file, or omit --entry.")
    with json_result(json_file, kernels or ()) as write:
        of: list[str] = []
        if kernels:
            launches = list(product([entry], numbers("threads", threads or "0"), numbers("shared", shared)))
            rungs = [named(kernel)[0] is not None for kernel in kernels]
            found = []
            for kernel, is_rung in zip(kernels, rungs, strict=True):
                # next to a file, the launch is the file's alone; rungs by themselves refuse it
                for name, t, s in [("", 0, 0)] if is_rung and not all(rungs) else launches:
                    found.append(occupancy_of(kernel, gpu=gpu, entry=name, threads=t, shared=s))
                    of.append(kernel)
        else:
            found = [
                calculate(t, r, s, gpu)
                for t, r, s in product(
                    numbers("threads", threads or "256"), numbers("registers", registers or "32"),
                    numbers("shared", shared),
                )
            ]  # fmt: skip
        if len(found) == 1:
            show_result(found[0])
        else:
            names: tuple[str, ...] = ("threads", "registers", "shared B", "blocks", "warps", "occupancy", "limited by")
            rows: tuple[tuple[str, ...], ...] = tuple(
                (str(f.threads), str(f.registers), str(f.shared_bytes), str(f.blocks), str(f.warps),
                 f"{f.fraction:.1%}", f.limiter) for f in found
            )  # fmt: skip
            if of:
                names, rows = ("", *names), tuple((name, *row) for name, row in zip(of, rows, strict=True))
            show_grid(Grid(f"{found[0].gpu}: blocks and warps that an SM holds at once", names, rows))
        write([one.to_dict() for one in found])
