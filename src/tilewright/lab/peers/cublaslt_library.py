"""The functions of cuBLASLt that a product takes, by ctypes, from whichever package brings the library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import DeviceError, MissingDependency, install

_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_FOLDERS = ("cu13/lib", "cublas/lib")
"""Of NVIDIA's wheels, in the package `nvidia`."""


class MatmulDescAttribute(IntEnum):
    """cublasLtMatmulDescAttributes_t, what is used of it."""

    TRANSA = 3
    TRANSB = 4


class MatmulPreferenceAttribute(IntEnum):
    """cublasLtMatmulPreferenceAttributes_t, what is used of it."""

    MAX_WORKSPACE_BYTES = 1


class CublasLt:
    """The library, its handles as integers. Raises DeviceError where a function fails."""

    MatmulDescAttribute = MatmulDescAttribute
    MatmulPreferenceAttribute = MatmulPreferenceAttribute

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"{name} failed with status {status} (cublasStatus_t).")

    def _made(self, name: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), *arguments)
        return int(handle.value or 0)

    def get_version(self) -> int:
        return int(self._library.cublasLtGetVersion())

    def create(self) -> int:
        return self._made("cublasLtCreate")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._made("cublasLtMatmulDescCreate", compute, scale)

    def matmul_desc_set_attribute(self, desc: int, attribute: int, place: int, size: int) -> None:
        self._call("cublasLtMatmulDescSetAttribute", _pointer(desc), attribute, _pointer(place), ctypes.c_size_t(size))

    def matrix_layout_create(self, kind: int, rows: int, cols: int, ld: int) -> int:
        extents = ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(ld)
        return self._made("cublasLtMatrixLayoutCreate", kind, *extents)

    def matmul_preference_create(self) -> int:
        return self._made("cublasLtMatmulPreferenceCreate")

    def matmul_preference_set_attribute(self, preference: int, attribute: int, place: int, size: int) -> None:
        self._call(
            "cublasLtMatmulPreferenceSetAttribute", _pointer(preference), attribute, _pointer(place),
            ctypes.c_size_t(size),
        )  # fmt: skip

    def matmul_preference_destroy(self, preference: int) -> None:
        self._call("cublasLtMatmulPreferenceDestroy", _pointer(preference))

    def matmul_algo_get_heuristic(
        self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, most: int, found: int,
        count: int,
    ) -> None:  # fmt: skip
        layouts = map(_pointer, (handle, desc, a, b, c, d, preference))
        self._call("cublasLtMatmulAlgoGetHeuristic", *layouts, most, _pointer(found), _pointer(count))

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, a_lies: int, b: int, b_lies: int, beta: int, c: int,
        c_lies: int, d: int, d_lies: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        places = map(
            _pointer, (handle, desc, alpha, a, a_lies, b, b_lies, beta, c, c_lies, d, d_lies, algorithm, workspace)
        )
        self._call("cublasLtMatmul", *places, ctypes.c_size_t(size), _pointer(stream))


_pointer = ctypes.c_void_p


def _places() -> Iterator[str]:
    """Return where the library may be: by its name, which finds the one that torch has loaded, then in NVIDIA's
    wheels."""
    yield from _NAMES
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from (str(Path(root) / folder / name) for folder in _FOLDERS for name in _NAMES)


def cublaslt() -> CublasLt:
    """The library. Raises MissingDependency where none is installed."""
    for place in _places():
        try:
            return CublasLt(ctypes.CDLL(place))
        except OSError:
            continue
    raise MissingDependency(
        f"cuBLASLt is not installed: no {' or '.join(_NAMES)}. Install it with: {install('cublaslt')}"
    )
