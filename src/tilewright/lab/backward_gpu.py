"""The gradients of attention on a GPU: checked, then timed in pairs with torch's FlashAttention-2 and cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.dtypes import DTYPE_NAMES
from ..attn.attention import attention
from ..attn.backward import attention_backward
from ..attn.backward_plan import plan_backward
from ..attn.backward_problem import BackwardProblem
from ..attn.problem import AttentionProblem
from ..errors import MissingDependency, install
from ..gpus import Gpu
from ..jit.device import device
from ..jit.timing import Start
from .backward_check import backward_reference, check_backward
from .bench import time_pairs
from .climb_gpu import driver_version
from .ladder import Progress, silent, verdict_dict
from .precompile import Compile, of_gradients
from .record import provenance
from .reference import torch_stream

_CHECKED, _TILE = 384, 128
"""Gradients are judged against float64 at lengths cut to _CHECKED and what is beyond whole tiles, of one batch entry:
by the kernels that are timed, which are compiled for whole tiles or for others."""


class Tensors:
    """One set of operands: grad, q, k, v, and attention's result and LSE."""

    def __init__(self, torch: Any, case: dict[str, Any], batch: int, heads: int, heads_kv: int, seq: int) -> None:
        d, kind = case["d_head"], getattr(torch, DTYPE_NAMES[case.get("dtype", "bf16")])
        d_v = case.get("d_v", d)
        shapes = (
            (batch, heads, seq, d_v),
            (batch, heads, seq, d),
            (batch, heads_kv, seq, d),
            (batch, heads_kv, seq, d_v),
        )
        self.grad, self.q, self.k, self.v = (torch.randn(shape, device="cuda").to(kind) for shape in shapes)
        self.is_causal = bool(case.get("causal", False))
        self.out, self.lse = attention(self.q, self.k, self.v, is_causal=self.is_causal, return_lse=True)

    def ours(self, **named: Any) -> tuple[Any, Any, Any]:
        """(dq, dk, dv) by a rung and config, or as the plan chooses."""
        return attention_backward(
            self.grad, self.q, self.k, self.v, self.out, self.lse, is_causal=self.is_causal, **named
        )


def flash(torch: Any, x: Tensors) -> Callable[[], Any]:
    """FlashAttention-2's gradients, as torch has it."""
    operators, causal = torch.ops.aten, x.is_causal
    found = operators._scaled_dot_product_flash_attention(x.q, x.k, x.v, 0.0, causal, False)
    return lambda: operators._scaled_dot_product_flash_attention_backward(
        x.grad, x.q, x.k, x.v, *found[:6], 0.0, causal, found[6], found[7]
    )


def cudnn(torch: Any, x: Tensors) -> Callable[[], Any]:
    """cuDNN's gradients, as torch has them."""
    operators, causal = torch.ops.aten, x.is_causal
    found = operators._scaled_dot_product_cudnn_attention(x.q, x.k, x.v, None, True, 0.0, causal, False)
    return lambda: operators._scaled_dot_product_cudnn_attention_backward(
        x.grad, x.q, x.k, x.v, found[0], found[1], found[6], found[7], None, *found[2:6], 0.0, causal
    )


REFERENCES = {"flash": flash, "cudnn": cudnn}


