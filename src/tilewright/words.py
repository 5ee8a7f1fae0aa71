"""The types that public calls take and give: words as Literals, arrays as libraries offer them, results that tell
themselves."""

from __future__ import annotations

from html import escape
from typing import Any, Literal, Protocol, TypeVar

Precision = Literal["ieee", "tf32", "fp32x3", "fast"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
HeadLayout = Literal["bhsd", "bshd"]
Hazards = Literal["raise", "collect"]


class _HostArray(Protocol):
    def __array__(self, *args: Any, **options: Any) -> Any: ...


class _Dlpack(Protocol):
    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> Any: ...


Array = TypeVar("Array", bound=_HostArray | _Dlpack | _CudaArray)
"""The kind of array that a call is given, and gives back."""


class Told:
    """For dataclasses (repr=False) with a `__str__`: a prompt and a notebook show that, not every field."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
