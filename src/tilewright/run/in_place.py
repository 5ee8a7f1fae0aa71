"""Arrays on a GPU: multiplied where they are, in their library's stream, with memory of their library's pool."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from ..arrays.dlpack import dense_strides
from ..arrays.extents import byte_extent, same_view
from ..arrays.result import as_callers_kind, empty_like, result_operand
from ..arrays.view import Operand
from ..epilogue.fusion import Request
from ..epilogue.packing import pack_fused
from ..errors import DeviceError
from ..gemm.call import Call
from ..gemm.freivalds import Device
from ..gemm.problem import INDEX, GemmProblem
from ..gemm.verify import verified
from ..jit.device import Prepared, bound_to, executor_for
from ..jit.device_calls import is_capturing, make_wait, synchronize
from .launches import Recipe, recipe_for
from .program import fused_base
from .warm import Step, WarmCall, key_of, layout_of, remember

_run_before: set[tuple[Any, GemmProblem, int]] = set()
"""(plan, problem, GPU) of what has run in this process: compiled and loaded, so that a capture may run it."""
_MOST_REMEMBERED = 1 << 16


def run_in_place(call: Call, given: tuple[Any, Any, Any, Any], asked: Request | None = None) -> Any:
    """Launch on the arrays' own GPU, in a's current stream, ordered with what the other arrays' streams hold."""
    ordinal = call.a.device
    assert ordinal is not None  # executor_for_host saw to it
    gpu = executor_for(ordinal).gpu
    recipe = recipe_for(call, gpu)
    stream = call.a.stream or 0
    known = (recipe.plan, call.product.problem, ordinal)
    capturing = (call.verify or known not in _run_before) and is_capturing(stream, ordinal)
    if capturing and call.verify:
        raise DeviceError(
            "verify=True waits for the GPU, and a CUDA-graph capture is running. Verify before capturing."
        )
    if capturing:
        raise DeviceError(
            f"a CUDA-graph capture is running, and this product ({recipe.call.a.shape} @ {recipe.call.b.shape}, "
            f"{recipe.call.a.dtype}) has not run in this process yet: nothing is compiled or loaded inside a capture. "
            "Call it once before capturing, with arrays of the same shapes, strides, dtypes and alignment."
        )
    kernels = recipe.kernels(gpu)
    result = given[3] if call.out_is_given else empty_like(call.a, call.shapes.result, call.out.dtype)
    target = call.out if call.out_is_given else result_operand(result, call.a)
    beside = {other.stream for other in call.others if other.stream is not None} - {stream}
    for other_stream in beside:
        make_wait(stream, other_stream, ordinal)
    work, give_back = _borrow(call.a, recipe.program.workspace_bytes)
    bases = {
        "a": call.a.address, "b": call.b.address, "c": call.c.address if call.c is not None else 0,
        "out": target.address, "work": work,
    }  # fmt: skip
    for number, view in enumerate(call.fusion.views if call.fusion is not None else ()):
        bases[fused_base(number)] = view.address
    steps: list[Step | None] = []
    try:
        with _verifying(recipe, bases, stream) if call.verify else nullcontext(), bound_to(ordinal):
            for number, stage, launch, at, offsets in recipe.launches(bases):
                prepared = Prepared(kernels[number], launch, ordinal)
                prepared.launch(launch.params, stream)
                steps.append(_step(call, prepared, stage, launch.params, at, offsets))
    finally:
        give_back()
    if len(_run_before) >= _MOST_REMEMBERED:
        _run_before.clear()
    _run_before.add(known)
    for other_stream in beside:  # so that what they free or overwrite next waits for this product
        make_wait(other_stream, stream, ordinal)
    operands = (call.a, *call.others)
    if any(operand.kind not in ("torch", "cupy") for operand in operands):
        # their producers may take memory back as soon as this call returns
        synchronize(stream, ordinal)
    if all(operand.kind == "torch" for operand in operands):
        _remember(call, given, result, steps, recipe, asked)
    return result if call.out_is_given else as_callers_kind(result, call.a)


