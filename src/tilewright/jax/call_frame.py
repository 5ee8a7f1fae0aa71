"""XLA's call of a foreign function, read by ctypes: no compiled code of our own stands between XLA and a launch.

The structures are those of xla/ffi/api/c_api.h, version 0.1 and newer ones, which only add fields at their ends. XLA
calls a handler with a call frame: operands and results as buffers, attributes, and its API, which gives the stream.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import Structure, c_char_p, c_int, c_size_t, c_void_p, string_at
from functools import lru_cache
from typing import Any, NamedTuple

from ..arrays.dlpack import dense_strides
from ..arrays.memory import LOW, WORDS
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


class _Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class _Error(Structure):
    _fields_ = _head(("message", c_char_p), ("code", c_int))


class _Stream(Structure):
    _fields_ = _head(("context", c_void_p), ("stream", c_void_p))


_SIZE_OF_STREAM = ctypes.sizeof(_Stream)


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


def _views(count: int, items: int) -> list[View]:
    """`items`: the address of the buffers' addresses."""
    found, items = [], items >> 3
    for place in WORDS[items : items + count]:
        at = place >> 3
        _, _, dtype, data, rank, extents = WORDS[at : at + 6]  # the first two are its head
        dtype, extents = dtype & LOW, extents >> 3
        found.append(View(data, tuple(WORDS[extents : extents + rank]), DTYPES.get(dtype) or f"XLA's type {dtype}"))
    return found


@lru_cache(maxsize=4)
def _asks_stream(api: int) -> Any:
    return Api.from_address(api).stream


def _stream_of(api: int, context: int) -> int:
    asked = _Stream(_SIZE_OF_STREAM, None, context, None)
    if _asks_stream(api)(ctypes.addressof(asked)):
        raise RuntimeError("XLA gives no stream for this call")
    return asked.stream or 0


def _options(values: int) -> str:
    """The only attribute of our calls, a text."""
    at = WORDS[values >> 3] >> 3
    return string_at(WORDS[at], WORDS[at + 1]).decode()


_this_thread = threading.local()
_kept: list[int] = []
MOST_KEPT = 64
"""Threads of XLA's own whose state is kept. One that ends leaves some KiB behind; it has as many as a pool has."""


def keep_thread_state() -> None:
    """Let the interpreter keep what it has made for a thread that Python did not start: else it does so anew for each
    call out of C, which takes 18 us to 28."""
    if hasattr(_this_thread, "asked"):
        return
    _this_thread.asked = True
    ident = threading.get_ident()
    if len(_kept) < MOST_KEPT and all(thread.ident != ident for thread in threading.enumerate()):
        _kept.append(ctypes.pythonapi.PyGILState_Ensure())  # what ctypes releases after the call is not the last one


def handler(function: Function, on_gpu: bool) -> Any:
    """The C function that XLA calls for `function`. Keep it as long as XLA may call it."""

    def call(address: int) -> int | None:
        # a head of two words, the API, the context, the stage; then, each after a head of its own, operands and results
        # (how many, types, buffers) and attributes (how many, types, names, values)
        frame = WORDS[address >> 3 : (address >> 3) + 21].tolist()
        extension, api_at, context, stage = frame[1], frame[2], frame[3], frame[4] & LOW
        if extension and _Extension.from_address(extension).type == METADATA:
            # XLA asks once, at registration, what the handler was written for; jax 0.5 and 0.6 leave the API out
            metadata = _Metadata.from_address(_Extension.from_address(extension).metadata)
            minor = Api.from_address(api_at).version.minor if api_at else 1
            metadata.version.major, metadata.version.minor = 0, minor
            metadata.traits = 0
            return None
        if stage != EXECUTE:
            return None
        try:
            keep_thread_state()
            stream = _stream_of(api_at, context) if on_gpu else None
            function(_views(frame[7], frame[9]), _views(frame[12], frame[14]), _options(frame[20]), stream)
        except Exception as error:  # through C: XLA raises it again
            told = _Error(ctypes.sizeof(_Error), None, f"{type(error).__name__}: {error}".encode(), INTERNAL)
            return Api.from_address(api_at).make_error(ctypes.addressof(told))
        return None

    return _FUNCTION(call)
