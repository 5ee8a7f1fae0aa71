"""The facts that decide how an array is read, without reading it: for calls that were made before (arrays/view.py
reads).

A view makes its arrays' rules hold and says in words which do not. What was remembered has passed them, so that a call
of the same signature needs no more than addresses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import dlpack
from ..arrays.loaded import loaded
from ..arrays.memory import LOW
from ..arrays.view import Operand, as_operand
from ..errors import InvalidOperand
from ..jit import device_calls
from . import libraries


class Glance(NamedTuple):
    """An array of a call. `kind`, `address`, `device` and `stream`: as Operand has them."""

    signature: tuple[Any, ...]
    """All that decides how it is read but its address, of which it has the low bits."""
    kind: str
    address: int
    device: int | None
    stream: int | None
    keep: Any
    """What keeps the memory."""

    def operand(self) -> Operand:
        """Return as much of a view as a result is made by."""
        if isinstance(self.keep, Operand):
            return self.keep
        return Operand("a", self.kind, self.address, (), (), "f32", self.device, stream=self.stream, owner=self.keep)


def glance(value: Any, stream: int = 0) -> Glance:
    """Raises what reading the array may raise: InvalidOperand, and what its own protocol does.

    DLPack's producers order what they have under way before `stream`.
    """
    kind = type(value)
    library = libraries.known.get(kind)
    if library is not None:
        return _of_library(library, value)
    if kind is _last_on_gpu[0] and (found := _of_dlpack(value, stream)) is not None:
        return found
    if kind is np.ndarray:
        address = value.ctypes.data
        of_numpy = (kind, value.shape, value.strides, value.dtype, address & 15, value.flags.writeable)
        return Glance(of_numpy, "numpy", address, None, None, value)
    if not isinstance(value, (np.ndarray, Operand)):
        if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
            if (found := _of_dlpack(value, stream)) is not None:
                return found
        elif (interface := getattr(value, "__cuda_array_interface__", None)) is not None:
            return _of_interface(value, interface)
    view = as_operand(value, "a", stream)
    signature = (
        view.kind, view.shape, view.strides, view.dtype, view.device, view.address & 15, view.read_only, view.stream,
    )  # fmt: skip
    return Glance(signature, view.kind, view.address, view.device, view.stream, view)


def _of_library(library: libraries.Library, value: Any) -> Glance:
    ordinal = library.ordinal(value)
    signature = library.signature(value)
    if ordinal < 0 or library.has_tangents():
        raise InvalidOperand("not on a GPU, or differentiated forwards")
    return Glance(signature, library.kind, library.address(value), ordinal, library.stream(ordinal), value)


_last_on_gpu: tuple[type | None, str] = None, ""
"""The type of the last array on a GPU that DLPack gave, and its kind. Arrays of it are not asked where they are, since
their capsule says it."""


def _of_dlpack(value: Any, stream: int) -> Glance | None:
    """Return the glance; None for memory of the host."""
    global _last_on_gpu
    last, kind = _last_on_gpu
    expected = type(value) is last
    if not expected:
        where, _ = value.__dlpack_device__()
        if where != dlpack.CUDA:
            return None
    try:
        capsule = dlpack.capsule_of(value, stream or dlpack.LEGACY_STREAM)
    except Exception:  # what producers raise for a stream where they have none
        if not expected:
            raise
        _last_on_gpu = None, ""
        return _of_dlpack(value, stream)
    address, place, form, shape, strides, read_only = dlpack.Raw.of(capsule, "a")
    if place & LOW != dlpack.CUDA:
        _last_on_gpu = None, ""
        return None
    if not expected:
        jax = loaded("jax")
        kind = "jax" if jax is not None and isinstance(value, jax.Array) else "dlpack"
        _last_on_gpu = type(value), kind
    signature = (kind, place, form, shape, strides, read_only, address & 15)
    return Glance(signature, kind, address, place >> 32, None, (value, capsule))


def _of_interface(value: Any, interface: Any) -> Glance:
    address, read_only = interface["data"]
    strides, stream = interface.get("strides"), interface.get("stream")
    ordinal = device_calls.ordinal_of(int(address)) if address else 0
    signature = (
        "cuda_array_interface", tuple(interface["shape"]), interface["typestr"], strides and tuple(strides),
        (address or 0) & 15, bool(read_only), interface.get("version"), interface.get("mask") is None, stream, ordinal,
    )  # fmt: skip
    return Glance(signature, "cuda_array_interface", address or 0, ordinal, 0 if stream == 1 else stream, value)