@contextmanager
def _verifying(recipe: Recipe, bases: dict[str, int], stream: int) -> Iterator[None]:
    """Check the result of the launches inside. Raises WrongResult."""
    a = recipe.call.a
    executor = executor_for(a.device or 0, stream)
    held: list[Callable[[], None]] = []

    def hold(nbytes: int) -> int:
        address, give_back = _borrow(a, nbytes)
        held.append(give_back)
        return address

    try:
        with verified(recipe, bases, Device(executor.gpu, hold, executor.launch, executor.download)):
            yield
    finally:
        for give_back in held:
            give_back()


def _borrow(a: Operand, nbytes: int) -> tuple[int, Callable[[], None]]:
    """Memory for a program, and what gives it back once its launches are in the stream.

    torch's and CuPy's pools keep it apart until the stream has passed; ours is freed, so the stream is waited for.
    """
    if nbytes == 0:
        return 0, lambda: None
    if a.kind == "torch":
        torch = sys.modules["torch"]
        held = [torch.empty(nbytes, dtype=torch.uint8, device=a.owner.device)]
        return held[0].data_ptr(), held.clear
    if a.kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(a.device):
            held = [cupy.cuda.alloc(nbytes)]
        return int(held[0].ptr), held.clear
    executor = executor_for(a.device or 0)
    address = executor.allocate(nbytes)

    def free() -> None:
        synchronize(a.stream or 0, executor.ordinal)
        executor.release(address)

    return address, free


def _step(call: Call, prepared: Prepared, stage: Any, params: bytes, at: Any, offsets: tuple[int, ...]) -> Step | None:
    """What a warm call repeats; None where the parameters are not what a warm call would pack."""
    if call.product.problem.k == 0:
        return None  # launches take alpha for 0 there (Recipe.alpha), whatever the next call's is
    alpha, beta = (call.alpha, call.beta) if stage.scaled else (1.0, 0.0)
    tail = pack_fused(stage.problem, at.fused)
    layout = layout_of(params, (at.a, at.b, at.c, at.out), alpha, beta, tail)
    if layout is None:
        return None
    scalars, word = layout
    moved = {"a": offsets[0], "b": offsets[1], "c": offsets[2], "out": offsets[3], "work": 0}
    order = ("a", "b", "c", "out", "work")
    if call.c is None:
        moved["c"] = 0
    places = tuple((order.index(place.base), place.offset + moved[place.base]) for place in stage.places)
    views = call.fusion.views if call.fusion is not None and at.fused else ()
    fused = tuple(
        (word + 4 * number, view.name, address - view.address)
        for number, (view, address) in enumerate(zip(views, at.fused, strict=True))
        if view.dtype != INDEX  # where an index starts is the same at every call
    )
    return Step(prepared, places, scalars if stage.scaled else None, fused)


def _remember(
    call: Call, given: tuple[Any, Any, Any, Any], result: Any, steps: list[Step | None], recipe: Recipe,
    asked: Request | None,
) -> None:  # fmt: skip
    """Let the next such call take the warm path."""
    ready = tuple(step for step in steps if step is not None)
    if not ready or len(ready) < len(steps):
        return
    a, b, c, out = given
    torch = sys.modules["torch"]

    def extent(operand: Operand | None) -> int:
        low, high = byte_extent(operand) if operand is not None else (0, 0)
        return high - low

    operands = call.product.problem.epilogue.operands if call.product.problem.epilogue is not None else ()
    views = call.fusion.views if call.fusion is not None else ()
    fused = tuple(
        (view.name, extent(view), operand.is_out)
        for view, operand in zip(views, operands, strict=True)
        if view.dtype != INDEX
    )
    layout = call.c is not None and same_view(replace(call.c, address=0), replace(call.out, address=0))
    warm = WarmCall(
        call.a.device or 0, ready, recipe.program.workspace_bytes, call.shapes.result,
        dense_strides(call.shapes.result), result.dtype, extent(call.a), extent(call.b),
        extent(call.c), extent(call.out), layout, fused,
    )  # fmt: skip
    key = key_of(torch, a, b, c, call.c is not None, out, tuple(call.options), asked)
    if key is not None:
        remember(torch, key, warm)
