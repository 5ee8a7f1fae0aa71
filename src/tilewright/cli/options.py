"""Options that several commands share, and how their words are read."""

from __future__ import annotations

from typing import Annotated

import typer

_WRITTEN = {"fp32": "f32", "float": "f32", "fp16": "f16", "half": "f16"}
"""Names of types that people write, besides those that matmul takes."""


def read_dtype(text: str | None) -> str | None:
    """The short name of a type: f32 for float32 and fp32, f16 for float16, fp16 and half, bf16 for bfloat16.

    Several with commas stay several. A name that is not one of these is left to the command, which says what it takes.
    """
    from ..arrays.dtypes import SHORT_NAMES

    if text is None:
        return None
    known = SHORT_NAMES | _WRITTEN
    return ",".join(known.get(part.strip().lower(), part.strip()) for part in text.split(","))


Layout = Annotated[str, typer.Option(help="A then B: n row-major, t transposed in memory.")]
Dtype = Annotated[str, typer.Option(help="Type of the operands: f32, f16 or bf16.", callback=read_dtype)]
OutDtype = Annotated[str | None, typer.Option(help="Type of the result. Default: the operands'.", callback=read_dtype)]
Precision = Annotated[str, typer.Option(help="For f32 operands: ieee, tf32 or fp32x3.")]
Json = Annotated[
    str | None,
    typer.Option("--json", help="Write the result as JSON to this file; - is standard output.", metavar="FILE"),
]
