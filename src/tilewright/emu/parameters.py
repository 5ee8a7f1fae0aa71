"""Arguments of a launch as the parameter buffer of a kernel, checked against the kernel's signature.

The PTX tells the size of a parameter, and whether a number is a float; the types that a C++ source gives them
(jit/entry.py) also what a pointer points to, signs, and half and bfloat16. What would only be reinterpreted is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import InvalidOperand
from ..jit.entry import ParameterType
from ..jit.tensor_map import TensorMap
from . import tensor_maps
from .arguments import Argument, parse_argument
from .isa.convert import f32_to_bf16
from .memory import SPACING, GlobalMemory
from .ptx import Parameter
from .textures import HANDLES, BoundSurface, Surface, Texture


@dataclass(frozen=True)
class BufferArgument:
    """An array in the emulator's memory: argument `number`, or what lies at offset `part` of a struct."""

    number: int
    address: int
    array: np.ndarray
    part: int | None = None

    def name(self, argument: str) -> str:
        """Return what the array is called where the argument has this name: `params_16` at offset 16 of `params`."""
        return argument if self.part is None else f"{argument}_{self.part}"

    def read(self, memory: GlobalMemory, *, last: bool = False) -> np.ndarray:
        """Return what the buffer holds now, of the array's shape. `last`: nobody needs the memory after this."""
        if not self.array.size:
            return self.array.copy()
        raw = (memory.held if last else memory.read)(self.address, span_of(self.array))
        held = np.ndarray(self.array.shape, self.array.dtype, raw, strides=self.array.strides)
        return held if held.flags.c_contiguous else held.copy()


def span_of(array: np.ndarray) -> int:
    """The bytes from an array's first element to the end of its last."""
    reach = sum((size - 1) * step for size, step in zip(array.shape, array.strides, strict=True))
    return array.itemsize + reach if array.size else 0


