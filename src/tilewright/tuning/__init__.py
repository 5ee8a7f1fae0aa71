"""The autotuner: which kernel is fastest for a problem on this GPU, found by measuring, kept for later.

run.py      one problem after the other; what tuning must know of a family (products.py, attention.py)
build.py    compiling candidates in processes of their own (worker.py)
measure.py  running candidates on a GPU; of each family product_trial.py (inputs.py, fused.py), attention_trial.py
verify.py   is a candidate right?
search.py   successive halving      race.py   candidates timed side by side
duel.py     the best candidate against the plan that would run without it

Each family says which candidates are worth compiling (gemm/space.py, attn/space.py). The room plan keeps the results
and makes plans of them (plan/store.py, plan/entries.py, plan/choose.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InvalidOperand, suggests

if TYPE_CHECKING:
    from .run import Tuned


def tune(
    a: Any,
    b: Any,
    *,
    out_dtype: Any = None,
    precision: str = "ieee",
    bias: Any = None,
    activation: str | None = None,
    residual: Any = None,
    row_scale: Any = None,
    col_scale: Any = None,
    epilogue: Callable[..., Any] | None = None,
    rungs: str | Sequence[str] | None = None,
    seconds: float = 60.0,
    jobs: int | None = None,
    again: bool = False,
    **operands: Any,
) -> Tuned:
    """Measure which kernel multiplies a and b fastest on their GPU; `matmul` and `explain` use it from then on.

    a, b: as for `tilewright.matmul`. Their shapes, strides, alignment, dtypes and GPU count; their values are not read.
        NumPy arrays stand for the first GPU.
    out_dtype, precision: as for `matmul`.
    bias, activation, residual, row_scale, col_scale, epilogue, **operands: as for `matmul`. The product is measured
        with this epilogue, on random normal numbers. The result serves all products of the class that have any
        epilogue.
    rungs: the ids of the rungs to try, as a list or as "f11,f12"; by default all that multiply the dtype with that
        precision.
    seconds: about how long to measure at most, after compiling. Most problems take a second or two.
    jobs: the number of processes that compile; by default the number of cores less one.
    again: measure even if the store has the result for this class of problems.

    Returns a Tuned: `.entry.best` (rung, config, ms), `.entry.timed` (all, the fastest first), `.entry.failed` (with
    kind and reason), `.space` (what was pruned, and why). Raises InvalidOperand as matmul does, and for an empty
    result; InvalidEpilogue as matmul does, and for an epilogue that is not finite on random normal numbers;
    ConfigRejected for an unknown rung; DeviceError without a GPU, on the emulator, or inside a CUDA graph capture.
    """
    from ..gemm.call import Options, read_call
    from ..gemm.fusion import request
    from ..gemm.rungs import find_rung
    from ..gemm.shapes import GRID_BATCH
    from .products import tune_problems

    chosen = [find_rung(name) for name in _ids(rungs)] if rungs else None
    asked = request(epilogue, activation, bias, residual, row_scale, col_scale, operands)
    call = read_call(a, b, None, 1.0, None, None, Options(out_dtype, precision=precision), asked)
    problem = call.product.problem
    if 0 in (problem.m, problem.n, problem.k, problem.batch):
        raise InvalidOperand(f"a {call.a.shape} @ b {call.b.shape}: nothing is multiplied, so nothing can be tuned.")
    ordinal = call.a.device or 0
    if call.a.device is None:
        _refuse_without_gpu()
    else:
        _refuse_capture(call.a.stream or 0, ordinal)
    problem = replace(problem, batch=min(problem.batch, GRID_BATCH))
    (tuned,) = tune_problems([problem], ordinal=ordinal, rungs=chosen, seconds=seconds, jobs=jobs, again=again)
    return tuned


@suggests
def tune_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    is_causal: bool = False,
    window: tuple[int, int] | None = None,
    layout: str = "bhsd",
    rungs: str | Sequence[str] | None = None,
    seconds: float = 60.0,
    jobs: int | None = None,
    again: bool = False,
) -> Tuned:
    """Measure which kernel is fastest for attention of q, k and v; `attention` uses it from then on.

    q, k, v, is_causal, window, layout: as for `tilewright.attention`. Only shapes, dtype and GPU of the arrays count;
        they are taken to be dense. Calls with other options (score, return_lse, packed lengths) use the result where
        they can.
    rungs, seconds, jobs, again: as for `tune`.

    Returns a Tuned, as `tune` does. Raises InvalidOperand as attention does, and for an empty result; ConfigRejected
    for an unknown rung; DeviceError without a GPU, on the emulator, or inside a CUDA graph capture.
    """
    from ..attn.call import read_attention
    from ..attn.rungs import find_attention_rung
    from .attention import tune_attention_problems

    chosen = [find_attention_rung(name) for name in _ids(rungs)] if rungs else None
    call = read_attention(q, k, v, is_causal=is_causal, window=window, layout=layout)
    problem = call.problem
    if problem is None or problem.seq_k == 0:
        raise InvalidOperand(f"q {call.q.shape}, k {call.k.shape}: nothing is multiplied, so nothing can be tuned.")
    ordinal = call.q.device or 0
    if call.q.device is None:
        _refuse_without_gpu()
    else:
        _refuse_capture(call.q.stream or 0, ordinal)
    (tuned,) = tune_attention_problems(
        [problem], ordinal=ordinal, rungs=chosen, seconds=seconds, jobs=jobs, again=again
    )  # fmt: skip
    return tuned


def _ids(rungs: str | Sequence[str]) -> Sequence[str]:
    return [name.strip() for name in rungs.split(",")] if isinstance(rungs, str) else rungs


def _refuse_without_gpu() -> None:
    """Host arrays stand for the first GPU: there must be one, and the emulator is none."""
    from ..jit.device import gpu_available
    from ..jit.launch import current_executor

    if current_executor() is not None:
        raise DeviceError(
            "tuning needs a GPU: the emulator knows what a kernel does, but no times. Leave its `with` block."
        )
    if not gpu_available():
        raise DeviceError(
            "tuning measures on a CUDA GPU, and no usable one was found; the emulator knows no times. Tune where there "
            "is one: `tilewright tune --export FILE` there and `--merge FILE` here bring the results. "
            "`tilewright doctor` says what was looked for."
        )


def _refuse_capture(stream: int, ordinal: int) -> None:
    from ..jit.device import bound_to, check, driver

    with bound_to(ordinal):
        status = check(driver().cuStreamIsCapturing(stream), "asking whether a stream is being captured")
    if int(status):
        raise DeviceError(
            "tune was called while a CUDA graph is captured on the arrays' stream: compiling and measuring cannot be "
            "part of a graph. Tune before the capture; plans then use the result."
        )


__all__ = ["tune", "tune_attention"]
