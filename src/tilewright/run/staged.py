"""Host arrays: copied to an executor, multiplied there, and the result copied back."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from ..arrays.extents import byte_extent
from ..arrays.result import as_callers_kind, bits_in, empty_like, host_bits, host_bytes, result_operand
from ..arrays.view import Operand
from ..gemm.call import Call
from ..gemm.freivalds import Device
from ..gemm.problem import INDEX
from ..gemm.verify import verified
from ..jit.launch import Executor
from .launches import recipe_for
from .program import fused_base


def run_staged(executor: Executor, call: Call, out: Any) -> Any:
    """Copy what the views reach to the executor, run there, copy the result back."""
    recipe = recipe_for(call, executor.gpu)
    kernels = recipe.kernels(executor.gpu)
    held: list[int] = []
    borrowed = recipe.program.workspace_bytes

    def hold(data: np.ndarray, name: str) -> int:
        held.append(executor.upload(data, name))
        return held[-1]

    def stage(operand: Operand, fill: bool) -> int:
        """The operand's bytes on the executor, at an address as aligned as on the host; its element 0's address."""
        low, high = byte_extent(operand)
        pad = low % 16
        data = np.full(pad + high - low, 0xFF, np.uint8)  # a NaN where nothing is copied
        if fill:
            data[pad:] = host_bytes(operand)
        return hold(data, operand.name) + pad + operand.address - low

    try:
        bases = {
            "a": stage(call.a, True),
            "b": stage(call.b, True),
            "c": stage(call.c, True) if call.c is not None else 0,
            "out": stage(call.out, False),
            "work": hold(np.full(borrowed, 0xFF, np.uint8), "workspace") if borrowed else 0,
        }
        for number, view in enumerate(call.fusion.views if call.fusion is not None else ()):
            bases[fused_base(number)] = stage(view, True) if view.dtype != INDEX else 0
        device = Device(
            executor.gpu, lambda size: hold(np.full(size, 0xFF, np.uint8), "verification"), executor.launch,
            executor.download,
        )  # fmt: skip
        with verified(recipe, bases, device) if call.verify else nullcontext():
            for number, _, launch, _, _ in recipe.launches(bases):
                executor.launch(kernels[number], launch)
        low, high = byte_extent(call.out)
        first = call.out.address - low
        raw = executor.download(bases["out"] - first, high - low)
    finally:
        for address in held:
            executor.release(address)
    bits = bits_in(raw, call.out, first)
    result = out if call.out_is_given else empty_like(call.a, call.shapes.result, call.out.dtype)
    target = call.out if call.out_is_given else result_operand(result, call.a)
    host_bits(target)[...] = bits
    return result if call.out_is_given else as_callers_kind(result, call.a)