def laid_out(array: np.ndarray) -> np.ndarray:
    """Bytes in which an array's elements lie as its strides say, zeros between them: uint8."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    raw = np.zeros(span_of(array), np.uint8)
    np.ndarray(array.shape, array.dtype, raw, strides=array.strides)[...] = array
    return raw


@dataclass(frozen=True)
class Struct:
    """A struct that a kernel takes by value. `parts`: offset in bytes -> what lies there; the rest is zeros.

    A part is a NumPy array (a buffer argument, of which the struct holds the address), a TensorMap (128 bytes), a NumPy
    scalar, or bytes. Raises InvalidOperand for anything else; what overlaps or is too long is refused at the launch.
    """

    parts: Mapping[int, np.ndarray | np.generic | TensorMap | bytes]

    def __post_init__(self) -> None:
        for offset, part in self.parts.items():
            if not isinstance(offset, int) or offset < 0:
                raise InvalidOperand(f"a struct's part lies at {offset!r}; give its offset in bytes")
            if not isinstance(part, np.ndarray | np.generic | TensorMap | bytes):
                raise InvalidOperand(
                    f"the part at offset {offset} is {part!r:.60}; give an array, a TensorMap, bytes, or a NumPy "
                    "scalar such as np.int32(5)"
                )


@dataclass
class Packed:
    """The parameter buffer, and the buffer arguments in order."""

    params: bytes
    buffers: list[BufferArgument] = field(default_factory=list)
    images: dict[int, Texture | BoundSurface] = field(default_factory=dict)
    """Handle -> texture or surface."""


def pack(
    args: Sequence[Any],
    declared: Sequence[Parameter],
    types: Sequence[ParameterType] | None,
    memory: GlobalMemory,
    seed: int,
    names: Sequence[str] = (),
) -> Packed:
    """Put buffers into `memory` and everything into a parameter buffer. Raises InvalidOperand, which calls a parameter
    by its name in `names` (one for each, where they are known)."""
    random: int | np.random.Generator = seed
    if any(isinstance(value, str) for value in args):  # all of them draw from one
        random = np.random.default_rng(seed)
    memory.reserve(sum(value.nbytes + SPACING for value in args if isinstance(value, np.ndarray)) + SPACING)
    params = bytearray(max((p.offset + p.size for p in declared), default=0))
    packed = Packed(b"")
    placed = _Placed()
    for number, (value, parameter) in enumerate(zip(args, declared, strict=True)):
        declared_type = types[number] if types else None
        called = f"argument {number}" + (f", {names[number]}," if len(names) == len(declared) else "")
        if isinstance(value, TensorMap):
            data = _tensor_map(value, number, memory, packed, placed)
            if parameter.size == 8 and (declared_type is None or declared_type.pointers):  # a map in global memory
                data = memory.add(data, f"tensor map of argument {number}", read_only=True).to_bytes(8, "little")
            elif parameter.size != tensor_maps.BYTES:
                raise InvalidOperand(
                    f"argument {number} is a TensorMap; the parameter has {parameter.size} bytes, where a "
                    "`const __grid_constant__ CUtensorMap` has 128 and a pointer to one 8"
                )
        elif isinstance(value, Struct):
            data = _struct(value, parameter, number, memory, packed, placed)
        elif isinstance(value, Texture | Surface):
            if parameter.size != 8 or (declared_type is not None and declared_type.pointers):
                raise InvalidOperand(
                    f"argument {number} is a {value.what}; the kernel's parameter is "
                    f"{described(parameter, declared_type)}, where a cudaTextureObject_t has 8 bytes."
                )
            handle = HANDLES + 16 * number
            if isinstance(value, Texture):
                packed.images[handle] = replace(value, array=value.array.copy())
            else:
                array = np.array(value.array, value.array.dtype.newbyteorder("="), order="C")
                address = memory.add(array, f"argument {number}")
                packed.images[handle] = BoundSurface(value, address)
                packed.buffers.append(BufferArgument(number, address, array))
            data = handle.to_bytes(8, "little")
        else:
            argument = parse_argument(value, random)
            if argument.array is not None:
                _check_array(argument, parameter, declared_type, called)
                given = argument.array if isinstance(value, str) else value  # a text's array is its own
                at = placed.find(given, number, by_strides=False)
                if at is None:
                    at = memory.add(argument.array, f"argument {number}", empty=argument.empty)
                    placed.put(given, at, number, by_strides=False)
                packed.buffers.append(BufferArgument(number, at, argument.array))
                data = at.to_bytes(8, "little")
            else:
                data = scalar_bytes(argument, parameter, declared_type, called)
        params[parameter.offset : parameter.offset + parameter.size] = data
    packed.params = bytes(params)
    return packed


class _Placed:
    """The arrays that are in memory: one that is given twice is one buffer."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, int, int, bool]] = {}
        """By an array's identity: the array, its address, the argument's number, and whether it lies by its strides."""

    def find(self, array: Any, number: int, *, by_strides: bool) -> int | None:
        """Return where an array lies; None for one that is new. Raises InvalidOperand where it lies otherwise there, or
        where another array is over some of its memory: each would be a buffer of its own, as no GPU has it."""
        if id(array) in self._held:
            _, address, earlier, lies = self._held[id(array)]
            if lies != by_strides and not array.flags.c_contiguous:
                raise InvalidOperand(
                    f"arguments {earlier} and {number} are one array of strides {array.strides}; by itself an array is "
                    "laid out dense, in a struct or a tensor map by its strides. Pass np.ascontiguousarray of it."
                )
            return address
        for other, _, earlier, _ in self._held.values():
            if all(isinstance(each, np.ndarray) for each in (array, other)) and np.shares_memory(array, other):
                raise InvalidOperand(
                    f"arguments {earlier} and {number} are two arrays over the same memory; they would be two buffers. "
                    "Pass one array twice, or copies."
                )
        return None

    def put(self, array: Any, address: int, number: int, *, by_strides: bool) -> None:
        self._held[id(array)] = array, address, number, by_strides


