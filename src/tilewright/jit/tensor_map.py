"""The description of a tensor that TMA copies boxes of, and CUDA's rules for it.

A `TensorMap` stands for a `const __grid_constant__ CUtensorMap` parameter. The driver encodes it for a GPU
(`jit.loaded.encode_for_driver`), the emulator packs it into 128 bytes of its own (emu/tensor_maps.py).

All sizes are in the kernel's order: dimension 0 is the contiguous one, as in cuTensorMapEncodeTiled and in the
coordinates of cp.async.bulk.tensor. `TensorMap.of` takes a NumPy array and a box in the array's order instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..errors import InvalidOperand
from ..gpus import HashedOnce

BYTES = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2,
    "f32_ftz": 4, "tf32": 4, "tf32_ftz": 4,
}  # fmt: skip
"""Type -> bytes of an element; in the order of CUtensorMapDataType."""
DTYPES = tuple(BYTES)
FLOATING = frozenset(name for name in BYTES if "f" in name)
SWIZZLES = (0, 32, 64, 128)
"""Bytes of a swizzled row, in the order of CUtensorMapSwizzle; 0: none."""
OOB_FILLS = ("zero", "nan")
MOST_BOX = 256
"""Elements of a box along one dimension."""
MOST_PIXELS = 1024
"""Pixels of a column."""
CORNER_BITS = {3: 16, 4: 8, 5: 4}
"""Dimensions of images -> bits of a corner of the bounding box, along each of their axes."""
SHARED_ALIGNMENT = 128
"""Bytes that the address of a box in shared memory is a multiple of."""
_NUMPY = {
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64", "float16": "f16",
    "float32": "f32", "float64": "f64", "int8": "u8", "int16": "u16", "bfloat16": "bf16",
}  # fmt: skip


@dataclass(frozen=True)
class TensorMap(HashedOnce):
    """A tensor in global memory and the box of it that one copy moves. Raises InvalidOperand against CUDA's rules.

    address: bytes, a multiple of 16; None while only `array` is known. dtype: one of DTYPES. shape: elements, 1 to 5
    dimensions. strides: bytes of dimensions 1 and up. box, element_strides: elements (a box of b elements with a step
    of s copies ceil(b / s) of them). swizzle: bytes of a swizzled row, or 0. oob_fill: "zero" or "nan".
    """

    address: int | None
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    oob_fill: str = "zero"
    fetched: int = 256
    """Bytes that L2 fetches from memory at once for a copy, 128 or 256: a hint."""
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Of a map of images ("im2col"), else None: how far the box in which a column's pixels lie is from the first pixel
    of an image, and from the last, along width, height and depth. `box` is (channels of a pixel, pixels of a column)
    then, and element_strides are the steps from pixel to pixel."""
    array: Any = field(default=None, compare=False, repr=False)
    """The NumPy array that it was made of, where it was."""

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.shape))
        if why := self.why_not():
            raise InvalidOperand(f"tensor map: {why}")

    @property
    def rank(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return BYTES[self.dtype]

    @cached_property
    def copied(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension of the box."""
        if self.corners is not None:
            return self.box
        steps = (1, *self.element_strides[1:])  # TMA has no step along dimension 0
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that a copy credits to its mbarrier, those out of bounds included."""
        total = self.itemsize
        for size in self.copied:
            total *= size
        return total

    @property
    def row_bytes(self) -> int:
        """Bytes between rows of a box in shared memory: a swizzle keeps its width, however narrow the box."""
        return self.swizzle or self.box[0] * self.itemsize

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a box takes."""
        return self.box_bytes // (self.box[0] * self.itemsize) * self.row_bytes

    def why_not(self) -> str | None:
        """Return which of CUDA's rules does not hold, or None."""
        if self.dtype not in BYTES:
            return f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}"
        if not 1 <= self.rank <= 5:
            return f"{self.rank} dimensions; 1 to 5 are allowed"
        for name, given, count in (
            ("strides", self.strides, self.rank - 1), ("box", self.box, self.rank if self.corners is None else 2),
            ("element_strides", self.element_strides, self.rank),
        ):  # fmt: skip
            if len(given) != count:
                return f"{name} {given} has {len(given)} entries; a shape of {self.rank} dimensions takes {count}"
        if self.address is not None and (self.address < 0 or self.address % 16):
            return f"the address {self.address:#x} is not a multiple of 16"
        for name, given, low, high in (
            ("shape", self.shape, 1, 1 << 32), ("box", self.box, 1, MOST_BOX if self.corners is None else MOST_PIXELS),
            ("element_strides", self.element_strides, 1, 8),
        ):  # fmt: skip
            for k, value in enumerate(given):
                if not low <= value <= high:
                    return f"{name}[{k}] is {value}; {low} to {high} are allowed"
        if reason := self._why_no_images():
            return reason
        for k, stride in enumerate(self.strides):
            if stride % 16 or not 0 <= stride < 1 << 40:
                return f"the stride of dimension {k + 1} is {stride} bytes; it is a multiple of 16 and below 2^40"
        inner = self.box[0] * self.itemsize
        if inner % 16:
            return f"a box of {self.box[0]} {self.dtype} is {inner} bytes wide; that has to be a multiple of 16"
        if self.swizzle not in SWIZZLES:
            return f"swizzle {self.swizzle} is not one of {', '.join(map(str, SWIZZLES))} bytes"
        if self.swizzle and inner > self.swizzle:
            return f"a box {inner} bytes wide does not fit a swizzle of {self.swizzle} bytes"
        if self.oob_fill not in OOB_FILLS:
            return f"oob_fill {self.oob_fill!r} is not one of {', '.join(OOB_FILLS)}"
        if self.oob_fill == "nan" and self.dtype not in FLOATING:
            return f"oob_fill 'nan' takes a floating-point dtype, not {self.dtype}"
        return None

    def _why_no_images(self) -> str | None:
        """Return which rule of a map of images does not hold, or None."""
        if self.corners is None:
            return None
        if self.rank not in CORNER_BITS:
            return f"{self.rank} dimensions; images have 3 to 5: channels, one to three of pixels, and their number"
        most, axes = 1 << CORNER_BITS[self.rank] - 1, self.rank - 2
        for corner in self.corners:
            if len(corner) != axes or any(not -most <= value < most for value in corner):
                return f"a corner is {axes} numbers from {-most} to {most - 1}; {corner} is not"
        if self.box[0] > MOST_BOX:
            return f"a pixel has {self.box[0]} channels; a copy takes at most {MOST_BOX}"
        if self.element_strides[0] != 1 or self.element_strides[-1] != 1:
            return f"steps are between pixels: those of {self.element_strides} for channels and images have to be 1"
        return None

    @classmethod
    def of(
        cls, array: Any, box: tuple[int, ...], *, dtype: str | None = None, swizzle: int = 0, oob_fill: str = "zero",
        element_strides: tuple[int, ...] | None = None,
    ) -> TensorMap:  # fmt: skip
        """Describe a NumPy array whose last axis is contiguous; `box` and `element_strides` are in the array's order.

        dtype: needed where NumPy has no such type ("bf16" for its bits in uint16). The address is filled in by what
        launches the kernel.
        """
        if len(box) != array.ndim:
            raise InvalidOperand(f"tensor map: a box of {len(box)} dimensions of an array that has {array.ndim}")
        if not array.ndim or array.strides[-1] != array.itemsize:
            raise InvalidOperand(f"tensor map: the last axis of {array.shape} is not contiguous; copy the array")
        kind = dtype or _NUMPY.get(array.dtype.name)
        if kind is None:
            raise InvalidOperand(f"tensor map: {array.dtype} has no type that TMA knows; pass dtype=")
        if kind in BYTES and BYTES[kind] != array.itemsize:
            raise InvalidOperand(f"tensor map: {kind} has {BYTES[kind]} bytes per element, the array {array.itemsize}")
        return cls(
            None, kind, tuple(reversed(array.shape)), tuple(reversed(array.strides[:-1])), tuple(reversed(box)),
            tuple(reversed(element_strides)) if element_strides else (), swizzle, oob_fill, array=array,
        )  # fmt: skip

    @classmethod
    def of_images(
        cls, array: Any, lower: tuple[int, ...], upper: tuple[int, ...], channels: int, pixels: int, *,
        dtype: str | None = None, swizzle: int = 0, oob_fill: str = "zero", steps: tuple[int, ...] | None = None,
    ) -> TensorMap:  # fmt: skip
        """Describe images [n, (depth,) (height,) width, channels] for copies that convolutions make ("im2col").

        `lower`, `upper`: where the box of a filter's first tap begins and ends, from an image's first and last pixel,
        in the array's order: -padding, and padding - (filter - 1) x dilation. `channels`, `pixels`: of one copy.
        `steps`: from pixel to pixel, a convolution's stride. The rest is as in `of`. For the emulator only.
        """
        whole = cls.of(array, (1,) * (array.ndim - 1) + (channels,), dtype=dtype, swizzle=swizzle, oob_fill=oob_fill)
        return replace(
            whole, box=(channels, pixels), corners=(tuple(reversed(lower)), tuple(reversed(upper))), array=array,
            element_strides=(1, *reversed(steps), 1) if steps else whole.element_strides,
        )  # fmt: skip

    def at(self, address: int) -> TensorMap:
        """The same tensor at an address."""
        return replace(self, address=address)
