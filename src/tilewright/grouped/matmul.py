"""grouped_matmul: any arrays -> views -> one problem -> a plan -> a launch -> a result of the caller's kind."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import InvalidOperand, unknown_keyword
from ..gemm.config import GemmConfig
from ..gemm.fusion import fold_numbers
from ..gemm.matmul import matmul
from ..run import gradients
from ..run.runner import run
from ..run.warm import MISS, WarmCalls
from ..words import Array
from .call import read_grouped

calls = WarmCalls()
"""Their inputs: a, b, offs and the scales that are arrays, of a and b."""


def grouped_matmul(
    a: Array,
    b: Any,
    offs: Any = None,
    *,
    out: Any = None,
    out_dtype: Any = None,
    rung: str | None = None,
    config: GemmConfig | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    **unknown: NoReturn,
) -> Array:
    """Return one product for each group of rows, of columns or of k; `offs` says where each group ends.

        a            b            offs ends       result       group g of it
        [M, k]       [g, k, n]    rows of a       [M, n]       rows:     a[rows] @ b[g]
        [g, m, k]    [k, N]       columns of b    [m, N]       columns:  a[g] @ b[:, columns]
        [m, K]       [K, n]       k of both       [g, m, n]    matrix:   a[:, ks] @ b[ks]
        [g, m, k]    [g, k, n]    None            [g, m, n]    a batch, as `matmul` makes it

    Group g reaches from offs[g - 1] (0 for the first) to offs[g]. Groups have any size, 0 and 1 included, and start
    anywhere: nothing has to be aligned. A group without k gives a matrix of zeros.

    a, b: arrays of one dtype, float32, float16 or bfloat16, or each of fp8; any strides; libraries as for `matmul`.
    offs: int32 [groups]. For arrays on a GPU it lies there, and the host never waits for it: a CUDA graph replays with
        what it then holds. Its numbers are not checked there, but cannot make a kernel leave the arrays: a number below
        an earlier one counts as that one, and a number beyond the end as the end. For host arrays offs may be any
        integers, and is checked.
    out: an array of exactly the result's shape to write to. It must not overlap the other arrays.
    out_dtype: the result's dtype, as for `matmul`. Sums are float32 and rounded once.
    a_scale, b_scale: scales of fp8 operands, as for `matmul`: numbers, or float32 arrays. Their first axis may be the
        groups', except along the axis that groups cut:
            rows of a cut       a_scale [], [g, 1, 1], [M, 1], [M, ceil(k / 128)]
                                b_scale [], [1, n], [ceil(k / 128), ceil(n / 128)], and with [g, ...] in front
            columns of b cut    a_scale [], [m, 1], [m, ceil(k / 128)], and with [g, ...] in front
                                b_scale [], [g, 1, 1], [1, N]
            k cut               a_scale [], [m, 1], [g, m, 1]; b_scale [], [1, n], [g, 1, n]
    rung, config: which kernel runs: "g01" to "g08", and a tilewright.ladder.GemmConfig. By default the plan chooses.

    Rows or columns of the result after the last group's end are 0 in a new array, and stay as they are in `out`. A
    group's part of the result has the same bits however many groups there are, and wherever it starts.

    Torch tensors that require a gradient get one, as tilewright.torch.grouped_matmul gives it; out, rung and config are
    refused there.

    Raises InvalidOperand (shapes, dtypes, devices, offsets on the host), ConfigRejected (rung or config), DeviceError
    (no GPU for host arrays, or an error of the driver), CompileError.
    """
    if unknown:
        raise unknown_keyword(grouped_matmul, unknown)
    options = (out_dtype, rung, config)
    scaled = not (a_scale is b_scale is None)
    alpha, *arrays = fold_numbers(a, 1.0, a_scale, b_scale) if scaled else (1.0, None, None)
    given = (a, b, offs, *arrays)
    traced = gradients.traced(a)
    warm: Any = MISS if traced else calls.run(given, options, (alpha,), out)
    if warm is not MISS:
        return warm[0]
    if offs is None and getattr(a, "ndim", 0) == 3 == getattr(b, "ndim", 0):
        if rung is not None or config is not None:
            raise InvalidOperand("rung and config choose a grouped kernel; a batch is a product of `matmul`.")
        return matmul(a, b, out=out, out_dtype=out_dtype, a_scale=a_scale, b_scale=b_scale)
    recorded = not traced and gradients.recorded(a)
    if traced or recorded or gradients.wanted((a, b, out, a_scale, b_scale)):
        if scaled and not (traced or recorded):
            raise InvalidOperand("a product of fp8 operands gives no gradients. Call it under torch.no_grad().")
        differentiable = gradients.differentiable(
            "grouped_matmul",
            {"out": out, "rung": rung, "config": config, "a_scale": a_scale, "b_scale": b_scale},
            traced,
        )
        return differentiable(a, b, offs, out_dtype=out_dtype)
    call = read_grouped(a, b, offs, out, out_dtype, (rung, config), a_scale, b_scale)
    results, ran = run(call)
    if ran is not None and call.problem.product.k:  # the empty sum takes no number
        calls.remember(call, results, ran, given, options, out)
    return results[0]
