"""Arrays to fp8 with scales, as products of fp8 take them."""

from __future__ import annotations

import sys
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from ..arrays.dtypes import DTYPE_NAMES, FP8, ceil_div, numpy_dtype, parse_dtype
from ..arrays.float8 import LARGEST, Float8Array, to_bits
from ..arrays.loaded import loaded
from ..arrays.view import as_operand, refuse_proxy
from ..errors import InvalidOperand, MissingDependency, install, suggests
from ..jit.launch import current_executor
from ..run.runner import run
from ..run.warm import MISS, WarmCalls
from .quantize_call import QuantizeCall

calls = WarmCalls()
LEAST_SCALE = 2.0**-126
"""The least normal number of fp32, so that dividing by a scale is exact enough."""


@suggests
def quantize(x: Any, dtype: Any = "e4m3", *, block: tuple[int, int] | None = None) -> tuple[Any, Any]:
    """Return (x8, scale): x rounded to fp8, and the scales that give it back: x is about x8 * scale.

    x: [..., rows, columns], float32, float16 or bfloat16. From a torch tensor the results are tensors; from a NumPy
        array x8 has ml_dtypes' type; from a CuPy array x8 is a Float8Array.
    dtype: "e4m3" (the largest number is 448) or "e5m2" (57344), or a library's own dtype object.
    block: (rows, columns) that share a scale; -1 stands for a whole axis, None for all of x. For `matmul`:
            block        shape of the scales                          scales of
            None         ()                                           a or b
            (1, -1)      [..., m, 1], one per row                     a
            (-1, 1)      [..., 1, n], one per column                  b
            (1, 128)     [..., m, ceil(k / 128)]                      a
            (128, 128)   [..., ceil(k / 128), ceil(n / 128)]          b

    A scale is the largest finite magnitude of its block divided by the dtype's largest number, in float32; a block of
    zeros has scale 1, and none is below 2^-126. x8 is x / scale, computed in float32 and rounded to nearest even. NaN
    stays. An infinity stays in e5m2 and becomes NaN in e4m3. Scales of (1, 128) are stored column by column, because
    kernels read those of neighbouring rows together. x8 has x's layout where its rows are contiguous. Quantize a weight
    [n, k] as it is, and pass its transpose to `matmul`.

    Raises InvalidOperand for other arrays, dtypes and blocks; MissingDependency where ml_dtypes is not installed.
    """
    short = parse_dtype(dtype, "dtype")
    if short not in FP8:
        raise InvalidOperand(f"dtype={dtype!r} is not fp8. Pass 'e4m3' or 'e5m2'.")
    refuse_proxy(x, "x")
    shape = tuple(getattr(x, "shape", ()))
    _check_block(block, shape)
    torch, cupy = loaded("torch"), loaded("cupy")
    if torch is not None and isinstance(x, torch.Tensor):
        _check_dtype(str(x.dtype).removeprefix("torch."))
        with torch.no_grad():
            return of_tensor(x, short, block, torch)
    if cupy is not None and isinstance(x, cupy.ndarray):
        _check_dtype(x.dtype.name)
        if x.size:
            return _on_device(x, short, block)
        bits, scale = _of_numpy(np.empty(shape, np.float32), short, block)
        return Float8Array(cupy.asarray(bits), short), cupy.asarray(scale)
    if isinstance(x, np.ndarray):
        _check_dtype(x.dtype.name)
        as_operand(x, "x")  # a masked array is refused here too
        x = np.asarray(x)  # rows of a np.matrix have two axes
        try:
            import_module("ml_dtypes")
        except ImportError as error:
            raise MissingDependency(f"NumPy has fp8 by way of ml_dtypes only: {install('fp8')}.") from error
        if x.size and current_executor() is not None:
            return _on_device(x, short, block)
        bits, scale = _of_numpy(x, short, block)
        return bits.view(numpy_dtype(short)), scale
    raise InvalidOperand(f"x is of type {type(x).__name__}. Pass a torch tensor, or a NumPy or CuPy array.")


def _check_dtype(name: str) -> None:
    if name not in ("float32", "float16", "bfloat16"):
        raise InvalidOperand(f"x is {name}. Pass float32, float16 or bfloat16.")


def _check_block(block: Any, shape: tuple[int, ...]) -> None:
    if block is None:
        return
    pair = isinstance(block, tuple) and len(block) == 2
    whole = pair and all(isinstance(side, (int, np.integer)) and not isinstance(side, bool) for side in block)
    if not whole or any(side <= 0 and side != -1 for side in block):
        raise InvalidOperand(
            f"block={block!r}: pass (rows, columns) that share a scale, -1 for all of an axis, or None."
        )
    if len(shape) < 2:
        raise InvalidOperand(f"block={block} is of a matrix, and x has shape {shape}. Omit it, or add an axis.")


def _blocks(shape: tuple[int, ...], block: tuple[int, int] | None) -> tuple[tuple[int, ...], tuple[int, int]]:
    """x's shape as [batch, rows, columns], and the rows and columns of a block."""
    if block is None:
        size = prod(shape)
        return (1, 1, size), (1, max(size, 1))  # of an empty array one block of nothing
    *batch, rows, cols = shape
    sides = (
        max(extent if side == -1 else min(side, extent), 1) for side, extent in zip(block, (rows, cols), strict=True)
    )
    return (prod(batch), rows, cols), tuple(sides)  # type: ignore[return-value]


