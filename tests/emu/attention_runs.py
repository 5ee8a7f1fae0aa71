"""One attention launch on the emulator: strided operands in NaN-filled surroundings, guarded outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.attn.problem import AttentionProblem, HeadRows
from tilewright.attn.rung import AttentionAddresses, AttentionRung
from tilewright.emu import Emulator
from tilewright.jit import use_executor
from tilewright.lab.attention_check import attention_reference, check_attention
from tilewright.lab.check import CheckResult, Guarded
from tilewright.lab.numbers import POISON, from_stored, rounded, to_stored


def spread(values: np.ndarray, rows: HeadRows, dtype: str) -> np.ndarray:
    """The operand [b, h, s, d] as the problem says it lies, every byte between its rows NaN, and NaN behind it."""
    b, h, s, d = values.shape
    last = (b - 1) * rows.batch_stride + (h - 1) * rows.head_stride + (s - 1) * rows.row_stride + d
    whole = np.full(last + 64 * d, POISON[dtype], np.uint16)
    view = np.lib.stride_tricks.as_strided(
        whole, values.shape, [2 * x for x in (rows.batch_stride, rows.head_stride, rows.row_stride, 1)]
    )
    view[...] = to_stored(values, dtype).view(np.uint16)
    return whole


STRIDED = AttentionProblem(
    2, 4, 2, 35, 50, 64,
    q=HeadRows(4 * 64 * 35 + 24, 64, 4 * 64),  # [b, s, h, d]: heads within a row
    k=HeadRows(2 * 72 * 50, 72 * 50, 72),  # rows with a gap
    v=HeadRows(2 * 3 * 64 * 50, 3 * 64 * 50, 3 * 64),
    out=AttentionProblem.dense(1, 1, 1, 1, 64).out, scale=0.3, is_causal=True,
)  # fmt: skip


def run_attention(
    rung: AttentionRung, problem: AttentionProblem, config: Any = None, seed: int = 0, blocks: int = 0,
    order: int | None = None,
) -> tuple[CheckResult, Emulator]:  # fmt: skip
    """Run the rung and judge out, the LSE, and the guard bands around both. `blocks`: of a grid of its own size.
    `order`: another legal order of what runs."""
    emulator = Emulator(order=order)
    config = config or rung.default(problem, emulator.arch)
    with use_executor(emulator):
        kernel = rung.compile(problem, config, emulator.arch)
    rng = np.random.default_rng(seed)
    shapes = {"q": (problem.heads_q, problem.seq_q), **dict.fromkeys("kv", (problem.heads_kv, problem.seq_k))}
    q, k, v = (
        rounded(rng.standard_normal((problem.batch, *own, problem.columns(x)), dtype=np.float32), problem.dtype)
        for x, own in shapes.items()
    )
    places = [
        emulator.upload(spread(x, rows, problem.dtype).view(np.uint8))
        for x, rows in ((q, problem.q), (k, problem.k), (v, problem.v))
    ]
    out, lse = Guarded((*q.shape[:3], v.shape[3]), problem.dtype), Guarded(q.shape[:3], "f32")
    at_out, at_lse = (emulator.upload(x.whole.view(np.uint8)) for x in (out, lse))
    dense = replace(problem, out=AttentionProblem.dense(*q.shape[:3], problem.seq_k, v.shape[3]).out)
    addresses = AttentionAddresses(*places, at_out + 2 * out.band, at_lse + 4 * lse.band)
    launch = rung.launch(dense, config, addresses)
    emulator.launch(kernel, replace(launch, grid=(blocks, 1, 1)) if blocks else launch)
    for at, guarded in ((at_out, out), (at_lse, lse)):
        guarded.whole[:] = emulator.download(at, guarded.whole.nbytes).view(guarded.whole.dtype)
        assert guarded.intact()
    assert out.untouched() == 0
    assert lse.untouched() == (0 if problem.with_lse else lse.size)
    verdict = check_attention(
        from_stored(out.view, problem.dtype), attention_reference(q, k, v, problem), problem.dtype,
        lse.view if problem.with_lse else None,
    )  # fmt: skip
    return verdict, emulator
