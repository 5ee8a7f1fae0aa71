"""Options that several commands share, and how their words are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidOperand

if TYPE_CHECKING:
    from ..attn.problem import AttentionProblem

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


def read_extents(shape: str, where: str) -> list[int]:
    """[m, n, k] or [m, n, k, batch] of words such as 4096x4096x64. Raises InvalidOperand, which begins with `where`."""
    if not re.fullmatch(r"\d{1,15}(x\d{1,15}){2,3}", shape.strip().lower(), re.ASCII):
        raise InvalidOperand(
            f"{where}{shape!r} is not m x n x k, or m x n x k x batch. Write 4096x4096x4096, or 512x512x64x48 for a "
            "batch of 48."
        )
    return [int(extent) for extent in shape.strip().lower().split("x")]


def attention_problems(shapes: str, dtypes: str, causal: bool) -> list[AttentionProblem]:
    """The problems that words such as 4x32/8x4096x128 name, of each type. Raises InvalidOperand."""
    from ..attn.config import D_HEADS
    from ..attn.problem import AttentionProblem

    found = []
    for shape in filter(None, (part.strip() for part in shapes.split(","))):
        match = re.fullmatch(r"(\d{1,15})x(\d{1,15})(?:/(\d{1,15}))?x(\d{1,15})x(\d{1,15})", shape.lower(), re.ASCII)
        if match is None:
            raise InvalidOperand(
                f"--attention: {shape!r} is not batch x heads x length x d_head. Write 4x16x4096x128, or "
                "4x32/8x4096x128 for 32 heads on 8 of keys."
            )
        batch, heads, keys, length, d_head = (int(number) if number else None for number in match.groups())
        assert batch is not None
        assert heads is not None
        assert length is not None
        assert d_head is not None
        if keys == 0 or 0 in (batch, heads, length) or d_head not in D_HEADS:
            known = ", ".join(map(str, D_HEADS))
            raise InvalidOperand(f"--attention: {shape!r}: sizes must be at least 1, and d_head one of {known}.")
        found += [
            AttentionProblem.dense(
                batch, heads, length, length, d_head, heads_kv=keys, dtype=d.strip(), is_causal=causal
            )
            for d in dtypes.split(",")
        ]  # fmt: skip
    return found
