"""`tilewright ladder gemm` climbs the GEMM rungs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InvalidOperand
from ..gpus import DEFAULT_GPU, Gpu, find_gpu
from .climb import begin, keep, show_emulated, why_no_gpu
from .complete import gpu_option
from .console import Progress, console, show
from .options import Dtype, Json, Layout, Precision

if TYPE_CHECKING:
    from ..gemm.problem import GemmProblem
    from ..lab.ladder import Step
    from ..lab.peers import Peer

app = typer.Typer(no_args_is_help=True, help="Climb a ladder: check every rung, then measure or count it.")

EMULATOR_SIZE = 256
GPU_SIZE = 4096


@app.command(
    "gemm",
    epilog="Examples:\n\n  tilewright ladder gemm --rungs f05..f09\n\n"
    "  tilewright ladder gemm --emulator --gpu A100 --size 128 --json climb.json",
)
def gemm(
    size: Annotated[
        int | None, typer.Option(help=f"m = n = k. Default {GPU_SIZE}, on the emulator {EMULATOR_SIZE}.")
    ] = None,
    m: Annotated[int | None, typer.Option("--m", "-m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Length of the sums.")] = None,
    dtype: Dtype = "f32",
    precision: Precision = "ieee",
    layout: Layout = "nn",
    rungs: Annotated[str | None, typer.Option(help="Such as f05..f09 or f01,f12. Default: all.")] = None,
    gpu: Annotated[str, gpu_option("Without a GPU: the one whose limits apply.")] = DEFAULT_GPU,
    emulator: Annotated[bool, typer.Option("--emulator", help="Use the emulator although there is a GPU.")] = False,
    seconds: Annotated[float, typer.Option(help="On a GPU: measured time per rung.", min=0.01)] = 1.0,
    peers: Annotated[str, typer.Option(help="On a GPU, other kernels to compare: names, all, or none.")] = "all",
    json_file: Json = None,
) -> None:
    """Climb the GEMM rungs: each is checked against float64, then timed on a GPU or counted on the emulator."""
    from ..gemm.family import plan_for
    from ..jit.device import device
    from ..lab.ladder import Step
    from ..lab.peers import select_peers
    from ..lab.record import json_result
    from ..lab.select import select_rungs

    others = select_peers(peers)
    named = find_gpu(gpu)
    no_gpu = "asked for" if emulator else why_no_gpu()
    default = size if size is not None else (EMULATOR_SIZE if no_gpu else GPU_SIZE)
    sizes = [default if extent is None else extent for extent in (m, n, k)]
    problem = dense_problem(sizes, layout, dtype, precision)
    where = named if no_gpu else device(0).gpu
    steps = [
        Step(rung, plan_for(problem, where, rung.id).config, problem) for rung in select_rungs(rungs, dtype, precision)
    ]
    with json_result(json_file) as write:
        begin(no_gpu, emulator)
        keep(climb_emulator(steps, named) if no_gpu else climb_gpu(steps, seconds, others), write)


def dense_problem(
    sizes: Sequence[int], layout: str, dtype: str, precision: str = "ieee", out_dtype: str | None = None
) -> GemmProblem:
    """`sizes`: m, n, k, and how many such products if not one."""
    from ..gemm.problem import GemmProblem

    m, n, k, batch = (*sizes, 1)[:4]
    for name, extent in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        if extent < 1:
            raise InvalidOperand(f"{name}={extent}: sizes must be at least 1.")
    return GemmProblem.dense(m, n, k, layout=layout, batch=batch, dtype=dtype, out_dtype=out_dtype, precision=precision)


def _title(problem: GemmProblem) -> str:
    kind = problem.dtype if problem.precision == "ieee" else f"{problem.dtype} as {problem.precision}"
    return f"{kind} {problem.layout.upper()} {problem.m} x {problem.n} x {problem.k}"


def climb_gpu(steps: list[Step], seconds: float, peers: tuple[Peer, ...]) -> list[dict[str, Any]]:
    """Climb on GPU 0 and print the table: rungs, then peers; of peers that are not there, why."""
    from ..lab.climb_gpu import climb_on_gpu
    from ..report.tables import MEASURED, terminal_tables
    from ..report.terminal import legend

    with Progress(len(steps) + len(peers)) as progress:
        records = climb_on_gpu(steps, seconds=seconds, say=progress.show, peers=peers)
    origin, out = records[0]["provenance"], console()
    there = [record for record in records if record["result"]["right"] is not None]
    title = f"{_title(steps[0].problem)} on {origin['gpu']}"
    show(title, terminal_tables(MEASURED, there, out.width), legend([name for name, _ in MEASURED]))
    for record in (r for r in records if r["result"]["right"] is None):
        out.print(f"{record['case']['peer']}: {record['result']['reason']}", style="yellow", markup=False)
    if origin["reference"] is None:
        out.print(f"No column 'of cuBLAS': {origin['no_reference']}", style="yellow", markup=False)
    return records


def climb_emulator(steps: list[Step], gpu: Gpu) -> list[dict[str, Any]]:
    """Climb on the emulator and print the two tables."""
    from ..report.tables import EXECUTED, EXECUTED_TENSOR

    problem = steps[0].problem
    executed = EXECUTED if problem.kind == "f32" else EXECUTED_TENSOR
    return show_emulated(_title(problem), steps, gpu, executed, "emulator-ladder")
