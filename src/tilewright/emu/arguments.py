"""The grammar of kernel arguments: `f32[1024]=random`, `i32=1024`, or NumPy arrays and numbers.

TYPE[N,M,...]=WHAT   a device buffer;  WHAT: random, nan, zeros, ones, arange, empty, FILE.npy, FILE.npz:NAME,
                     FILE.safetensors:NAME (empty: to read an element before the kernel has written it is a fault)
TYPE[N,M,...]        the same as =empty
FILE.npy             a device buffer of the type and shape in the file; so FILE.npz:NAME and FILE.safetensors:NAME
TYPE=VALUE           a scalar of that type, passed by value
VALUE                a number of the parameter's type
TYPE                 f16 bf16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64, for buffers also e4m3 e5m2; bf16 is held as its
                     bits in uint16, fp8 (e4m3 e5m2) in uint8
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from operator import index
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..arrays import float8
from ..arrays.dtypes import FP8
from ..arrays.view import refuse_masked
from ..errors import InvalidOperand, did_you_mean
from . import safetensors
from .isa.convert import f32_to_bf16

TYPES: dict[str, type] = {
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "e4m3": np.uint8, "e5m2": np.uint8,
}  # fmt: skip
MOST_AXES = 32
MOST_ELEMENTS = 2**40
FILLS = ("random", "nan", "zeros", "ones", "arange", "empty")
_BUFFER = re.compile(r"\s*(\w+)\s*\[([^\]]*)\]\s*(?:=\s*(.+?)\s*)?$")
_FILE = re.compile(r"(.+\.npy|.+\.(?:npz|safetensors)(?::(.+))?)$")
_SCALAR = re.compile(r"\s*(\w+)\s*=\s*(.+?)\s*$")


@dataclass
class Argument:
    """One argument: `array` for a buffer (C order, the caller's own where it is), else `scalar`. `text` is how the
    caller wrote it. Neither: a null pointer."""

    text: str
    kind: str
    """One of TYPES where the caller named it, a dtype's name for an array; "" for a plain number."""
    array: np.ndarray | None = None
    scalar: np.generic | int | float | None = None
    empty: bool = False
    """Nothing of the array may be read before it is written."""


def _type(name: str, text: str) -> type:
    if name not in TYPES:
        raise InvalidOperand(f"argument {text!r}: {name!r} is not a type. Types: {', '.join(TYPES)}.")
    return TYPES[name]


def _fill(what: str, kind: str, shape: tuple[int, ...], random: np.random.Generator, text: str) -> np.ndarray:
    dtype: np.dtype = np.dtype(_type(kind, text))
    floating = kind in ("f16", "bf16", "f32", "f64", *FP8)
    if _FILE.match(what):
        values, held = _read(what, text)
        if values.shape != shape:
            raise InvalidOperand(f"argument {text!r}: {what} holds the shape {values.shape}, not {shape}")
        if values.dtype == dtype and held in ("", kind):
            return np.array(values, order="C")
        values = as_numbers(values, held)
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
    elif what == "empty":
        return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
    elif what == "arange":
        values = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    else:
        raise InvalidOperand(
            f"argument {text!r}: {what!r} is not a fill.{did_you_mean(what, FILLS)} "
            f"Fills: {', '.join(FILLS)}, or FILE.npy."
        )
    if kind == "bf16":
        return f32_to_bf16(np.asarray(values, np.float32).reshape(-1)).reshape(shape)
    if kind in FP8:
        return float8.to_bits(np.asarray(values, np.float32), kind)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _read(what: str, text: str) -> tuple[np.ndarray, str]:
    """The array in FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME, and its type where NumPy has none of it."""
    path, ending, name = next((parts for end in _ARCHIVES if (parts := what.partition(f"{end}:"))[2]), (what, "", ""))
    path = path + ending.removesuffix(":")
    try:
        if path.endswith(".safetensors"):
            return safetensors.read(Path(path), lambda names: _named(name, names, what, text))
        values = np.load(Path(path), allow_pickle=False)
        if not isinstance(values, np.ndarray):
            with values as archive:
                values = archive[_named(name, list(archive), what, text)]
    except (OSError, ValueError, EOFError, KeyError, OverflowError, RecursionError, BadZipFile) as error:
        if isinstance(error, InvalidOperand):
            raise
        raise InvalidOperand(f"argument {text!r}: {what} could not be read ({error})") from error
    return values, ""


_ARCHIVES = (".npz", ".safetensors")


def _named(name: str, names: list[str], what: str, text: str) -> str:
    """The array asked for, of those in an archive: without a name, the only one."""
    name = name or (names[0] if len(names) == 1 else "")
    if name not in names:
        shown = ", ".join(names) or "none"
        raise InvalidOperand(f"argument {text!r}: {what} holds the arrays {shown}. Name one: FILE.npz:NAME")
    return name


def as_numbers(values: np.ndarray, kind: str) -> np.ndarray:
    """An array that can be computed with: the bits of bf16 or fp8 (kind "bf16", "e4m3", "e5m2") as float32."""
    if kind == "bf16" and values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return float8.to_values(values, kind) if kind in FP8 and values.dtype == np.uint8 else values


def _beyond(values: np.ndarray, limits: np.iinfo) -> bool:
    """Return whether a whole number among `values` is outside the limits of a type."""
    return values.size > 0 and (int(values.min()) < limits.min or int(values.max()) > limits.max)


def _shape(sizes: str, text: str) -> tuple[int, ...]:
    """The sizes between the brackets. Raises InvalidOperand for what no array can have."""
    parts = [part.strip() for part in re.split(r"[,x]", sizes)]
    if not all(re.fullmatch("[0-9]+", part) for part in parts):
        raise InvalidOperand(f"argument {text!r}: [{sizes}] is not a shape. Write it as [4,8].")
    if len(parts) > MOST_AXES or any(len(part) > 15 for part in parts):
        raise InvalidOperand(f"argument {text!r:.80}: no buffer is that large. Give up to {MOST_AXES} sizes.")
    shape = tuple(map(int, parts))
    if prod(shape) > MOST_ELEMENTS:
        raise InvalidOperand(f"argument {text!r}: {prod(shape)} elements; a buffer has {MOST_ELEMENTS} at most.")
    return shape


def _parse(text: str, random: np.random.Generator) -> Argument:
    if match := _BUFFER.match(text):
        kind, sizes, what = match[1], match[2], match[3] or "empty"
        _type(kind, text)
        return Argument(text, kind, array=_fill(what, kind, _shape(sizes, text), random, text), empty=what == "empty")
    if match := _SCALAR.match(text):
        kind, value = match.groups()
        dtype: np.dtype = np.dtype(_type(kind, text))
        if kind in FP8:
            raise InvalidOperand(f"argument {text!r}: {kind} is for buffers, {kind}[N]=random")
        try:
            if kind == "bf16":
                bits = f32_to_bf16(np.array([float(value)], np.float32))
                return Argument(text, kind, scalar=np.uint16(bits[0]))
            if dtype.kind == "f":
                with np.errstate(all="ignore"):
                    return Argument(text, kind, scalar=dtype.type(float(value)))
            number = int(value, 0)
        except ValueError as error:
            raise InvalidOperand(f"argument {text!r}: {value!r} is not a value of {kind}") from error
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise InvalidOperand(f"argument {text!r}: {number} is outside {kind}, {limits.min} to {limits.max}")
        return Argument(text, kind, scalar=dtype.type(number))
    if _FILE.match(text.strip()):
        values, held = _read(text.strip(), text)
        argument = parse_argument(values)
        return replace(argument, kind=held) if held else argument
    for convert in (lambda number: int(number, 0), float):
        try:
            return Argument(text, "", scalar=convert(text))
        except ValueError:
            continue
    raise InvalidOperand(
        f"argument {text!r} is not understood. Write f32[1024]=random for a buffer, 1024 or i32=1024 for a number."
    )


def parse_argument(value: Any, seed: int | np.random.Generator = 0) -> Argument:
    """One argument: a string of the grammar, an array, a number, None (a null pointer) or bytes.

    Arrays are NumPy's, or those of another library on the host that speaks DLPack (torch). Raises InvalidOperand.
    """
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidOperand(
                f"an argument of type {type(value).__name__} cannot be read as a NumPy array: {error}. Pass one: of a "
                "torch tensor x, x.detach().cpu().numpy(); of bfloat16, its bits as uint16."
            ) from error
    if isinstance(value, str):
        return _parse(value, np.random.default_rng(seed) if isinstance(seed, int) else seed)
    refuse_masked(value, "an argument")
    if isinstance(value, np.ndarray) and value.ndim:
        if value.dtype.hasobject:
            raise InvalidOperand(f"an array of {value.dtype} cannot be a device buffer")
        native = value.dtype.newbyteorder("=")  # a GPU is little-endian, as every host of it
        return Argument(f"array {value.shape} {native}", str(native), array=np.asarray(value, native, order="C"))
    if isinstance(value, np.ndarray | np.generic):
        scalar: Any = np.asarray(value).astype(np.asarray(value).dtype.newbyteorder("="))[()]
        return Argument(f"{scalar.dtype} {scalar}", "", scalar=scalar)
    if value is None:
        return Argument("None", "")
    if isinstance(value, bool | int | float):
        return Argument(repr(value), "", scalar=value)
    if isinstance(value, bytes | bytearray):
        return Argument(f"{len(value)} bytes", "", scalar=np.void(bytes(value)))
    raise InvalidOperand(
        f"an argument of type {type(value).__name__} is not understood; give an array, a number or a string"
    )


def whole_number(value: Any, what: str, least: int) -> int:
    """`value` as an integer. Raises InvalidOperand, in which it is `what`, for what is none, or below `least`."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InvalidOperand(f"{what} is {value!r:.60}; pass a whole number of at least {least}.")
    return number
