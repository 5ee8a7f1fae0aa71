"""The dtypes of operands and results, by whatever name or object the caller's library has for them."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .loaded import loaded

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1}
FP8 = ("e4m3", "e5m2")
LARGEST_EXTENT = 2**31 - 2**16
"""Kernels count in 32 bits, and their last tiles reach past the end."""
CPP_TYPES = {
    "f32": "float", "bf16": "struct bf16", "f16": "struct f16", "e4m3": "struct e4m3", "e5m2": "struct e5m2",
}  # fmt: skip
"""The device code's types. They are declared after the generated constants: hence `struct`."""

SHORT_NAMES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip
"""What the libraries call the dtypes, and what they are called here."""
DTYPE_NAMES = {short: name for name, short in SHORT_NAMES.items()}
"""What callers call the dtypes."""


def parse_dtype(value: Any, name: str = "out_dtype") -> str:
    """ "f32", "f16", "bf16", "e4m3" or "e5m2" of a name ("bf16", "bfloat16") or of a library's own dtype object.

    torch.bfloat16, np.float16, ml_dtypes.bfloat16 and jax.numpy.bfloat16 are such objects. Raises InvalidOperand.
    """
    text = value if isinstance(value, str) else str(value).removeprefix("torch.")
    if not isinstance(value, str) and text not in SHORT_NAMES:
        with contextlib.suppress(TypeError, ValueError):
            text = np.dtype(value).name if value is not None else text
    short = SHORT_NAMES.get(text, text)
    if short not in DTYPE_NAMES:
        raise InvalidOperand(
            f"{name}={value!r} is not a dtype of a result. Known: {', '.join(DTYPE_NAMES)}, their long names "
            f"({', '.join(SHORT_NAMES)}), and the dtype objects of NumPy, torch, JAX and ml_dtypes."
        )
    return short


_NOT_NUMPYS = ("bf16", *FP8)


def numpy_dtype(dtype: str, like: Any = None) -> np.dtype:
    """NumPy's dtype. bf16 and fp8 are not its own: `like`, an array of it, brings it, or ml_dtypes once imported.

    Raises InvalidOperand where neither does.
    """
    name = DTYPE_NAMES[dtype]
    if dtype not in _NOT_NUMPYS:
        return np.dtype(name)
    have = getattr(like, "dtype", None)
    if isinstance(have, np.dtype) and have.name == name:
        return have
    module = loaded("ml_dtypes")
    if module is None:
        raise InvalidOperand(
            f"NumPy has no {name} of its own for the result. Import ml_dtypes, pass an out of its dtype, or ask for "
            "another out_dtype."
        )
    return np.dtype(getattr(module, name))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
