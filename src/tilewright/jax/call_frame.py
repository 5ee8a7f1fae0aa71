"""XLA's call of a foreign function, read by ctypes: no compiled code of our own stands between XLA and a launch.

The structures are those of xla/ffi/api/c_api.h, version 0.1 and newer ones, which only add fields at their ends. XLA
calls a handler with a call frame: operands and results as buffers, attributes, and its API, which gives the stream.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import Structure, c_char_p, c_int, c_size_t, c_void_p, string_at
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.dlpack import dense_strides
from ..arrays.view import Operand

DTYPES = {10: "f16", 11: "f32", 16: "bf16"}
"""XLA's number of a type -> ours."""
EXECUTE = 3
METADATA = 1
INTERNAL = 13


def _head(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Fields after those that each structure begins with."""
    return [("struct_size", c_size_t), ("extension", c_void_p), *fields]


class Version(Structure):
    _fields_ = _head(("major", c_int), ("minor", c_int))


_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_QUICK = ctypes.PYFUNCTYPE(c_void_p, c_void_p)
"""XLA's own functions wait for nothing: to give the interpreter's lock back for them takes longer than they do."""


class Api(Structure):
    """The functions as far as they are read here; each takes a structure and returns an error, or null."""

    _fields_ = _head(
        ("version", Version), ("internal", c_void_p), ("make_error", _QUICK), ("message", c_void_p),
        ("destroy_error", c_void_p), ("register", c_void_p), ("stream", _QUICK),
    )  # fmt: skip


_FRAME = struct.Struct("<Q3Qi4x" + "2Q3Q" * 2 + "2Q4Q")
"""A call frame: its extension, the API, the context, the stage; operands, and results (how many, types, buffers);
attributes (how many, types, names, values). Read at once: fields of ctypes' structures take five times as long."""
_BUFFER = struct.Struct("<2Qi4xQqQ")
"""A buffer: its type, address, rank and extents, after its head."""
_POINTER = struct.Struct("<Q")
_SPAN = struct.Struct("<2Q")
"""A text: its address and length."""


class _Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class _Error(Structure):
    _fields_ = _head(("message", c_char_p), ("code", c_int))


class _Stream(Structure):
    _fields_ = _head(("context", c_void_p), ("stream", c_void_p))


class View(NamedTuple):
    """A dense, row-major buffer of XLA's."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    def operand(self, name: str, device: int | None, stream: int | None) -> Operand:
        """The buffer as the core takes it."""
        strides = tuple(
            0 if extent == 1 or 0 in self.shape else step
            for extent, step in zip(self.shape, dense_strides(self.shape), strict=True)
        )
        return Operand(name, "xla", self.address, self.shape, strides, self.dtype, device, stream=stream)


Function = Callable[[list[View], list[View], str, int | None], None]
"""(operands, results, the options, the stream, None on the host)."""


def _read(layout: struct.Struct, address: int) -> tuple[int, ...]:
    return layout.unpack(string_at(address, layout.size))


@lru_cache(maxsize=64)
def _many(code: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{code}")


def _views(count: int, items: int) -> list[View]:
    found = []
    for place in _read(_many("Q", count), items):
        _, _, dtype, data, rank, extents = _read(_BUFFER, place)
        shape = _read(_many("q", rank), extents) if rank else ()
        found.append(View(data, shape, DTYPES.get(dtype) or f"XLA's type {dtype}"))
    return found


def _stream_of(api: Api, context: int) -> int:
    asked = _Stream(ctypes.sizeof(_Stream), None, context, None)
    if api.stream(ctypes.addressof(asked)):
        raise RuntimeError("XLA gives no stream for this call")
    return asked.stream or 0


def _options(values: int) -> str:
    """The only attribute of our calls, a text."""
    (place,) = _read(_POINTER, values)
    address, length = _read(_SPAN, place)
    return string_at(address, length).decode()


def handler(function: Function, on_gpu: bool) -> Any:
    """The C function that XLA calls for `function`. Keep it as long as XLA may call it."""

    def call(address: int) -> int | None:
        _, extension, api_at, context, stage, *rest = _read(_FRAME, address)
        api = Api.from_address(api_at)
        if extension and _Extension.from_address(extension).type == METADATA:
            # XLA asks once, at registration, what the handler was written for
            metadata = _Metadata.from_address(_Extension.from_address(extension).metadata)
            metadata.version.major, metadata.version.minor = 0, api.version.minor
            metadata.traits = 0
            return None
        if stage != EXECUTE:
            return None
        try:
            _, _, operands, _, operands_at, _, _, results, _, results_at, *_, values = rest
            stream = _stream_of(api, context) if on_gpu else None
            function(_views(operands, operands_at), _views(results, results_at), _options(values), stream)
        except Exception as error:  # through C: XLA raises it again
            told = _Error(ctypes.sizeof(_Error), None, f"{type(error).__name__}: {error}".encode(), INTERNAL)
            return api.make_error(ctypes.addressof(told))
        return None

    return _FUNCTION(call)
