"""`tilewright roofline` says what a GPU can give at an arithmetic intensity, and how near measured rungs come."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU
from .complete import gpu_option, kernel_argument
from .grids import extents, show_result
from .options import Json, read_dtype

EXAMPLE = (
    "Examples:\n\n  tilewright roofline --gpu H200 --shape 4096x4096x4096 --tile 128x256\n\n"
    '  tilewright roofline --gpu "RTX 5070 Ti" --intensity 0.25,7.94\n\n'
    "  tilewright roofline --records fp32-ladder\n\n  tilewright new product.cu --kind matmul\n\n"
    "  tilewright roofline f05 f12 product.cu"
)


def roofline(
    kernels: Annotated[
        list[str] | None,
        kernel_argument("Kernels: f09, f09:tile_k=8, a .cu or .ptx file.", "[RUNG|FILE]..."),
    ] = None,
    gpu: Annotated[str, gpu_option("The GPU.")] = DEFAULT_GPU,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="f32, f16, bf16, fp8; or of f32 operands tf32 or fp32x3. Default: the first rung's, or f32.",
            callback=read_dtype,
        ),
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="A product, m x n x k: 4096x4096x64. Of rungs: instead of 4096 cubed.")
    ] = None,
    tile: Annotated[str | None, typer.Option(help="With --shape: a block's part of it, m x n: 128x256.")] = None,
    intensity: Annotated[str | None, typer.Option(help="FLOP per byte; several with commas.")] = None,
    records: Annotated[
        str | None, typer.Option(help="A suite (fp32-ladder) or a file of records: what was measured.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Say what a GPU can give at an intensity, for a product, or compared with measured rungs."""
    from ..lab.record import json_result
    from ..lab.rooflines import roofline as calculate

    for word in kernels or ():
        if re.fullmatch(r"\d+x\d+x\d+", word):
            raise InvalidOperand(f"{word} is a shape, not a kernel. Write --shape {word}.")
    try:
        points = [float(part) for part in intensity.split(",")] if intensity else []
    except ValueError:
        raise InvalidOperand(
            f"--intensity {intensity!r} is not numbers with commas between, such as 0.25,7.94."
        ) from None
    with json_result(json_file, [*(kernels or ()), records]) as write:
        found = calculate(
            gpu, dtype, intensity=points, records=records, kernels=kernels or (),
            shape=None if shape is None else extents("shape", shape, 3),
            tile=None if tile is None else extents("tile", tile, 2),
        )  # fmt: skip
        show_result(found)
        write(found.to_dict())
