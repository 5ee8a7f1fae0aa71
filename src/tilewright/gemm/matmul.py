"""matmul: products made before take a warm path; others are read, planned, made programs of, and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays.scalar import flag
from ..errors import InvalidOperand
from ..run import foreign, gradients
from ..run.runner import Ran, run
from ..run.warm import MISS
from ..words import Activation, Array, Precision
from . import warm_rows
from .call import Call, Options, read_call
from .config import GemmConfig
from .fusion import Request, fold_numbers, request
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
    """Return f(alpha * (a @ b) + beta * c), where f is what is fused (by default nothing).

    a, b: arrays with numpy.matmul's shapes: [..., m, k] and [..., k, n], batch axes broadcast. A [k] operand is a row
        (a) or a column (b), and the result drops that axis. Both have one dtype: float32, float16 or bfloat16; or each
        is fp8, float8_e4m3fn or float8_e5m2. Accepted are NumPy arrays (bfloat16 and fp8 from ml_dtypes), torch
        tensors, CuPy and JAX arrays, anything with DLPack or `__cuda_array_interface__`, and a Float8Array of bytes.
        Any array here may have any strides, also those of repeated and of reversed axes.
    alpha: a number.
    c: an array of the result's dtype that broadcasts to the result's shape. It is not read when beta is 0.
    beta: a number; by default 1 when c is given, else 0.
    out: an array of exactly the result's shape to write to. It must not overlap a or b; it may be c itself.
    out_dtype: the result's dtype: "f32", "f16", "bf16", "e4m3" or "e5m2", or a library's own dtype object. The default
        is out's dtype, else a's (bfloat16 for fp8 operands). Products are summed in float32 and rounded once. Results
        in fp8 need fp8 operands; values that are too large become the largest number.
    a_scale, b_scale: scales of fp8 operands: the product is (a * a_scale) @ (b * b_scale). Each is a number or a
        float32 array: [] scales a whole operand; [m, 1] the rows of a, [1, n] the columns of b; [m, ceil(k / 128)] and
        [ceil(k / 128), ceil(n / 128)] scale blocks of 128 along k. Batch axes may lead. See tilewright.quantize.
    bias, activation, residual, row_scale, col_scale: with acc = alpha * (a @ b) + beta * c, the result is
            activation(acc * row_scale * col_scale + bias) + residual
        bias: [n], or [m, 1] for one number per row. row_scale: [m] or [m, 1]. col_scale: [n]. residual: the result's
        shape. All broadcast as NumPy does, batch axes leading, and may be float32, float16 or bfloat16, whatever a is.
        activation: "relu", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh".
    epilogue, operands: any other expression, traced once into the kernel:
            matmul(a, b, epilogue=lambda acc, bias, r: silu(acc + bias) * r, bias=bias, r=r)
        Its first parameter is acc. The others name operands, which broadcast to the result. Parameters called row, col
        and batch are indices of the result, unless operands have these names; batch counts over all batch axes.
        Numbers, passed or in the function's closure, are parameters of the kernel: another number compiles nothing.
        The expression consists of arithmetic, comparisons and the functions of tilewright.epilogue. It is computed in
        float32 and rounded once to the result's dtype. out may be one of its operands.
    deterministic: give the same bits on every machine with this GPU and this version of the package. Without it any
        plan still gives the same bits each time it runs, as no kernel depends on timing; but what was tuned on one
        machine may choose another plan. With it that tuning is ignored, which costs what it had gained.
    batch_invariant: give row i of the result the same bits whatever the number of rows and of products in the batch.
        Each element is then one chain of sums along k, whose order depends on k and the dtype alone. This costs nothing
        where the grid fills the GPU; thin products cannot split k.
    verify: check the result on the device, and raise WrongResult where it is wrong. The check is Freivalds': with a
        vector x of random signs, out x is compared with alpha A (B x) + beta C x in float64, row by row. The bound is
        what rounding can do. It finds rows whose error is more than a part of their norm: some percent at k = 512, a
        sixth at k = 4096. It does not find the last bits of an element. It costs one read of each operand and of the
        result, two launches and a wait. With something fused, or where out is c, the kernel first computes A B alone in
        float32, which is checked in this way. Then each element of the result is compared with the range that alpha,
        beta, C and the expression allow when each operation is rounded up or down. This finds errors in the last bits;
        it costs a second product, 12 borrowed bytes per element, and two passes over them.
    precision: how float32 operands are multiplied. "ieee": by fp32 multiply-adds. "tf32": on tensor cores, operands
        rounded to 11 bits. "fp32x3": on tensor cores in parts, with fp32's accuracy; infinities, NaN, and numbers too
        small for parts come out as in fp32. For fp8 operands, "fast" leaves the sums along k to Hopper's tensor cores,
        which keep 14 bits; by default sums of 128 products are added up in fp32 (docs/precision.md).
    rung, config: which kernel runs; by default the plan chooses (see `tilewright.explain`).

    The result is `out`, or a new array of a's kind on a's device. Inside `with tilewright.emulator()` host arrays run
    on the emulator. Otherwise:
        torch and CuPy      on their GPU, in the library's current stream, without waiting
        JAX, DLPack, `__cuda_array_interface__`    on the legacy default stream, and waited for; repeated products of
                            JAX arrays run in XLA's stream, without waiting
        NumPy               copied to the first GPU and back
    A plan may borrow memory while it runs; for torch and CuPy arrays it comes from their own pools.

    Torch tensors that require a gradient get one, as tilewright.torch.matmul gives it; out, verify, rung and config are
    refused there. torch.compile keeps a call as one operator; with one of these, or with scales, its graph breaks.
    torch.jit.trace and make_fx record that operator too, and there they are refused.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), InvalidEpilogue, ConfigRejected (rung or
    config), DeviceError (no GPU for host arrays, an error of the driver, or a product that first runs inside a CUDA
    graph capture), CompileError, WrongResult (verify).
    """
    if verify is not False:
        verify = flag(verify, "verify")
    options = (out_dtype, deterministic, batch_invariant, rung, config, precision)
    asked = None
    if not (a_scale is b_scale is None):
        alpha, a_scale, b_scale = fold_numbers(a, alpha, a_scale, b_scale)
    if operands or not (
        epilogue is activation is bias is residual is row_scale is col_scale is a_scale is b_scale is None
    ):
        asked = request(epilogue, activation, bias, residual, row_scale, col_scale, operands, a_scale, b_scale)
    traced = gradients.traced(a)
    if not traced:
        result: Any = warm_matmul(a, b, c, alpha, beta, out, options, asked, verify)
        if result is MISS and not verify:
            result = _made_before(a, b, c, alpha, beta, out, options, asked)
        if result is not MISS:
            return result
    recorded = not traced and gradients.recorded(a)
    given = (a, b, c, out, *(asked.operands.values() if asked is not None else ()))
    if traced or recorded or gradients.wanted(given):
        if not (traced or recorded or a_scale is b_scale is None):
            raise InvalidOperand(
                "a product of fp8 operands gives no gradients. Call it under torch.no_grad(), or use "
                "tilewright.torch.fp8_linear, which rounds operands itself."
            )
        differentiable = gradients.differentiable(
            "matmul",
            {"out": out, "verify": verify, "rung": rung, "config": config, "a_scale": a_scale, "b_scale": b_scale},
            traced,
        )
        return differentiable(
            a, b, c=c, alpha=alpha, beta=beta, out_dtype=out_dtype, bias=bias, activation=activation,
            residual=residual, row_scale=row_scale, col_scale=col_scale, epilogue=epilogue, precision=precision,
            deterministic=deterministic, batch_invariant=batch_invariant, **operands,
        )  # fmt: skip
    call = read_call(a, b, c, alpha, beta, out, Options(*options), asked, verify)
    (result,), ran = run(call)
    if ran is not None:
        _remember(call, result, ran, asked)
    return result


def _made_before(
    a: Any, b: Any, c: Any, alpha: float, beta: float | None, out: Any, options: tuple[Any, ...], asked: Request | None
) -> Any:
    """The result of a product that the first warm path does not know, by one of the others; MISS where none knows it.
    They are for another number of rows, NumPy arrays, arrays whose library makes it itself, and views of any arrays."""
    result = MISS
    if c is out is beta is None:
        if warm_rows.find(a, b, options, asked):
            result = warm_matmul(a, b, c, alpha, beta, out, options, asked)
        elif asked is None:
            result = warm_numpy(a, b, alpha, options)
        if result is MISS and type(alpha) is float and alpha == 1.0:
            result = foreign.repeat(a, b, options, asked)
    return warm_views(a, b, c, alpha, beta, out, options, asked) if result is MISS else result


def _remember(call: Call, result: Any, ran: Ran, asked: Request | None) -> None:
    """Let the warm paths find products like this one."""
    known = remember(call, result, ran, asked)
    if known is None:
        return
    warm_rows.note(call, known, asked)
    if call.a.device is not None and call.given_c is call.given_out is None and call.alpha == 1.0:
        foreign.note(call.a.kind, call.a.given, call.others[0].given, call.options, asked)
