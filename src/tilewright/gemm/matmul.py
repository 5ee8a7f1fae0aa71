"""matmul: any arrays -> views -> one problem -> a plan -> launches -> a result of the caller's kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidOperand
from ..run import foreign, gradients
from ..run.runner import run
from ..run.warm import MISS
from ..words import Activation, Array, Precision
from . import warm_rows
from .call import Options, read_call
from .config import GemmConfig
from .fusion import fold_numbers, request
from .warm import remember, warm_matmul, warm_views
from .warm_host import warm_numpy


def matmul(
    a: Array,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    bias: Any = None,
    activation: Activation | None = None,
    residual: Any = None,
    row_scale: Any = None,
    col_scale: Any = None,
    epilogue: Callable[..., Any] | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    verify: bool = False,
    precision: Precision = "ieee",
    rung: str | None = None,
    config: GemmConfig | None = None,
    a_scale: Any = None,
    b_scale: Any = None,
    **operands: Any,
) -> Array:
    """f(alpha * (a @ b) + beta * c), by a kernel of the ladder; f, of fused operations, is by default nothing.

    a, b: arrays of one dtype, float32, float16 or bfloat16, or of fp8 (float8_e4m3fn and float8_e5m2 in any mixture),
        with numpy.matmul's shapes: [..., m, k] and [..., k, n], batch axes broadcast; a [k] or b [k] is a row or a
        column, whose axis the result drops. Any strides, those of repeated and of reversed axes too, here and of every
        other array. NumPy arrays (bfloat16 and fp8 as ml_dtypes has them), torch tensors, CuPy and JAX arrays, anything
        with DLPack or `__cuda_array_interface__`; a Float8Array of bytes.
    c: an array of the result's dtype that broadcasts to the result's shape. It is never read when beta is 0.
    beta: 1 when c is given, else 0.
    out: an array of exactly the result's shape to write to. It must not overlap a or b; it may be c itself.
    out_dtype: the result's dtype: by default out's, else a's (of fp8 operands bfloat16). Products are summed in float32
        and rounded once to "f32", "f16", "bf16", "e4m3" or "e5m2" (or a library's own dtype object), whatever the
        operands are. In fp8 what is too large becomes the largest number.
    a_scale, b_scale: of fp8 operands: the product is (a * a_scale) @ (b * b_scale). Numbers, or float32 arrays:
        for all of an operand []; for each row of a [m, 1], for each column of b [1, n]; for blocks of 128 along k
        [m, ceil(k / 128)] and [ceil(k / 128), ceil(n / 128)]. Batch axes may lead. See tilewright.quantize.
    bias, activation, residual, row_scale, col_scale: with acc = alpha * (a @ b) + beta * c, the result is
            activation(acc * row_scale * col_scale + bias) + residual
        bias: [n] or, a row each, [m, 1]; row_scale: [m] or [m, 1]; col_scale: [n]; residual: as the result. All of
        them broadcast as NumPy does, batch axes leading, and may be float32, float16 or bfloat16, whatever a is.
        activation: "relu", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh".
    epilogue, operands: any expression instead, traced once into the kernel:
            matmul(a, b, epilogue=lambda acc, bias, r: silu(acc + bias) * r, bias=bias, r=r)
        Its first parameter is acc, the others are named after operands, which broadcast to the result. Numbers among
        them, or that the function has in its closure, are parameters of the kernel: another number compiles nothing.
        Parameters row, col and batch, if not operands, are indices of the result (batch: counted over all batch axes).
        Made of arithmetic, comparisons and the functions of tilewright.epilogue, in float32, rounded once to the
        result's dtype. out may be the very array of an operand.
    deterministic: the same bits run after run, on every machine with this GPU and this version of the package. No
        kernel here depends on timing, so any plan gives the same bits each time it runs; what was tuned on one machine
        may choose another plan, and is not asked. Costs what that tuning had won.
    batch_invariant: row i of the result has the same bits whatever the number of rows, and of products in the batch:
        each element is summed along k in one chain whose order depends on k and the dtype alone. Costs nothing where
        the grid fills the GPU; thin products lose the parts that k would have been split into.
    verify: check the result on the device by Freivalds' product: with random signs x, out x against alpha A (B x) +
        beta C x in fp64, row by row, against a bound on what rounding can do (WrongResult beyond it). Catches rows that
        are off by more than a part of their norm, from some per cent at k = 512 to a sixth at k = 4096; not the last
        bits of an element. Costs a read of each operand and of the result, two launches and a wait. With something
        fused, or where out is c: the same kernel first makes A B alone, in fp32, which is checked so; then each element
        of the result is compared with what alpha, beta, C and the expression can make of its sum, each operation
        rounded either way. That finds elements off by their last bits, and costs the product once more, 12 borrowed
        bytes an element, and two passes over them.
    precision: how float32 operands are multiplied. "ieee": fp32's own multiply-adds. "tf32": operands rounded to 11
        bits, on tensor cores. "fp32x3": on tensor cores with fp32's accuracy, by parts; infinities, NaN, and what is
        too small for parts come out as fp32 has them. Of fp8 operands "fast": Hopper's tensor cores keep the sums along
        k, with 14 bits; by default they keep those of 128 products, which are added up in fp32 (docs/precision.md).
    rung, config: which kernel; by default the plan chooses (see `tilewright.explain`).

    The result is `out`, or a new array of a's kind on a's device. Inside `with tilewright.emulator()` host arrays run
    on the emulator. Else torch tensors and CuPy arrays run on their GPU in their library's current stream, without
    waiting; JAX, DLPack and `__cuda_array_interface__` arrays on the legacy default stream, waited for (a product that
    JAX's arrays repeat: in XLA's stream, without waiting); NumPy arrays are copied to the first GPU and back. A plan
    may borrow memory while it runs, from torch's and CuPy's own pools for their arrays.

    Torch tensors that require a gradient get one, as tilewright.torch.matmul gives it; out, verify, rung and config are
    refused there.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), InvalidEpilogue, ConfigRejected (rung or
    config), DeviceError (no GPU for host arrays, the driver's word, or a product that a running CUDA-graph capture
    meets first), CompileError, WrongResult (verify).
    """
    options = (out_dtype, deterministic, batch_invariant, rung, config, precision)
    asked = None
    if not (a_scale is b_scale is None):
        alpha, a_scale, b_scale = fold_numbers(alpha, a_scale, b_scale)
    if operands or not (
        epilogue is activation is bias is residual is row_scale is col_scale is a_scale is b_scale is None
    ):
        asked = request(epilogue, activation, bias, residual, row_scale, col_scale, operands, a_scale, b_scale)
    result: Any = warm_matmul(a, b, c, alpha, beta, out, options, asked, verify)
    if result is not MISS:
        return result
    if not verify:
        if c is out is beta is None:
            if warm_rows.find(a, b, options, asked):
                result = warm_matmul(a, b, c, alpha, beta, out, options, asked)
            elif asked is None:
                result = warm_numpy(a, b, alpha, options)
            if result is MISS and type(alpha) is float and alpha == 1.0:
                result = foreign.repeat(a, b, options, asked)
            if result is not MISS:
                return result
        result = warm_views(a, b, c, alpha, beta, out, options, asked)
        if result is not MISS:
            return result
    if gradients.wanted((a, b, c, out, *(asked.operands.values() if asked is not None else ()))):
        if not (a_scale is b_scale is None):
            raise InvalidOperand(
                "a product of fp8 operands gives no gradients. Call it under torch.no_grad(), or use "
                "tilewright.torch.fp8_linear, which rounds operands itself."
            )
        differentiable = gradients.differentiable(
            "matmul",
            {"out": out is not None, "verify": verify, "rung": rung is not None, "config": config is not None},
        )
        return differentiable(
            a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, bias=bias, activation=activation,
            residual=residual, row_scale=row_scale, col_scale=col_scale, epilogue=epilogue, precision=precision,
            deterministic=deterministic, batch_invariant=batch_invariant, **operands,
        )  # fmt: skip
    call = read_call(a, b, c, alpha, beta, out, Options(*options), asked, verify)
    (result,), ran = run(call)
    known = None if ran is None else remember(call, result, ran, asked)
    if known is not None:
        warm_rows.note(call, known, asked)
        if call.a.device is not None and c is out is None and call.alpha == 1.0:
            foreign.note(call.a.kind, a, b, options, asked)
    return result
