"""`tilewright explain` says what one product would run, and why."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidOperand
from ..gpus import Gpu, find_gpu
from .complete import gpu_option
from .console import console
from .ladder import dense_problem
from .options import Json, Layout, OutDtype, Precision, attention_problems, read_dtype, read_extents

if TYPE_CHECKING:
    from ..attn.explain import AttentionExplanation
    from ..gemm.explain import Explanation
    from ..gemm.problem import GemmProblem

EXAMPLE = (
    "Examples:\n\n  tilewright explain 4096x4096x4096 --dtype bf16\n\n"
    "  tilewright explain --m 4096 --n 4096 --k 64 --layout nt --gpu A100\n\n"
    "  tilewright explain --attention 4x32/8x4096x128 --causal"
)


def explain(
    shape: Annotated[
        str | None, typer.Argument(help="The product as m x n x k, or m x n x k x batch: 4096x4096x64.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="m = n = k; --m, --n and --k replace one each.")] = None,
    m: Annotated[int | None, typer.Option("--m", "-m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Length of the sums.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="Attention instead: batch x heads x length x d_head, as 4x32/8x4096x128.")
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="Attention in which a query sees no later key.")] = False,
    layout: Layout = "nn",
    dtype: Annotated[
        str | None, typer.Option(help="Type of the operands. Default: f32, for attention bf16.", callback=read_dtype)
    ] = None,
    out_dtype: OutDtype = None,
    precision: Precision = "ieee",
    batch: Annotated[int, typer.Option(help="How many such products.")] = 1,
    rung: Annotated[str | None, typer.Option(help="A rung to run instead of the plan's choice.")] = None,
    gpu: Annotated[
        str | None, gpu_option("The GPU to plan for. Default: this machine's; an H200 where it has none.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile it too: registers and spills.")] = False,
    json_file: Json = None,
) -> None:
    """Say which rung and config would run a product, or attention, why, and what was refused."""
    from ..gemm.explain import explain_problem, gpu_of_machine
    from ..gemm.rungs import find_rung
    from ..lab.record import json_result

    if shape is not None:
        if (attention, size, m, n, k, batch) != (None,) * 5 + (1,):
            raise InvalidOperand(f"{shape} names all sizes: omit --size, --m, --n, --k, --batch and --attention.")
        if shape.lower() == "attention":
            raise InvalidOperand("attention is an option, as its sizes are others: --attention 4x32/8x4096x128.")
        m, n, k, batch = [*read_extents(shape, ""), 1][:4]
    of_products = {
        "--size": size is not None, "--m": m is not None, "--n": n is not None, "--k": k is not None,
        "--layout": layout != "nn", "--out-dtype": out_dtype is not None, "--precision": precision != "ieee",
        "--batch": batch != 1,
    }  # fmt: skip
    given = [option for option, is_given in of_products.items() if is_given]
    if attention is not None and given:
        raise InvalidOperand(
            f"{', '.join(given)}: for products only; --attention names all sizes. Omit one or the other."
        )
    if causal and attention is None:
        raise InvalidOperand("--causal applies to attention: give --attention, or omit it.")
    where, source = gpu_of_machine("--gpu") if gpu is None else (find_gpu(gpu), "named with --gpu")
    with json_result(json_file) as write:
        if attention is not None:
            told: Explanation | AttentionExplanation = _of_attention(
                attention, dtype or "bf16", causal, where, source, rung, compiled
            )
        else:
            extents = {name: size if value is None else value for name, value in {"m": m, "n": n, "k": k}.items()}
            problem = _product(extents, batch, layout, dtype or "f32", precision, out_dtype)
            chosen = find_rung(rung).id if rung is not None else None
            told = explain_problem(problem, where, source, chosen, compile=compiled)
        out = console()
        print(told.text(out.width))
        if told.plan is not None:
            legend = textwrap.fill(f"config   {told.plan.config.legend}", out.width, subsequent_indent=" " * 9)
            out.print(legend, style="dim", markup=False)
        write(as_data(told))


def _product(
    extents: dict[str, int | None], batch: int, layout: str, dtype: str, precision: str, out_dtype: str | None
) -> GemmProblem:
    if missing := [name for name, value in extents.items() if value is None]:
        options = ", ".join(f"--{name}" for name in missing)
        raise InvalidOperand(f"the product's extents are not known: {options} missing. Give --size, or all three.")
    return dense_problem([*(int(e or 0) for e in extents.values()), batch], layout, dtype, precision, out_dtype)


def _of_attention(
    words: str, dtype: str, causal: bool, gpu: Gpu, source: str, rung: str | None, compiled: bool
) -> AttentionExplanation:
    from ..attn.explain import explain_attention_problem
    from ..attn.rungs import find_attention_rung

    problems = attention_problems(words, dtype, causal)
    if len(problems) != 1:
        raise InvalidOperand(f"--attention {words!r}: one problem at a time, of one type.")
    chosen = find_attention_rung(rung).id if rung is not None else None
    return explain_attention_problem(problems[0], gpu, source, chosen, compile=compiled)


def as_data(told: Explanation | AttentionExplanation) -> dict[str, Any]:
    """An explanation as plain data for JSON. `text` is what the command prints."""
    plan = told.plan
    data: dict[str, Any] = {
        "problem": None if told.problem is None else asdict(told.problem),
        "gpu": told.gpu.name,
        "arch": told.gpu.arch.name,
        "rung": None if plan is None else plan.rung.id,
        "config": None if plan is None else str(plan.config),
        "why": "" if plan is None else plan.why,
        "source": "" if plan is None else plan.source,
        "runners_up": [] if plan is None else [_named(entry, "words") for entry in plan.runners_up],
        "refused": [] if plan is None else [_named(entry, "reason") for entry in plan.refused],
        "roofline": None if told.roofline is None else asdict(told.roofline),
        "resources": None if told.resources is None else asdict(told.resources),
        "text": str(told),
    }
    names = ("path", "output", "launches", "stages", "grid", "block", "shared_bytes", "workspace_bytes", "copied")
    return data | {name: getattr(told, name) for name in names if hasattr(told, name)}


def _named(entry: tuple[str, Any, str], third: str) -> dict[str, str]:
    rung, config, text = entry
    return {"rung": str(rung), "config": str(config), third: text}
