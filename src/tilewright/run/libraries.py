"""The part of an array library that the warm path asks: torch and CuPy, each by its quickest calls.

Everything here that is private to a library is looked up once. Where a name is gone, that library has no warm path:
its calls take the full one, which asks by public names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

Signature = tuple[Any, ...]


class Arrays:
    """What both have."""

    device: Callable[[], int]
    """Returns the current GPU."""
    duals: Any = SimpleNamespace(_current_level=-1)
    """torch.autograd.forward_ad; below 0 no array has a tangent."""

    def is_plain(self, ordinal: int) -> bool:
        """Return whether results can be made on the GPU as it is current, and no operand has a tangent."""
        return bool(self.device() == ordinal and self.duals._current_level < 0)

    def has_tangents(self) -> bool:
        """Return whether an operand may have a tangent, which would be lost."""
        return bool(self.duals._current_level >= 0)


class TorchArrays(Arrays):
    """torch.Tensor and torch.nn.Parameter on a GPU. Raises AttributeError where torch lacks a name."""

    kind = "torch"

    def __init__(self, torch: Any) -> None:
        self.types: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
        self.address: Callable[[Any], int] = torch.Tensor.data_ptr
        self.stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self.new = allocator(torch)
        self._bump: Callable[[Any], None] = torch.autograd.graph.increment_version
        self._byte = torch.uint8
        self.device = torch._C._cuda_getDevice
        self.duals = torch.autograd.forward_ad
        self.duals._current_level  # noqa: B018
        from ..arrays import eager  # which imports torch

        self.is_recorded: Callable[[], bool] = eager.is_recorded
        self.is_graded: Callable[[], bool] = torch.is_grad_enabled
        self.modes: Callable[[], int] = torch._C._len_torch_dispatch_stack

    def pair(self, a: Any, b: Any) -> Signature:
        """Return what decides how two arrays are read, in one flat tuple: half the time of two signatures."""
        return (
            a.shape, a.stride(), a.data_ptr() & 15, a.dtype, a.get_device(), a.is_neg(),
            b.shape, b.stride(), b.data_ptr() & 15, b.dtype, b.get_device(), b.is_neg(),
            (a.requires_grad or b.requires_grad) and self.is_graded(),
        )  # fmt: skip

    def rows(self, a: Any, b: Any) -> tuple[tuple[int, ...], Signature] | None:
        """Return a's shape but for its last axis, and what decides besides those extents how a's rows and b are read.
        None where a is not rows at one distance."""
        if a.dim() != 2 and not a.is_contiguous():
            return None
        return a.shape[:-1], (
            a.dim(), a.shape[-1], a.stride()[-2:], a.data_ptr() & 15, a.dtype, a.get_device(), a.is_neg(),
            b.shape, b.stride(), b.data_ptr() & 15, b.dtype, b.get_device(), b.is_neg(),
            (a.requires_grad or b.requires_grad) and self.is_graded(),
        )  # fmt: skip

    def signature(self, x: Any) -> Signature:
        return (
            x.shape, x.stride(), x.data_ptr() & 15, x.dtype, x.get_device(), x.requires_grad and self.is_graded(),
            x.is_neg(),
        )  # fmt: skip

    def strides(self, x: Any) -> tuple[int, ...]:
        """Return what `new` takes besides the shape for an array that lies like a new one."""
        return tuple(x.stride())

    def ordinal(self, x: Any) -> int:
        """Return the GPU of an array; a negative number for the host."""
        return int(x.get_device())

    def mark_written(self, x: Any) -> None:
        """See arrays.written.mark_written."""
        if not x.is_inference():
            self._bump(x)

    def scratch(self, nbytes: int) -> tuple[Any, int]:
        """Memory of the library's pool, which keeps it apart until the stream has passed, and its address."""
        held = self.new((nbytes,), (1,), self._byte)
        return held, held.data_ptr()