def _of_numpy(x: np.ndarray, dtype: str, block: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    (batch, rows, cols), (high, wide) = _blocks(x.shape, block)
    flat = x.astype(np.float32).reshape(batch, rows, cols)
    down, across = (1, 1) if block is None else (ceil_div(rows, high), ceil_div(cols, wide))
    magnitude = np.zeros((batch, down * high, across * wide), np.float32)
    magnitude[:, :rows, :cols] = np.where(np.isfinite(flat), np.abs(flat), 0)
    largest = magnitude.reshape(batch, down, high, across, wide)
    largest = largest.max(axis=(2, 4)) if largest.size else np.zeros((batch, down, across), np.float32)
    scale = np.maximum(largest / np.float32(LARGEST[dtype]), np.float32(LEAST_SCALE))
    scale = np.where(largest == 0, np.float32(1), scale).astype(np.float32)
    each = np.repeat(np.repeat(scale, high, 1)[:, :rows], wide, 2)[:, :, :cols]
    with np.errstate(invalid="ignore", over="ignore"):
        bits = to_bits(flat / each, dtype)
    if high == 1:  # by columns
        scale = np.ascontiguousarray(scale.swapaxes(1, 2)).swapaxes(1, 2)
    scale_shape = () if block is None else (*x.shape[:-2], down, across)
    return bits.reshape(x.shape), scale.reshape(scale_shape)


def _on_device(x: Any, dtype: str, block: tuple[int, int] | None) -> tuple[Any, Any]:
    """`quantize` of a checked array by kernels, where it lies."""
    shape = tuple(x.shape)
    _, (high, wide) = _blocks(shape, block)
    if block is None:
        flat = x.reshape((1, prod(shape[:-1]), prod(shape[-1:])))
        high, wide = tuple(flat.shape[1:])
    else:
        flat = x.reshape((prod(shape[:-2]), *shape[-2:]))
    view = as_operand(flat, "x")
    turned = view.strides[2] != 1 and view.strides[1] == 1 and view.shape[2] > 1
    if turned:  # rows of what lies by columns
        view, (high, wide) = as_operand(flat.swapaxes(1, 2), "x"), (wide, high)
    given = None
    if view.kind == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(view.device):
            given = Float8Array(cupy.empty(view.shape, cupy.uint8), dtype)
    call = QuantizeCall(view, high, wide, dtype, given)
    (x8, scale), ran = run(call)
    x8 = x8 if given is None else given.bits
    if high == 1:
        scale = scale.swapaxes(1, 2)
    if turned:
        x8, scale = x8.swapaxes(1, 2), scale.swapaxes(1, 2)
    x8 = x8.reshape(shape)
    scale = scale.reshape(() if block is None else (*shape[:-2], *scale.shape[1:]))
    if ran is not None and given is None and view.address == as_operand(x, "x").address:  # no copy of it
        calls.remember(call, (x8, scale), ran, (x,), (dtype, block))
    return x8 if given is None else Float8Array(x8, dtype), scale


def of_tensor(x: Any, dtype: str, block: tuple[int, int] | None, torch: Any) -> tuple[Any, Any]:
    """`quantize` of a tensor, with checked arguments: by kernels, or by operations where torch traces or watches it, or
    no kernel can reach it."""
    if torch.compiler.is_compiling():
        return of_torch(x, dtype, block, torch)
    from ..arrays import eager  # it imports torch

    counts = max((prod(x.shape[:-1]), *x.shape[-1:])) < 1 << 31  # kernels do, in 32 bits, along each axis
    if not (x.numel() and counts and eager.is_eager((x,)) and eager.runs_here(x)):
        return of_torch(x, dtype, block, torch)
    x = x.detach()
    found = calls.run((x,), (dtype, block))
    return _on_device(x, dtype, block) if found is MISS else tuple(found)


def of_torch(x: Any, dtype: str, block: tuple[int, int] | None, torch: Any) -> tuple[Any, Any]:
    """`quantize` of a tensor, with checked arguments, by operations that torch.compile can fuse."""
    (batch, rows, cols), (high, wide) = _blocks(tuple(x.shape), block)
    flat = x.detach().float().reshape(batch, rows, cols)
    down, across = (1, 1) if block is None else (ceil_div(rows, high), ceil_div(cols, wide))
    magnitude = torch.where(torch.isfinite(flat), flat.abs(), 0.0)
    if (down * high, across * wide) != (rows, cols):
        magnitude = torch.nn.functional.pad(magnitude, (0, across * wide - cols, 0, down * high - rows))
    if magnitude.numel():
        largest = magnitude.reshape(batch, down, high, across, wide).amax(dim=(2, 4))
    else:
        largest = magnitude.new_zeros(batch, down, across)
    most = torch.full_like(largest, LARGEST[dtype])  # on a GPU torch divides by a number by way of its inverse
    scale = torch.clamp(largest / most, min=LEAST_SCALE)
    scale = torch.where(largest == 0, 1.0, scale)
    each = scale.repeat_interleave(high, 1)[:, :rows].repeat_interleave(wide, 2)[:, :, :cols]
    scaled = flat / each
    if dtype == "e4m3":  # it has no infinity; newer versions of torch make its largest number of one
        scaled = torch.where(torch.isinf(scaled), torch.copysign(torch.full_like(scaled, torch.nan), scaled), scaled)
    x8 = scaled.to(getattr(torch, DTYPE_NAMES[dtype]))
    if high == 1:  # by columns
        scale = scale.mT.contiguous().mT
    scale_shape = () if block is None else (*x.shape[:-2], down, across)
    return x8.reshape(x.shape), scale.reshape(scale_shape)
