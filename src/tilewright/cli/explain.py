"""`tilewright explain` says what one product would run, and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arch import DEFAULT_GPU, find_gpu
from ..errors import InvalidOperand
from .console import console
from .ladder import dense_problem
from .options import Dtype, Json, Layout, OutDtype, Precision

if TYPE_CHECKING:
    from ..gemm.explain import Explanation

EXAMPLE = (
    "Examples:\n\n  tilewright explain --size 4096 --dtype bf16\n\n"
    "  tilewright explain --m 4096 --n 4096 --k 64 --layout nt --gpu A100"
)


def explain(
    size: Annotated[int | None, typer.Option(help="m = n = k; --m, --n and --k replace one each.")] = None,
    m: Annotated[int | None, typer.Option("--m", "-m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Length of the sums.")] = None,
    layout: Layout = "nn",
    dtype: Dtype = "f32",
    out_dtype: OutDtype = None,
    precision: Precision = "ieee",
    batch: Annotated[int, typer.Option(help="How many such products.")] = 1,
    rung: Annotated[str | None, typer.Option(help="A rung to run instead of the plan's choice.")] = None,
    gpu: Annotated[str, typer.Option(help="The GPU to plan for.")] = DEFAULT_GPU,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile it too: registers and spills.")] = False,
    json_file: Json = None,
) -> None:
    """Say which rung and config would run a product, why, and what was refused."""
    from ..gemm.explain import explain_problem
    from ..gemm.rungs.simt import find_rung
    from ..lab.record import json_result
    from ..report.terminal import config_legend

    given = {"m": m, "n": n, "k": k}
    extents = {name: size if value is None else value for name, value in given.items()}
    if missing := [name for name, value in extents.items() if value is None]:
        options = ", ".join(f"--{name}" for name in missing)
        raise InvalidOperand(f"the product's extents are not known: {options} missing. Give --size, or all three.")
    chosen = find_rung(rung).id if rung is not None else None
    problem = dense_problem([*(int(e or 0) for e in extents.values()), batch], layout, dtype, precision, out_dtype)
    with json_result(json_file) as write:
        told = explain_problem(problem, find_gpu(gpu), "named with --gpu", chosen, compile=compiled)
        out = console()
        print(told.text(out.width))
        if told.plan is not None:
            out.print(f"config   {config_legend(told.plan.config)}", style="dim", markup=False)
        write(as_data(told))


def as_data(told: Explanation) -> dict[str, Any]:
    """An explanation as plain data for JSON. `text` is what the command prints."""
    plan = told.plan
    return {
        "problem": asdict(told.problem) | {"epilogue": None},
        "gpu": told.gpu.name,
        "arch": told.gpu.arch.name,
        "rung": None if plan is None else plan.rung.id,
        "config": None if plan is None else str(plan.config),
        "why": "" if plan is None else plan.why,
        "source": "" if plan is None else plan.source,
        "runners_up": [] if plan is None else [_named(entry, "words") for entry in plan.runners_up],
        "refused": [] if plan is None else [_named(entry, "reason") for entry in plan.refused],
        "path": told.path,
        "stores": told.output,
        "launches": told.launches,
        "stages": list(told.stages),
        "grid": list(told.grid),
        "block": list(told.block),
        "shared_bytes": told.shared_bytes,
        "workspace_bytes": told.workspace_bytes,
        "roofline": asdict(told.roofline),
        "resources": None if told.resources is None else asdict(told.resources),
        "text": str(told),
    }


def _named(entry: tuple[str, Any, str], third: str) -> dict[str, str]:
    rung, config, text = entry
    return {"rung": str(rung), "config": str(config), third: text}
