"""The grammar of kernel arguments: `f32[1024]=random`, `i32=1024`, or NumPy arrays and numbers.

TYPE[N,M,...]=WHAT   a device buffer;  WHAT: random, nan, zeros, ones, arange, FILE.npy
TYPE=VALUE           a scalar, passed by value
TYPE                 f16 bf16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64; bf16 is held as its bits in uint16
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from .isa.convert import f32_to_bf16

TYPES: dict[str, type] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
MOST_AXES = 32
MOST_ELEMENTS = 2**40
FILLS = ("random", "nan", "zeros", "ones", "arange")
_BUFFER = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*=\s*(.+?)\s*$")
_SCALAR = re.compile(r"\s*(\w+)\s*=\s*(.+?)\s*$")


@dataclass
class Argument:
    """One argument: `array` for a buffer (C order), else `scalar`. `text` is how the caller wrote it."""

    text: str
    kind: str
    array: np.ndarray | None = None
    scalar: np.generic | int | float | None = None


def _type(name: str, text: str) -> type:
    if name not in TYPES:
        raise InvalidOperand(f"argument {text!r}: {name!r} is no type. Types: {', '.join(TYPES)}.")
    return TYPES[name]


def _fill(what: str, kind: str, shape: tuple[int, ...], random: np.random.Generator, text: str) -> np.ndarray:
    dtype: np.dtype = np.dtype(_type(kind, text))
    floating = kind in ("f16", "bf16", "f32", "f64")
    if what.endswith(".npy"):
        try:
            values = np.load(Path(what), allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InvalidOperand(f"argument {text!r}: {what} could not be read ({error})") from error
        if not isinstance(values, np.ndarray):
            raise InvalidOperand(f"argument {text!r}: {what} holds several arrays. Save one of them with numpy.save.")
        if values.shape != shape:
            raise InvalidOperand(f"argument {text!r}: {what} holds the shape {values.shape}, not {shape}")
        if values.dtype == dtype:
            return np.array(values, order="C")
        if values.dtype.kind not in "biuf":
            raise InvalidOperand(f"argument {text!r}: {what} holds {values.dtype}, which is no {kind}. Convert it.")
        if not floating and (values.dtype.kind == "f" or _beyond(values, np.iinfo(dtype))):
            raise InvalidOperand(f"argument {text!r}: {what} holds {values.dtype}, which {kind} would cut")
    elif what == "nan":
        if not floating:
            raise InvalidOperand(f"argument {text!r}: an integer cannot be NaN. Try zeros.")
        values = np.full(shape, np.nan)
    elif what == "random":
        if floating:
            values = random.standard_normal(shape)
        else:
            limits = np.iinfo(dtype)
            return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    elif what in ("zeros", "ones"):
        values = np.full(shape, float(what == "ones"))
    elif what == "arange":
        values = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    else:
        raise InvalidOperand(f"argument {text!r}: {what!r} fills nothing. Try one of {', '.join(FILLS)}, or FILE.npy.")
    if kind == "bf16":
        return f32_to_bf16(np.asarray(values, np.float32).reshape(-1)).reshape(shape)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _beyond(values: np.ndarray, limits: np.iinfo) -> bool:
    """Whether a whole number among `values` is outside the limits of a type."""
    return values.size > 0 and (int(values.min()) < limits.min or int(values.max()) > limits.max)


def _shape(sizes: str, text: str) -> tuple[int, ...]:
    """The sizes between the brackets. Raises InvalidOperand for what no array can have."""
    parts = [part.strip() for part in re.split(r"[,x]", sizes)]
    if not all(re.fullmatch("[0-9]+", part) for part in parts):
        raise InvalidOperand(f"argument {text!r}: [{sizes}] is no shape. Write it as [4,8].")
    if len(parts) > MOST_AXES or any(len(part) > 15 for part in parts):
        raise InvalidOperand(f"argument {text!r:.80}: no buffer is that large. Give up to {MOST_AXES} sizes.")
    shape = tuple(map(int, parts))
    if prod(shape) > MOST_ELEMENTS:
        raise InvalidOperand(f"argument {text!r}: {prod(shape)} elements; a buffer has {MOST_ELEMENTS} at most.")
    return shape


def _parse(text: str, random: np.random.Generator) -> Argument:
    if match := _BUFFER.match(text):
        kind, sizes, what = match.groups()
        _type(kind, text)
        return Argument(text, kind, array=_fill(what, kind, _shape(sizes, text), random, text))
    if match := _SCALAR.match(text):
        kind, value = match.groups()
        dtype: np.dtype = np.dtype(_type(kind, text))
        try:
            if kind == "bf16":
                bits = f32_to_bf16(np.array([float(value)], np.float32))
                return Argument(text, kind, scalar=np.uint16(bits[0]))
            if dtype.kind == "f":
                with np.errstate(all="ignore"):
                    return Argument(text, kind, scalar=dtype.type(float(value)))
            number = int(value, 0)
        except ValueError as error:
            raise InvalidOperand(f"argument {text!r}: {value!r} is no value of {kind}") from error
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise InvalidOperand(f"argument {text!r}: {number} is outside {kind}, {limits.min} to {limits.max}")
        return Argument(text, kind, scalar=dtype.type(number))
    raise InvalidOperand(
        f"argument {text!r} is not understood. Write f32[1024]=random for a buffer, i32=1024 for a scalar."
    )


def parse_argument(value: Any, seed: int | np.random.Generator = 0) -> Argument:
    """One argument: a string of the grammar, a NumPy array (copied), or a number. Raises InvalidOperand."""
    random = np.random.default_rng(seed) if isinstance(seed, int) else seed
    if isinstance(value, str):
        return _parse(value, random)
    if isinstance(value, np.ndarray) and value.ndim:
        if value.dtype.hasobject:
            raise InvalidOperand(f"an array of {value.dtype} cannot be a device buffer")
        return Argument(f"array {value.shape} {value.dtype}", str(value.dtype), array=np.array(value, order="C"))
    if isinstance(value, np.ndarray | np.generic):
        scalar: Any = np.asarray(value)[()]
        return Argument(f"{scalar.dtype} {scalar}", str(scalar.dtype), scalar=scalar)
    if isinstance(value, bool | int | float):
        return Argument(repr(value), type(value).__name__, scalar=value)
    raise InvalidOperand(
        f"an argument of type {type(value).__name__} is not understood; give an array, a number or a string"
    )


def scalar_bytes(argument: Argument, nbytes: int, number: int, kind: str = "") -> bytes:
    """A scalar as the `nbytes` that parameter `number` takes, of the PTX type `kind`.

    A Python int becomes a float where the parameter is one. Raises InvalidOperand when it does not fit, and for a
    float where the parameter is an integer or the other way round.
    """
    scalar = argument.scalar
    if kind in ("f32", "f64") and isinstance(scalar, int):
        scalar = float(scalar)
    floating = isinstance(scalar, float) or (isinstance(scalar, np.generic) and scalar.dtype.kind == "f")
    if kind and (kind[0] == "f") != floating:
        wants, given = ("a float", "an integer") if kind[0] == "f" else ("an integer", "a float")
        raise InvalidOperand(
            f"argument {number} ({argument.text}) is {given}; the kernel's parameter .{kind} is {wants}"
        )
    if isinstance(scalar, np.generic):
        have = scalar.dtype.itemsize
        if have != nbytes:
            raise InvalidOperand(
                f"argument {number} ({argument.text}) has {have} bytes; the kernel's parameter has {nbytes}"
            )
        return scalar.tobytes()
    if isinstance(scalar, float):
        if nbytes not in (4, 8):
            raise InvalidOperand(
                f"argument {number} ({argument.text}) is a float; the kernel's parameter has {nbytes} bytes"
            )
        return np.array(scalar, f"f{nbytes}").tobytes()
    assert isinstance(scalar, int)
    if nbytes not in (1, 2, 4, 8) or not -(1 << 8 * nbytes - 1) <= scalar < 1 << 8 * nbytes:
        raise InvalidOperand(
            f"argument {number} ({argument.text}) does not fit the {nbytes} bytes of the kernel's parameter"
        )
    return (int(scalar) % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
