"""`tilewright banks` shows which banks of shared memory a warp's access meets, before and after a swizzle."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU
from .complete import gpu_option, kernel_argument
from .console import Progress
from .grids import numbers, show_result
from .options import Json

EXAMPLE = (
    "Examples:\n\n  tilewright banks --stride 2\n\n"
    "  tilewright banks --down 32 --pitch 32 --swizzle 5,0,5\n\n"
    "  tilewright banks --access matrix --item 2 --width 8 --stride 8 --down 16 --pitch 64 --swizzle 3,3,3\n\n"
    '  tilewright banks --element "i % 8 * 32 + i / 8"\n\n'
    "  tilewright banks --strides 8\n\n  tilewright banks h08 h09"
)


def banks(
    kernels: Annotated[
        list[str] | None,
        kernel_argument("Kernels instead: f09, f09:tile_k=8, a .cu or .ptx file: each of its lines.", "[RUNG|FILE]..."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Elements from one lane's to the next along a line. Default: the width.")
    ] = None,
    element: Annotated[str | None, typer.Option(help="Instead: the element of lane i, such as i ^ (i >> 3).")] = None,
    item: Annotated[int, typer.Option(help="Bytes per element.")] = 4,
    width: Annotated[int, typer.Option(help="Elements per lane, 16 bytes at most.")] = 1,
    down: Annotated[int, typer.Option(help="So many lanes go down lines, the others along them.")] = 1,
    pitch: Annotated[int | None, typer.Option(help="Elements from line to line.")] = None,
    access: Annotated[str, typer.Option(help="load, store, matrix (ldmatrix) or copy (cp.async).")] = "load",
    swizzle: Annotated[str | None, typer.Option(help="bits,base,shift of a swizzle of the elements.")] = None,
    strides: Annotated[
        int | None, typer.Option(help="Instead: an xor swizzle of so many columns, as signed strides.")
    ] = None,
    gpu: Annotated[str, gpu_option("Of a kernel: the GPU that it is compiled for.")] = DEFAULT_GPU,
    json_file: Json = None,
) -> None:
    """Show banks and wavefronts of a warp's access, before and after a swizzle; or of a kernel's lines."""
    from ..lab.bank_map import banks as calculate
    from ..lab.bank_map import swizzle_strides
    from ..lab.expression import whole
    from ..lab.record import json_result
    from ..lab.shown import Shown

    along = (stride, down, pitch)
    other = (*along, element, item, width, access, swizzle) != (None, 1, None, None, 4, 1, "load", None)
    if kernels and (other or strides is not None):
        raise InvalidOperand("a kernel brings its accesses: omit the options of an access.")
    if strides is not None and other:
        raise InvalidOperand("--strides shows a table of its own: omit the options of an access.")
    if element is not None and along != (None, 1, None):
        raise InvalidOperand("--element names each lane's element: omit --stride, --down and --pitch.")
    with json_result(json_file, kernels or ()) as write:
        if kernels:
            from ..lab.bank_lines import banks_of

            tables = []
            with Progress(len(kernels)) as progress:
                for number, kernel in enumerate(kernels):
                    progress.show(number, kernel)
                    tables.append(banks_of(kernel, gpu=gpu))
            for number, table in enumerate(tables):
                if number:
                    print()
                show_result(table)
            write([table.to_dict() for table in tables])
            return
        found: Shown
        if strides is not None:
            found = swizzle_strides(strides)
        else:
            parts = None if swizzle is None else numbers("swizzle", swizzle)
            lanes = None if element is None else [whole(element, {"i": lane}) for lane in range(32)]
            found = calculate(
                stride, item=item, width=width, pitch=pitch, down=down, access=access, swizzle=parts, offsets=lanes
            )  # fmt: skip
        show_result(found)
        write(found.to_dict())
