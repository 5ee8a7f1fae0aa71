"""`tilewright ladder attention` climbs the attention rungs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..gpus import DEFAULT_GPU, find_gpu
from .climb import begin, keep, show_emulated, why_no_gpu
from .complete import gpu_option
from .console import Progress, console, show
from .options import Json, read_dtype

if TYPE_CHECKING:
    from ..attn.problem import AttentionProblem
    from ..gpus import Gpu
    from ..lab.attention import AttentionStep

EXAMPLE = (
    "Examples:\n\n  tilewright ladder attention --rungs a01..a04 --causal\n\n"
    "  tilewright ladder attention --emulator --gpu A100 --seqlen 200 --d-head 64 --json climb.json"
)
EMULATOR_SIZE = {"seqlen": 256, "heads": 1, "batch": 1}
GPU_SIZE = {"seqlen": 4096, "heads": 16, "batch": 16}


def _default(name: str) -> str:
    return f"Default {GPU_SIZE[name]}, on the emulator {EMULATOR_SIZE[name]}."


def attention(
    seqlen: Annotated[int | None, typer.Option(help=f"Queries and keys of a head. {_default('seqlen')}")] = None,
    heads: Annotated[int | None, typer.Option(help=f"Heads. {_default('heads')}")] = None,
    batch: Annotated[int | None, typer.Option(help=f"Batch entries. {_default('batch')}")] = None,
    d_head: Annotated[int, typer.Option(help="Elements of a row: 32, 64, 96, 128, 192 or 256.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="A query sees no later key.")] = False,
    dtype: Annotated[str, typer.Option(help="bf16 or f16.", callback=read_dtype)] = "bf16",
    rungs: Annotated[str | None, typer.Option(help="Such as a05..a09 or a01,a16. Default: all.")] = None,
    gpu: Annotated[str, gpu_option("Without a GPU: the one whose limits apply.")] = DEFAULT_GPU,
    emulator: Annotated[bool, typer.Option("--emulator", help="Use the emulator although there is a GPU.")] = False,
    seconds: Annotated[float, typer.Option(help="On a GPU: measured time per rung and reference.", min=0.01)] = 1.0,
    json_file: Json = None,
) -> None:
    """Climb the attention rungs: each is checked against float64, then timed on a GPU or counted on the emulator."""
    from ..attn.problem import AttentionProblem
    from ..lab.attention import AttentionStep, select_attention_rungs
    from ..lab.record import json_result

    chosen, named = select_attention_rungs(rungs), find_gpu(gpu)
    no_gpu = "asked for" if emulator else why_no_gpu()
    sizes = EMULATOR_SIZE if no_gpu else GPU_SIZE
    given = {"seqlen": seqlen, "heads": heads, "batch": batch}
    extents = {name: sizes[name] if value is None else value for name, value in given.items()}
    problem = AttentionProblem.dense(
        extents["batch"], extents["heads"], extents["seqlen"], extents["seqlen"], d_head, dtype=dtype, is_causal=causal
    )
    with json_result(json_file) as write:
        begin(no_gpu, emulator)
        if no_gpu:
            arch = named.arch
        else:
            from ..jit.device import device

            arch = device(0).arch
        steps = [AttentionStep(rung, rung.default(problem, arch), problem) for rung in chosen]
        keep(_climb_emulator(steps, named) if no_gpu else _climb_gpu(steps, seconds), write)


def _title(problem: AttentionProblem) -> str:
    from ..plan.explained import counted

    return (
        f"attention {problem.dtype}{' causal' if problem.is_causal else ''}, batch {problem.batch}, "
        f"{counted(problem.heads_q, 'head')}, {problem.seq_q} x {problem.seq_k}, d_head {problem.d_head}"
    )


def _climb_gpu(steps: list[AttentionStep], seconds: float) -> list[dict[str, Any]]:
    """Climb on GPU 0 and print the table."""
    from ..lab.attention_gpu import climb_attention_on_gpu
    from ..report.attention import MEASURED
    from ..report.tables import terminal_tables
    from ..report.terminal import legend

    with Progress(len(steps)) as progress:
        records = climb_attention_on_gpu(steps, seconds=seconds, say=progress.show)
    origin, out = records[0]["provenance"], console()
    title = f"{_title(steps[0].problem)} on {origin['gpu']}"
    tables = terminal_tables(MEASURED, records, out.width)
    show(title, tables, legend([name for name, _ in MEASURED]))
    if origin["reference"] is None:
        out.print(f"No columns 'of FA2' and 'of cuDNN': {origin['no_reference']}", style="yellow", markup=False)
    return records


def _climb_emulator(steps: list[AttentionStep], gpu: Gpu) -> list[dict[str, Any]]:
    """Climb on the emulator and print the two tables."""
    from ..report.tables import EXECUTED_TENSOR

    return show_emulated(_title(steps[0].problem), steps, gpu, EXECUTED_TENSOR, "emulator-attention")
