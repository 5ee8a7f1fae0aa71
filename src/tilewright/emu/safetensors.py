"""Arrays out of a .safetensors file: eight bytes, which count those of a JSON header, the header, then all data."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

TYPES = {
    "F64": ("f8", ""), "F32": ("f4", ""), "F16": ("f2", ""), "BF16": ("u2", "bf16"), "F8_E4M3": ("u1", "e4m3"),
    "F8_E5M2": ("u1", "e5m2"), "I64": ("i8", ""), "I32": ("i4", ""), "I16": ("i2", ""), "I8": ("i1", ""),
    "U64": ("u8", ""), "U32": ("u4", ""), "U16": ("u2", ""), "U8": ("u1", ""), "BOOL": ("?", ""),
}  # fmt: skip
"""The file's name of a type -> NumPy's, and what the bits are where NumPy has no such type."""


def read(path: Path, choose: Callable[[list[str]], str]) -> tuple[np.ndarray, str]:
    """The array that `choose` picks from the names in the file, and what its bits are if NumPy cannot say.

    Raises OSError, or ValueError for a file that is not what it says.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= path.stat().st_size - 8:
            raise ValueError("its header does not fit into the file")
        header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError("its header is no table of arrays")
        entry = header[choose([name for name in header if name != "__metadata__"])]
        try:
            kind, shape, (start, stop) = (
                entry["dtype"],
                tuple(map(int, entry["shape"])),
                map(int, entry["data_offsets"]),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"its header says {entry!r:.60} of the array") from error
        if kind not in TYPES:
            raise ValueError(f"its type {kind!r:.20} is not one of {', '.join(TYPES)}")
        dtype = np.dtype(TYPES[kind][0]).newbyteorder("<")
        if min(shape, default=0) < 0 or start < 0 or stop - start != prod(shape) * dtype.itemsize:
            raise ValueError(f"{stop - start} bytes are not an array of {kind} {list(shape)}")
        if 8 + size + stop > path.stat().st_size:
            raise ValueError("the file ends before the array does")
        file.seek(8 + size + start)
        data = file.read(stop - start)
    return np.frombuffer(data, dtype).reshape(shape), TYPES[kind][1]
