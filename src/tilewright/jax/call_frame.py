"""XLA's call of a foreign function, read by ctypes: no compiled code of our own stands between XLA and a launch.

The structures are those of xla/ffi/api/c_api.h, version 0.1 and newer ones, which only add fields at their ends. XLA
calls a handler with a call frame: operands and results as buffers, attributes, and its API, which gives the stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any, NamedTuple

from ..arrays.dlpack import dense_strides
from ..arrays.view import Operand

DTYPES = {10: "f16", 11: "f32", 16: "bf16"}
"""XLA's number of a type -> ours."""
EXECUTE = 3
METADATA = 1
INTERNAL = 13
STRING = 4


def _head(*fields: tuple[str, Any]) -> list[tuple[str, Any]]:
    """Fields after those that each structure begins with."""
    return [("struct_size", c_size_t), ("extension", c_void_p), *fields]


class Buffer(Structure):
    _fields_ = _head(("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))


class Many(Structure):
    """Operands, or results."""

    _fields_ = _head(("size", c_int64), ("types", POINTER(c_int)), ("items", POINTER(POINTER(Buffer))))


class Span(Structure):
    _fields_ = [("text", c_void_p), ("length", c_size_t)]

    def __str__(self) -> str:
        return ctypes.string_at(self.text, self.length).decode()


class Attributes(Structure):
    _fields_ = _head(
        ("size", c_int64), ("types", POINTER(c_int)), ("names", POINTER(POINTER(Span))), ("items", POINTER(c_void_p))
    )


class Version(Structure):
    _fields_ = _head(("major", c_int), ("minor", c_int))


_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class Api(Structure):
    """As far as functions are read here; each takes a structure and returns an error, or null."""

    _fields_ = _head(
        ("version", Version), ("internal", c_void_p), ("make_error", _FUNCTION), ("message", c_void_p),
        ("destroy_error", c_void_p), ("register", c_void_p), ("stream", _FUNCTION),
    )  # fmt: skip


class CallFrame(Structure):
    _fields_ = _head(
        ("api", POINTER(Api)), ("context", c_void_p), ("stage", c_int), ("operands", Many), ("results", Many),
        ("attributes", Attributes),
    )  # fmt: skip


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
"""(operands, results, the attribute "options", the stream, None on the host)."""


def _views(many: Many) -> list[View]:
    found = []
    for n in range(many.size):
        buffer = many.items[n].contents
        shape = tuple(buffer.dims[axis] for axis in range(buffer.rank))
        found.append(View(buffer.data or 0, shape, DTYPES.get(buffer.dtype, f"XLA's type {buffer.dtype}")))
    return found


def _stream_of(frame: CallFrame) -> int:
    asked = _Stream(ctypes.sizeof(_Stream), None, frame.context, None)
    error = frame.api.contents.stream(ctypes.addressof(asked))
    if error:
        raise RuntimeError("XLA gives no stream for this call")
    return asked.stream or 0


def _options(attributes: Attributes) -> str:
    for n in range(attributes.size):
        if attributes.types[n] == STRING and str(attributes.names[n].contents) == "options":
            return str(Span.from_address(attributes.items[n]))
    return "{}"


def handler(function: Function, on_gpu: bool) -> Any:
    """The C function that XLA calls for `function`. Keep it as long as XLA may call it."""

    def call(address: int) -> int | None:
        frame = CallFrame.from_address(address)
        if frame.extension:
            extension = _Extension.from_address(frame.extension)
            if extension.type == METADATA:  # XLA asks once, at registration, what the handler was written for
                metadata = _Metadata.from_address(extension.metadata)
                metadata.version.major, metadata.version.minor = 0, frame.api.contents.version.minor
                metadata.traits = 0
                return None
        if frame.stage != EXECUTE:
            return None
        try:
            stream = _stream_of(frame) if on_gpu else None
            function(_views(frame.operands), _views(frame.results), _options(frame.attributes), stream)
        except Exception as error:  # through C: XLA raises it again
            told = _Error(ctypes.sizeof(_Error), None, f"{type(error).__name__}: {error}".encode(), INTERNAL)
            return frame.api.contents.make_error(ctypes.addressof(told))
        return None

    return _FUNCTION(call)
