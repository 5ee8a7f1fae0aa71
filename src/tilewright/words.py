"""What the public calls take and give, for type checkers: words as Literals, arrays as what libraries offer."""

from __future__ import annotations

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
