"""Arithmetic on the two halves or four bytes of a word: what the __v... functions of CUDA become."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from .registry import Compute, elementwise, executes

_FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "absdiff": lambda a, b: np.absolute(a - b),
    "min": np.minimum,
    "max": np.maximum,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}


def _parts(values: np.ndarray, kind: str, count: int) -> np.ndarray:
    """[lanes, count] int32 of the parts of each word."""
    part = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{4 // count}")
    return np.ascontiguousarray(values).view(part).reshape(-1, count).astype(np.int32)


def _whole(parts: np.ndarray, count: int) -> np.ndarray:
    return np.ascontiguousarray(parts).astype(f"u{4 // count}").view(np.uint32).reshape(-1)


_NAMES = "|".join(f"v{name}{count}" for name in _FUNCTIONS for count in (2, 4))


@executes(f"{{op:{_NAMES}}}.{{to:u32|s32}}.{{a:u32|s32}}.{{b:u32|s32}}{{sat:.sat|}}{{sum:.add|}}", kind="int")
@elementwise(types=("b32", "b32", "b32", "b32"))
def by_parts(machine: Machine, fields: dict[str, str]) -> Compute:
    """One operation on each part; with .add their sum and c. Without a mask c is not looked at otherwise."""
    function, count = _FUNCTIONS[fields["op"][1:-1]], int(fields["op"][-1])
    limits = np.iinfo(f"{'i' if fields['to'][0] == 's' else 'u'}{4 // count}")

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        result = function(_parts(a, fields["a"], count), _parts(b, fields["b"], count))
        if fields["sat"]:
            result = np.clip(result, limits.min, limits.max)
        if fields["sum"]:
            np.copyto(out, result.sum(axis=1).astype(np.uint32) + c)
        else:
            np.copyto(out, _whole(result, count))

    return compute


@executes("{op:add|min|max}.{type:u16x2|s16x2}", "{op:min|max}.{type:s16x2}{relu:.relu}", kind="int")
@elementwise(types=("b32", "b32", "b32"))
def by_halves(machine: Machine, fields: dict[str, str]) -> Compute:
    """One operation on each half; with .relu, of a number below 0 a 0."""
    function, kind = _FUNCTIONS[fields["op"]], fields["type"]
    least = 0 if "relu" in fields else np.iinfo(np.int32).min

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.copyto(out, _whole(np.maximum(function(_parts(a, kind, 2), _parts(b, kind, 2)), least), 2))

    return compute


@executes("{op:min|max}.s32.relu", kind="int")
@elementwise(types=("s32", "s32", "s32"))
def extreme_above_zero(machine: Machine, fields: dict[str, str]) -> Compute:
    """The smaller or larger number; 0 where that is below 0."""
    function = _FUNCTIONS[fields["op"]]
    return lambda out, a, b: np.copyto(out, np.maximum(function(a, b), 0))
