"""Boolean masks as torch has them, True where a pair takes part, turned into biases."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.loaded import loaded
from ..errors import InvalidOperand


def as_bias(bias: Any, q: Any) -> Any:
    """The bias; of an array of booleans 0 where it is True, -inf where it is False, made by its own library.

    Raises InvalidOperand for booleans of a library that is not torch, NumPy, CuPy or JAX.
    """
    dtype = getattr(bias, "dtype", None)
    if str(dtype) not in ("bool", "torch.bool") or isinstance(bias, np.generic):  # a number is refused by name
        return bias
    return _of_mask(bias, q)


def _of_mask(mask: Any, q: Any) -> Any:
    torch, cupy, jax = (loaded(name) for name in ("torch", "cupy", "jax"))
    if torch is not None and isinstance(mask, torch.Tensor):
        dtype = q.dtype if isinstance(q, torch.Tensor) and q.is_floating_point() else torch.float32
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask.logical_not(), -torch.inf)
    if isinstance(mask, (np.ndarray, np.generic)):
        return np.where(mask, np.float32(0), np.float32(-np.inf))
    if cupy is not None and isinstance(mask, cupy.ndarray):
        return cupy.where(mask, np.float32(0), np.float32(-np.inf))
    if jax is not None and isinstance(mask, jax.Array):
        return jax.numpy.where(mask, np.float32(0), np.float32(-np.inf))
    raise InvalidOperand(
        f"bias is a boolean {type(mask).__name__}; masks are read from torch, NumPy, CuPy and JAX arrays. Pass a float "
        "array with 0 for the pairs that take part and -inf for the others."
    )