def _tensor_map(
    value: TensorMap,
    number: int,
    memory: GlobalMemory,
    packed: Packed,
    placed: _Placed,
    part: int | None = None,
) -> bytes:
    if value.array is not None:
        value = value.at(_address(value.array, number, memory, packed, placed, part))
    return tensor_maps.pack(value)


def _address(
    array: np.ndarray,
    number: int,
    memory: GlobalMemory,
    packed: Packed,
    placed: _Placed,
    part: int | None = None,
) -> int:
    """Return where an array lies: a buffer argument of its own unless an earlier argument is the same array."""
    address = placed.find(array, number, by_strides=True)
    if address is None:
        if min(array.strides, default=0) < 0:
            raise InvalidOperand(f"an array of strides {array.strides} in argument {number}. Pass a copy of it.")
        address = memory.add(laid_out(array), f"argument {number}")
        placed.put(array, address, number, by_strides=True)
        packed.buffers.append(BufferArgument(number, address, array, part))
    return address


def _struct(
    value: Struct, parameter: Parameter, number: int, memory: GlobalMemory, packed: Packed, placed: _Placed
) -> bytes:
    """The bytes of a struct: arrays become buffers whose addresses lie in it. Raises InvalidOperand."""
    data, end = bytearray(parameter.size), 0
    for offset, part in sorted(value.parts.items()):
        if isinstance(part, TensorMap):
            piece = _tensor_map(part, number, memory, packed, placed, offset)
        elif isinstance(part, np.ndarray):
            piece = _address(part, number, memory, packed, placed, offset).to_bytes(8, "little")
        else:
            piece = part.tobytes() if isinstance(part, np.generic) else bytes(part)
        if offset < end or offset + len(piece) > parameter.size:
            raise InvalidOperand(
                f"argument {number}: {len(piece)} bytes at offset {offset} of a struct; the part before ends at {end}, "
                f"and the kernel's parameter has {parameter.size} bytes"
            )
        data[offset : offset + len(piece)] = piece
        end = offset + len(piece)
    return bytes(data)


def described(parameter: Parameter, declared: ParameterType | None) -> str:
    """A parameter's type in words: "float32*", "int32", ".u64"."""
    if declared is not None and (declared.kind or declared.pointers):
        return (declared.name if declared.kind else "void") + "*" * declared.pointers
    return f".{parameter.kind}" if parameter.kind else f"a struct of {parameter.size} bytes"


def _check_array(argument: Argument, parameter: Parameter, declared: ParameterType | None, called: str) -> None:
    """Raise InvalidOperand where the parameter is not a pointer, or points to something else."""
    wanted = described(parameter, declared)
    number_declared = declared is not None and bool(declared.kind) and not declared.pointers
    if parameter.size != 8 or parameter.kind == "f64" or number_declared:
        raise InvalidOperand(
            f"{called} ({argument.text}) is a buffer; the kernel's parameter is {wanted}, which is passed by "
            f"value. Pass {'a number' if parameter.kind else 'its bytes, or a tilewright.emu.Struct'}."
        )
    if declared is None or not declared.kind or declared.pointers != 1:
        return
    assert argument.array is not None
    have, size = argument.array.dtype, declared.bytes
    if declared.kind == "f":
        fits = have in (f"f{size}", f"c{2 * size}" if size > 2 else f"f{size}")
    elif declared.kind == "b":
        fits = have.name == "bfloat16" or have == np.uint16
    else:
        fits = have.kind in ("iub" if size == 1 else "iu") and have.itemsize == size
    if fits or (have.kind == "V" and have.fields):
        return
    convert = {"b": "ml_dtypes.bfloat16", "B": "bool"}.get(declared.kind, f"np.{declared.name}")
    raise InvalidOperand(
        f"{called} is an array of {have.name}; the kernel's parameter is {wanted}. Convert it: "
        f"array.astype({convert}), or array.view(...) for the same bytes as another type."
    )


