"""DLPack, both ways: the tensor inside another library's capsule, and a capsule around device memory of ours.

Layout from DLPack 1.0, dlpack.h. Both capsule forms are read and made: "dltensor", and "dltensor_versioned", which
adds a version and flags (bit 0: read-only).
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import InvalidOperand
from .memory import LOW, WORDS

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_FLOAT, _BFLOAT, _E4M3FN, _E5M2 = 2, 4, 10, 12
_TYPE_CODES = {
    (_FLOAT, 32): "f32", (_FLOAT, 16): "f16", (_BFLOAT, 16): "bf16", (_E4M3FN, 8): "e4m3", (_E5M2, 8): "e5m2",
}  # fmt: skip
_READ_ONLY = 1
LEGACY_STREAM = 1
"""What the protocol calls the default stream that a launch names 0."""
_KIND_NAMES = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool"}

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# A capsule's destructor sees it with no reference left: as a py_object it would be counted up, and destroyed twice.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.pythonapi
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)

# A capsule keeps a pointer to its name, not a copy.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


class Raw(NamedTuple):
    """The tensor in a capsule, as far as it is read. The memory that it tells of must outlive it."""

    address: int
    place: int
    """DLPack's kind of device, and the ordinal in the upper half."""
    kind: int
    """The number of axes; in the upper half the type's code, bits and lanes, of 8, 8 and 16 bits."""
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements; None: dense, row-major."""
    read_only: bool

    @staticmethod
    def of(capsule: Any, name: str) -> Raw:
        """Raises InvalidOperand for what is no unused capsule of a version that is read here."""
        try:
            at = _pointer(capsule, _VERSIONED) >> 3
        except ValueError:  # another name
            flags, at = 0, _plain(capsule, name)
        else:
            version, flags = WORDS[at], WORDS[at + 3]
            if version & LOW != 1:
                raise InvalidOperand(f"{name} offers DLPack {version & LOW}.{version >> 32}; only 1.x is read here.")
            at += 4
        data, place, kind, shape, strides, offset = WORDS[at : at + 6]
        axes, shape, strides = kind & LOW, shape >> 3, strides >> 3
        steps = tuple(WORDS[strides : strides + axes]) if strides else None
        return Raw(data + offset, place, kind, tuple(WORDS[shape : shape + axes]), steps, bool(flags & _READ_ONLY))


def _plain(capsule: Any, name: str) -> int:
    """The word at which the tensor in a capsule from before DLPack 1.0 begins. Raises InvalidOperand for no capsule."""
    try:
        return int(_pointer(capsule, _PLAIN)) >> 3
    except ValueError:
        raise InvalidOperand(f"{name}.__dlpack__() did not return an unused DLPack capsule, but {capsule!r}.") from None


class Imported:
    """The tensor in a capsule, which stays unused and is kept: when both are gone, the capsule gives the tensor back to
    its producer by itself. Taking it over, as a library does that makes an array of it, costs four more calls."""

    def __init__(self, capsule: Any, name: str) -> None:
        self.capsule = capsule
        raw = Raw.of(capsule, name)
        self.read_only, self.address, self.shape = raw.read_only, raw.address, raw.shape
        self.strides: tuple[int, ...] = dense_strides(self.shape) if raw.strides is None else raw.strides
        """In elements."""
        self.device: int | None = None if raw.place & LOW in (CPU, CUDA_HOST) else raw.place >> 32
        """The GPU's ordinal; None on the host."""
        code, bits, lanes = (raw.kind >> 32) & 0xFF, (raw.kind >> 40) & 0xFF, (raw.kind >> 48) & 0xFFFF
        self.dtype = _TYPE_CODES.get((code, bits), "") if lanes == 1 else ""
        """As dtypes.ITEM_BYTES; for any other a description, such as "float64"."""
        if not self.dtype:
            described = f"{_KIND_NAMES.get(code, 'type ' + str(code))}{bits}"
            self.dtype = described if lanes == 1 else f"{described}x{lanes}"


@lru_cache(maxsize=1024)
def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def capsule_of(value: Any, stream: int | None) -> Any:
    """Return what `__dlpack__` gives, with what is under way ordered before `stream`. Raises what the producer
    raises."""
    try:
        return value.__dlpack__(max_version=(1, 0), stream=stream)
    except TypeError:  # a producer from before DLPack 1.0
        return value.__dlpack__(stream=stream)


def take(value: Any, name: str, stream: int) -> Imported:
    """The tensor that `value.__dlpack__()` gives, with what its producer has under way ordered before `stream`.

    `stream` is a CUstream as an integer. Raises InvalidOperand for a device that is neither host nor CUDA, and for an
    export that the producer refuses.
    """
    kind, ordinal = value.__dlpack_device__()
    kind = int(kind)
    if kind not in (CPU, CUDA, CUDA_HOST, CUDA_MANAGED):
        raise InvalidOperand(f"{name} lies on DLPack device ({kind}, {ordinal}); only the host and CUDA GPUs are read.")
    try:
        capsule = capsule_of(value, None if kind in (CPU, CUDA_HOST) else stream or LEGACY_STREAM)
    except (BufferError, ValueError, TypeError, RuntimeError) as error:
        raise InvalidOperand(f"{name} ({type(value).__name__}) cannot be exported through DLPack: {error}") from error
    return Imported(capsule, name)


@dataclass
class _Export:
    """The memory that a capsule of ours points into, alive until its consumer gives it back."""

    managed: Any
    shape: Any
    strides: Any
    owner: Any


_exports: dict[int, _Export] = {}


@atexit.register
def _leave_to_the_process() -> None:
    """Let consumers that outlive the interpreter give tensors back to nobody: no callback can run then. What their
    capsules point into stays."""
    for export in list(_exports.values()):
        export.managed.deleter = None
        _api.Py_IncRef(ctypes.py_object(export))


@_Deleter
def _give_back(address: int) -> None:
    _exports.pop(address, None)


@_Destructor
def _drop(capsule: int) -> None:
    """A capsule that nobody took gives its tensor back itself."""
    for unused in (_PLAIN, _VERSIONED):
        if _raw_is_valid(capsule, unused):
            _exports.pop(_raw_pointer(capsule, unused), None)


def _address_of(callback: Callable[..., Any]) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def give(
    address: int, shape: tuple[int, ...], dtype: str, device: tuple[int, int], owner: Any, *, versioned: bool
) -> Any:
    """A capsule around dense row-major memory. `owner` lives until the consumer gives the capsule's tensor back."""
    managed: Any = _Versioned(major=1, minor=0) if versioned else _Managed()
    code, bits = next(key for key, known in _TYPE_CODES.items() if known == dtype)
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    strides = (ctypes.c_int64 * max(len(shape), 1))(*dense_strides(shape))
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = address, *device
    tensor.ndim, tensor.dtype = len(shape), _DataType(code, bits, 1)
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _address_of(_give_back)
    place = ctypes.addressof(managed)
    _exports[place] = _Export(managed, extents, strides, owner)
    return _new_capsule(place, _VERSIONED if versioned else _PLAIN, _address_of(_drop))
