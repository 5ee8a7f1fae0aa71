"""matmul: any arrays -> views -> one problem -> a plan -> launches -> a result of the caller's kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arch import Gpu
from ..jit.launch import Executor, Launch
from ..ladder.rung import Addresses, GemmConfig
from ..plan import plan_for
from .call import Call, executor_for_host, read_call
from .dlpack import dense_strides
from .extents import byte_extent, same_view
from .operands import Operand
from .results import as_callers_kind, empty_like, host_bits, result_operand
from .warm import MISS, Step, WarmCall, key_of, remember, split_params, warm_matmul

if TYPE_CHECKING:
    from ..jit.compile import CompiledKernel


def matmul(
    a: Any,
    b: Any,
    *,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    rung: str | None = None,
    config: GemmConfig | None = None,
) -> Any:
    """alpha * (a @ b) + beta * c, by a kernel of the ladder.

    a, b: arrays of one dtype, float32, float16 or bfloat16, with numpy.matmul's shapes: [..., m, k] and [..., k, n],
        batch axes broadcast; a [k] or b [k] is a row or a column, whose axis the result drops. Any strides but
        negative ones. NumPy arrays (bfloat16 as ml_dtypes has it), torch tensors, CuPy and JAX arrays, anything with
        DLPack or `__cuda_array_interface__`.
    c: an array of the result's dtype that broadcasts to the result's shape. It is never read when beta is 0.
    beta: 1 when c is given, else 0.
    out: an array of exactly the result's shape to write to. It must not overlap a or b; it may be c itself.
    out_dtype: the result's dtype: by default out's, else a's. Products of 16-bit operands are summed in float32 and
        written as "f32", "f16" or "bf16" (or a library's own dtype object); of float32 operands as "f32".
    rung, config: which kernel; by default the plan chooses (see `tilewright.explain`).

    The result is `out`, or a new array of a's kind on a's device. Inside `with tilewright.emulator()` host arrays run
    on the emulator. Else torch tensors and CuPy arrays run on their GPU in their library's current stream, without
    waiting; JAX, DLPack and `__cuda_array_interface__` arrays on the legacy default stream, waited for; NumPy arrays
    are copied to the first GPU and back.

    Raises InvalidOperand (shapes, dtypes, strides, devices, overlaps), ConfigRejected (rung or config), DeviceError
    (no GPU for host arrays, or the driver's word), CompileError.
    """
    result = warm_matmul(a, b, c, alpha, beta, out, out_dtype, rung, config)
    if result is not MISS:
        return result
    call = read_call(a, b, c, alpha, beta, out, out_dtype)
    executor = executor_for_host(call)
    if executor is not None:
        return _run_staged(executor, call, out, rung, config)
    return _run_in_place(call, (a, b, c, out), out_dtype, rung, config)


Offsets = tuple[int, int, int, int]


def _launches(
    call: Call, gpu: Gpu, rung: str | None, config: GemmConfig | None, bases: Offsets
) -> Iterator[tuple[CompiledKernel, Launch, Addresses, Offsets]]:
    """The kernel and each launch of a call, with operands a, b, c and out at `bases`. None for an empty result."""
    problem = call.product.problem
    if problem.m == 0 or problem.n == 0 or problem.batch == 0:
        return
    plan = plan_for(problem, gpu, rung, config)
    kernel = plan.rung.compile(problem, plan.config, gpu.arch)
    alpha = call.alpha if problem.k else 0.0  # the empty sum is 0, also times infinity
    for count, offsets in call.product.launches():
        a, b, c, out = (base + offset for base, offset in zip(bases, offsets, strict=True))
        addresses = Addresses(a, b, out, c if call.c is not None else 0)
        launch = plan.rung.plan(replace(problem, batch=count), plan.config, addresses, alpha, call.beta)
        yield kernel, launch, addresses, offsets


# --- host arrays: staged to an executor and back ----------------------------------------------------------------------


def _run_staged(executor: Executor, call: Call, out: Any, rung: str | None, config: GemmConfig | None) -> Any:
    """Copy what the views reach to the executor, run there, copy the result back."""
    held: list[int] = []

    def stage(operand: Operand, fill: bool) -> int:
        """The operand's bytes on the executor, at an address as aligned as on the host; its element 0's address."""
        low, high = byte_extent(operand)
        pad = low % 16
        data = np.full(pad + high - low, 0xFF, np.uint8)  # a NaN where nothing is copied
        if fill and high > low:
            data[pad:] = host_bits(operand.view(((high - low) // operand.item_bytes,), (1,))).view(np.uint8)
        held.append(executor.upload(data, operand.name))
        return held[-1] + pad

    try:
        bases = (
            stage(call.a, True),
            stage(call.b, True),
            stage(call.c, True) if call.c is not None else 0,
            stage(call.out, False),
        )
        for kernel, launch, _, _ in _launches(call, executor.gpu, rung, config, bases):
            executor.launch(kernel, launch)
        low, high = byte_extent(call.out)
        raw = executor.download(bases[3], high - low)
    finally:
        for address in held:
            executor.release(address)
    strides = tuple(step * call.out.item_bytes for step in call.out.strides)
    bits = np.ndarray(call.out.shape, f"<u{call.out.item_bytes}", raw, strides=strides)
    result = out if call.out_is_given else empty_like(call.a, call.shapes.result, call.out.dtype)
    target = call.out if call.out_is_given else result_operand(result, call.a)
    host_bits(target)[...] = bits
    return result if call.out_is_given else as_callers_kind(result, call.a)


# --- arrays on a GPU: run where they are ------------------------------------------------------------------------------


def _run_in_place(
    call: Call, given: tuple[Any, Any, Any, Any], out_dtype: Any, rung: str | None, config: GemmConfig | None
) -> Any:
    """Launch on the arrays' own GPU, in a's current stream, ordered with what the other arrays' streams hold."""
    from ..jit.device import Prepared, bound_to, executor_for
    from .device_calls import make_wait, synchronize

    ordinal = call.a.device
    assert ordinal is not None  # executor_for_host saw to it
    gpu = executor_for(ordinal).gpu
    result = given[3] if call.out_is_given else empty_like(call.a, call.shapes.result, call.out.dtype)
    target = call.out if call.out_is_given else result_operand(result, call.a)
    stream = call.a.stream or 0
    beside = {other.stream for other in call.others if other.stream is not None} - {stream}
    for other_stream in beside:
        make_wait(stream, other_stream, ordinal)
    bases = (call.a.address, call.b.address, call.c.address if call.c is not None else 0, target.address)
    steps, middle = [], None
    with bound_to(ordinal):
        for kernel, launch, at, offsets in _launches(call, gpu, rung, config, bases):
            prepared = Prepared(kernel, launch, ordinal)
            prepared.launch(launch.params, stream)
            steps.append(Step(prepared, offsets))
            middle = split_params(launch.params, (at.a, at.b, at.c, at.out), call.alpha, call.beta)
    for other_stream in beside:  # so that what they free or overwrite next waits for this product
        make_wait(other_stream, stream, ordinal)
    operands = (call.a, *call.others)
    if any(operand.kind not in ("torch", "cupy") for operand in operands):
        # their producers may take memory back as soon as this call returns
        synchronize(stream, ordinal)
    if middle is not None and all(operand.kind == "torch" for operand in operands):
        _remember(call, given, result, tuple(steps), middle, out_dtype, rung, config)
    return result if call.out_is_given else as_callers_kind(result, call.a)


def _remember(
    call: Call, given: tuple[Any, Any, Any, Any], result: Any, steps: tuple[Step, ...], middle: bytes,
    out_dtype: Any, rung: str | None, config: GemmConfig | None,
) -> None:  # fmt: skip
    """Let the next such call take the warm path. All launches share `middle` when they are of one size."""
    if len({step.prepared.shape for step in steps}) > 1:
        return
    a, b, c, out = given
    torch = sys.modules["torch"]

    def extent(operand: Operand | None) -> int:
        low, high = byte_extent(operand) if operand is not None else (0, 0)
        return high - low

    layout = call.c is not None and same_view(replace(call.c, address=0), replace(call.out, address=0))
    warm = WarmCall(
        call.a.device or 0, steps, middle, call.shapes.result, dense_strides(call.shapes.result), result.dtype,
        result.device,        extent(call.a), extent(call.b), extent(call.c), extent(call.out), layout,
    )  # fmt: skip
    remember(torch, key_of(torch, a, b, c, call.c is not None, out, out_dtype, rung, config), warm)