def scalar_bytes(argument: Argument, parameter: Parameter, declared: ParameterType | None, called: str) -> bytes:
    """A number as the bytes that a parameter takes: by value, or for a struct as it lies in memory.

    Raises InvalidOperand for what does not fit, for a float where the parameter is an integer, and for a type that the
    caller named and the kernel has not.
    """
    scalar, size = argument.scalar, parameter.size
    given = f"{called} ({argument.text})"
    wanted = described(parameter, declared)
    known = declared is not None and declared.kind and not declared.vector
    if scalar is None:
        if parameter.size == 8 and (declared is None or declared.pointers):
            return bytes(size)
        raise InvalidOperand(f"{given} is a null pointer; the kernel's parameter is {wanted}. Pass a number.")
    if declared is not None and declared.pointers:
        if isinstance(scalar, bool | int | np.integer) and int(scalar) == 0:
            return bytes(size)
        raise InvalidOperand(
            f"{given} is a number; the kernel's parameter is {wanted}. Pass an array, or None for null."
        )
    if not known and not parameter.kind:
        if isinstance(scalar, np.generic) and scalar.dtype.itemsize == size:
            return scalar.tobytes()
        raise InvalidOperand(
            f"{given} is not {wanted}, which is what the kernel's parameter is. Pass its bytes: bytes(...), a NumPy "
            "scalar of that size; for half f16=1.5 or np.float16(1.5), for bfloat16 bf16=1.5."
        )
    kind = declared.kind if known and declared is not None else parameter.kind[0].replace("b", "s")
    if argument.kind:  # the caller named the type
        named = "b" if argument.kind == "bf16" else argument.kind[0]
        alike = kind == named if "f" in (kind, named) or "b" in (kind, named) else True
        if not alike or np.dtype(type(scalar)).itemsize != size:
            raise InvalidOperand(f"{given} is {argument.kind}; the kernel's parameter is {wanted}, of {size} bytes")
        if named == "b":
            return np.asarray(scalar, np.uint16).tobytes()
    number_given = scalar.item() if isinstance(scalar, np.generic) else scalar
    if not isinstance(number_given, bool | int | float):
        raise InvalidOperand(f"{given} is not a number; the kernel's parameter is {wanted}")
    if kind in "fb":
        return _float_bytes(float(number_given), kind, size, given, wanted)
    if isinstance(number_given, float):
        raise InvalidOperand(f"{given} is a float; the kernel's parameter is {wanted}, an integer. Pass int(...).")
    low, high = (0, 1) if kind == "B" else (0, (1 << 8 * size) - 1) if kind == "u" else _signed(size)
    if not known:  # PTX writes .u32 for int as well
        low, high = _signed(size)[0], (1 << 8 * size) - 1
    if not low <= number_given <= high:
        raise InvalidOperand(f"{given} is outside {low} to {high}, which the kernel's parameter, {wanted}, holds")
    return (int(number_given) % (1 << 8 * size)).to_bytes(size, "little")


def _signed(size: int) -> tuple[int, int]:
    return -(1 << 8 * size - 1), (1 << 8 * size - 1) - 1


def _float_bytes(value: float, kind: str, size: int, given: str, wanted: str) -> bytes:
    if kind == "b":
        bits = f32_to_bf16(np.array([value], np.float32))
        finite, data = bool(bits[0] & 0x7F80 != 0x7F80), bits.tobytes()
    else:
        with np.errstate(all="ignore"):
            rounded = np.array(value, f"f{size}")
        finite, data = bool(np.isfinite(rounded)), rounded.tobytes()
    if np.isfinite(value) and not finite:
        raise InvalidOperand(f"{given} is larger than any {wanted}, which is what the kernel's parameter is")
    return data