class CupyArrays(Arrays):
    """cupy.ndarray."""

    kind = "cupy"

    def __init__(self, cupy: Any) -> None:
        self.types: tuple[type, ...] = (cupy.ndarray,)
        self._array, self._alloc = cupy.ndarray, cupy.cuda.alloc
        self.device = cupy.cuda.runtime.getDevice
        self._stream = cupy.cuda.get_current_stream

    def address(self, x: Any) -> int:
        return int(x.data.ptr)

    def stream(self, ordinal: int) -> int:
        return int(self._stream(ordinal).ptr)

    def pair(self, a: Any, b: Any) -> Signature:
        return (
            a.shape, a.strides, a.data.ptr & 15, a.dtype.char, a.data.device_id,
            b.shape, b.strides, b.data.ptr & 15, b.dtype.char, b.data.device_id,
        )  # fmt: skip

    def rows(self, a: Any, b: Any) -> tuple[tuple[int, ...], Signature] | None:
        if a.ndim != 2 and not a.flags.c_contiguous:
            return None
        return a.shape[:-1], (
            a.ndim, a.shape[-1], a.strides[-2:], a.data.ptr & 15, a.dtype.char, a.data.device_id,
            b.shape, b.strides, b.data.ptr & 15, b.dtype.char, b.data.device_id,
        )  # fmt: skip

    def signature(self, x: Any) -> Signature:
        return x.shape, x.strides, x.data.ptr & 15, x.dtype.char, x.data.device_id

    def new(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        return self._array(shape, dtype)

    def strides(self, x: Any) -> tuple[int, ...]:
        return ()

    def ordinal(self, x: Any) -> int:
        return int(x.data.device_id)

    def mark_written(self, x: Any) -> None:
        """CuPy keeps no versions."""

    def scratch(self, nbytes: int) -> tuple[Any, int]:
        held = self._alloc(nbytes)
        return held, int(held.ptr)


Library = TorchArrays | CupyArrays
known: dict[type, Library] = {}
"""The library of each type of array that a warm call may have."""


def learn(kind: str) -> Library | None:
    """The library of operands of a kind (arrays.view.Operand.kind); None where it has no warm path here."""
    library = _library(kind)
    for array in library.types if library is not None else ():
        known[array] = library  # type: ignore[assignment]
    return library


@lru_cache(maxsize=8)
def _library(kind: str) -> Library | None:
    try:
        if kind == "torch":
            return TorchArrays(sys.modules["torch"])
        return CupyArrays(sys.modules["cupy"]) if kind == "cupy" else None
    except AttributeError:
        return None


def allocator(torch: Any) -> Any:
    """Return what makes a new tensor on the current GPU from (shape, strides, dtype) at the least host time: what code
    that torch.compile writes calls, half that of torch.empty_strided, itself half that of torch.empty. Torches without
    it have the second."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    quick = getattr(guards, "_empty_strided_cuda", None)
    return quick or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda"))


def guard(*tensors: Any) -> Callable[..., bool] | None:
    """Return torch's own test, by which its compiled code asks whether it may run, of whether each of as many tensors
    has the type, dtype, shape, strides, device and lazy negation of its like here, and requires a gradient as that
    does, while autocast, inference mode, transforms of torch.func and dispatch modes of a user's are what they are now.

    None where torch has none, and of one tensor that is there twice, of which it says no.
    """
    guards: Any = getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "guards", None)
    with suppress(AttributeError, TypeError, RuntimeError, SystemError):
        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        found = guards.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        if found.check(*tensors):
            check: Callable[..., bool] = found.check
            return check
    return None


def lying_as(*tensors: Any) -> Callable[..., bool]:
    """Return what tells of as many tensors of torch's whether they lie as these: a guard where there is one."""
    laid = list(map(_lies, tensors))
    return guard(*tensors) or (lambda *given: list(map(_lies, given)) == laid)


def _lies(x: Any) -> tuple[Any, ...]:
    return type(x), x.dtype, x.shape, x.stride(), x.is_neg(), x.device, x.requires_grad