def backward_records(
    suite: str, cases: list[dict[str, Any]], *, seconds: float = 1.0, say: Progress = silent, ordinal: int = 0
) -> list[dict[str, Any]]:
    """One record per case and rung: the check, then times. `ratio` is FlashAttention-2's time over ours, `ratio_cudnn`
    cuDNN's, each paired. `held_bytes`: what a call allocates at most, results included. What is wrong is not timed.

    A case has batch, heads, seq, d_head, causal, heads_kv where it differs, and rungs: ids, each with a config where
    wanted ("b04 d256: keys ..."), or "" for the plan's choice and "deterministic" for that with the same bits.
    Raises MissingDependency without torch.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"gradients are timed on torch's tensors: {install('bench')}") from error
    where = device(ordinal)
    origin = provenance(
        machine_kind="gpu", gpu=where.name, arch=where.arch.name, driver=driver_version(),
        reference="FlashAttention-2 and cuDNN through torch", reference_version=f"torch {torch.__version__}",
    )  # fmt: skip
    records: list[dict[str, Any]] = []
    for case in cases:
        for name in names_of(case):
            say(len(records), name or "planned")
            records.append(_record(torch, suite, case, _named(name), seconds, ordinal) | {"provenance": origin})
    return records


def names_of(case: dict[str, Any]) -> list[str]:
    """The rungs of a case."""
    return list(case.get("rungs", ["", "deterministic"]))


def _named(name: str) -> dict[str, Any]:
    """Return what one of them means as options of plan_backward and attention_backward."""
    if name == "deterministic":
        return {"deterministic": True}
    rung, _, config = name.partition(" ")
    return {"rung": rung or None, "config": config or None}


def kernels(cases: list[dict[str, Any]], gpu: Gpu) -> Iterator[Compile]:
    """Return what compiles what the cases launch: see lab/precompile.py."""
    for case in cases:
        heads, heads_kv, seq = case["heads"], case.get("heads_kv", case["heads"]), case["seq"]
        whole = (case["batch"], heads, heads_kv, seq)
        for sizes in (whole, _small_sizes(heads, heads_kv, seq)):
            for name in names_of(case):
                yield from of_gradients(_forward(case, sizes), gpu, **_named(name))


def _small_sizes(heads: int, heads_kv: int, seq: int) -> tuple[int, int, int, int]:
    """Batch, heads, heads of keys and rows of what is judged."""
    return 1, 2 * heads // heads_kv, 2, min(seq, _CHECKED + seq % _TILE)


def _forward(case: dict[str, Any], sizes: tuple[int, int, int, int]) -> AttentionProblem:
    batch, heads, heads_kv, seq = sizes
    return AttentionProblem.dense(
        batch, heads, seq, seq, case["d_head"], heads_kv=heads_kv, dtype=case.get("dtype", "bf16"),
        is_causal=case.get("causal", False), d_v=case.get("d_v", 0),
    )  # fmt: skip


def _record(
    torch: Any, suite: str, case: dict[str, Any], named: dict[str, Any], seconds: float, ordinal: int
) -> dict[str, Any]:
    heads, heads_kv = case["heads"], case.get("heads_kv", case["heads"])
    batch, seq = case["batch"], case["seq"]
    forward = _forward(case, (batch, heads, heads_kv, seq))
    dtype = forward.dtype
    problem = BackwardProblem(forward, forward.q, forward.q, forward.k, forward.v, (heads * seq, seq, 1))
    plan = plan_backward(problem, device(ordinal).gpu, **named)
    small = Tensors(torch, case, *_small_sizes(heads, heads_kv, seq))
    values = [x.float().cpu().numpy() for x in (*small.ours(**named), small.grad, small.q, small.k, small.v)]
    verdict = check_backward(tuple(values[:3]), backward_reference(*values[3:], is_causal=small.is_causal), dtype)
    result: dict[str, Any] = verdict_dict(verdict)
    if verdict.ok:
        result |= _times(torch, case, (batch, heads, heads_kv, seq), problem, named, seconds, ordinal)
    names = ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "d_head", "dtype", "is_causal")
    described = {name: getattr(forward, name) for name in names} | ({"d_v": forward.d_v} if forward.d_v else {})
    described |= {
        "rung": plan.rung.id,
        "config_text": str(plan.config),
    }
    described |= {"deterministic": plan.config.deterministic}
    return {"suite": suite, "case": described, "result": result}


def held_bytes(torch: Any, call: Callable[[], Any]) -> int:
    """Return what a call holds at most besides what was there before, by torch's allocator."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _times(
    torch: Any, case: dict[str, Any], sizes: tuple[int, ...], problem: BackwardProblem, named: dict[str, Any],
    seconds: float, ordinal: int,
) -> dict[str, Any]:  # fmt: skip
    count = min(max(2, 3 * device(ordinal).gpu.l2 // problem.bytes + 1), 16)
    sets = [Tensors(torch, case, *sizes) for _ in range(count)]
    result: dict[str, Any] = {"buffer_sets": count}

    def launches(calls: Sequence[Callable[[], Any]]) -> list[Start]:
        def one(call: Callable[[], Any]) -> Start:
            def launch(stream: int) -> None:
                with torch.cuda.stream(torch_stream(torch, stream, ordinal)):
                    call()

            return launch

        return [one(call) for call in calls]

    own = [partial(x.ours, **named) for x in sets]
    ours = launches(own)
    result["held_bytes"] = held_bytes(torch, own[0])
    for name, reference in REFERENCES.items():
        try:
            calls = [reference(torch, x) for x in sets]
            theirs = calls[0]()
        except RuntimeError as error:  # shared heads or a head size that it does not take
            result[f"no_{name}"] = str(error).splitlines()[0]
            continue
        mine = own[0]()
        worst = max(
            float((a.float() - b.float()).abs().max() / b.abs().max()) for a, b in zip(mine, theirs, strict=False)
        )
        if not np.isfinite(worst) or worst > 1 / 32:
            return {"right": False, "reason": f"it differs from {name}'s gradients by {worst:.3g} of their largest"}
        result[f"held_bytes_{name}"] = held_bytes(torch, calls[0])
        first = name == "flash"
        timing, conditions = time_pairs(ordinal, ours, launches(calls), seconds=seconds, graphs=False, watched=first)
        if first:
            result |= timing.to_dict() | {"conditions": conditions}
        else:
            fields = ("reference_ms", "ratio", "ratio_p10", "ratio_p90")
            result |= {f"{x}_{name}": getattr(timing, x) for x in fields}
    if "ms" not in result:
        timing, conditions = time_pairs(ordinal, ours, None, seconds=seconds, graphs=False)
        result |= timing.to_dict() | {"conditions": conditions}
    return result | {"tflops": problem.flops / result["ms"] * 1e-9}
