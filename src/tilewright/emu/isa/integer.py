"""Integer arithmetic, bits and comparisons. All of it is exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction
from .registry import NUMPY, Compute, Step, dtype_of, elementwise, executes, simply

INT = "u16|s16|u32|s32|u64|s64"
BITS = "b16|b32|b64"


executes(f"add.{{type:{INT}}}", kind="int")(elementwise(simply(np.add)))
executes(f"sub.{{type:{INT}}}", kind="int")(elementwise(simply(np.subtract)))
executes(f"mul.lo.{{type:{INT}}}", kind="int")(elementwise(simply(np.multiply)))
executes(f"min.{{type:{INT}}}", kind="int")(elementwise(simply(np.minimum)))
executes(f"max.{{type:{INT}}}", kind="int")(elementwise(simply(np.maximum)))
executes(f"and.{{type:{BITS}|pred}}", kind="int")(elementwise(simply(np.bitwise_and)))
executes(f"or.{{type:{BITS}|pred}}", kind="int")(elementwise(simply(np.bitwise_or)))
executes(f"xor.{{type:{BITS}|pred}}", kind="int")(elementwise(simply(np.bitwise_xor)))
executes("not.{type:pred}", kind="int")(elementwise(simply(np.logical_not, 1)))
executes(f"not.{{type:{BITS}}}", kind="int")(elementwise(simply(np.invert, 1)))
executes("neg.{type:s16|s32|s64}", kind="int")(elementwise(simply(np.negative, 1)))
executes("abs.{type:s16|s32|s64}", kind="int")(elementwise(simply(np.absolute, 1)))


@executes("cnot.{type:b16|b32|b64}", kind="int")
@elementwise
def logical_not(machine: Machine, fields: dict[str, str]) -> Compute:
    """1 where a is 0, else 0."""
    return lambda out, a: np.copyto(out, a == 0)


@executes("{op:add|sub}.sat.s32", kind="int")
@elementwise(types=("s32", "s32", "s32"))
def add_saturating(machine: Machine, fields: dict[str, str]) -> Compute:
    """a + b or a - b, clamped to the range of s32."""
    function = np.add if fields["op"] == "add" else np.subtract

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        np.copyto(out, np.clip(function(a, b, dtype=np.int64), -(2**31), 2**31 - 1), casting="unsafe")

    return compute


def high_u64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The high 64 bits of products of uint64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    rest = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (rest >> half)


def multiply_high(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The function (a, b) -> the high half of the product, in the type of the operands."""
    dtype = dtype_of(kind)
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return lambda a, b: (np.multiply(a, b, dtype=wide) >> wide.type(bits)).astype(dtype)
    if dtype.kind == "u":
        return high_u64

    def signed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        ua, ub = a.view(np.uint64), b.view(np.uint64)
        zero = np.uint64(0)
        high = high_u64(ua, ub) - np.where(a < 0, ub, zero) - np.where(b < 0, ua, zero)
        return high.view(np.int64)

    return signed


@executes(f"mul.hi.{{type:{INT}}}", kind="int")
@elementwise
def mul_hi(machine: Machine, fields: dict[str, str]) -> Compute:
    """The high half of a * b."""
    high = multiply_high(fields["type"])
    return lambda out, a, b: np.copyto(out, high(a, b))


_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


@executes("mul.wide.{type:u16|s16|u32|s32}", kind="int")
def mul_wide(machine: Machine, instruction: Instruction) -> Step:
    """The whole product, in twice the width."""
    kind = instruction.fields["type"]
    to, a, b = instruction.operands
    wide = np.dtype(NUMPY[_WIDE[kind]])
    sources = [machine.source(instruction, operand, kind) for operand in (a, b)]
    return machine.keep(instruction, to, _WIDE[kind], lambda out, a, b: np.multiply(a, b, out=out, dtype=wide), sources)


@executes("mad.wide.{type:u16|s16|u32|s32}", kind="int")
def mad_wide(machine: Machine, instruction: Instruction) -> Step:
    """a * b + c, with c and the result in twice the width."""
    kind = instruction.fields["type"]
    to, a, b, c = instruction.operands
    product = machine.scratch(_WIDE[kind], "product")
    sources = [machine.source(instruction, operand, kind) for operand in (a, b)]
    sources.append(machine.source(instruction, c, _WIDE[kind]))

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        np.multiply(a, b, out=product, dtype=product.dtype)
        np.add(product, c, out=out)

    return machine.keep(instruction, to, _WIDE[kind], compute, sources)


@executes(f"mad.lo.{{type:{INT}}}", kind="int")
@elementwise
def mad_lo(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b + c, wrapping."""
    product = machine.scratch(fields["type"], "product")

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        np.multiply(a, b, out=product)
        np.add(product, c, out=out)

    return compute


@executes(f"mad.hi.{{type:{INT}}}", kind="int")
@elementwise
def mad_hi(machine: Machine, fields: dict[str, str]) -> Compute:
    """The high half of a * b, plus c."""
    high = multiply_high(fields["type"])
    return lambda out, a, b, c: np.copyto(out, high(a, b) + c)


def _mul24(fields: dict[str, str], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The low 32 bits of the product of the low 24 bits."""
    eight = dtype_of(fields["type"]).type(8)
    return ((a << eight) >> eight) * ((b << eight) >> eight)


@executes("mul24.lo.{type:u32|s32}", kind="int")
@elementwise
def mul24(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b of 24 bits."""
    return lambda out, a, b: np.copyto(out, _mul24(fields, a, b))


@executes("mad24.lo.{type:u32|s32}", kind="int")
@elementwise
def mad24(machine: Machine, fields: dict[str, str]) -> Compute:
    """a * b of 24 bits, plus c."""
    return lambda out, a, b, c: np.copyto(out, _mul24(fields, a, b) + c)


@executes(f"sad.{{type:{INT}}}", kind="int")
@elementwise
def sad(machine: Machine, fields: dict[str, str]) -> Compute:
    """|a - b| + c."""
    return lambda out, a, b, c: np.copyto(out, np.maximum(a, b) - np.minimum(a, b) + c)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotients truncated towards zero; all ones for a zero divisor (PTX leaves that unspecified)."""
    if a.dtype.kind == "u":
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.where(b == 0, ~a.dtype.type(0), a // safe)
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    ua, ub = np.abs(a).view(unsigned), np.abs(b).view(unsigned)
    quotient = divide(ua, ub).view(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), np.where((a < 0) != (b < 0), -quotient, quotient))


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Remainders with the sign of the dividend; the dividend itself for a zero divisor."""
    return np.where(b == 0, a, a - divide(a, b) * b)


@executes(f"{{op:div|rem}}.{{type:{INT}}}", kind="int")
@elementwise
def div_rem(machine: Machine, fields: dict[str, str]) -> Compute:
    """Quotient or remainder. Division by zero is no fault on a GPU either."""
    function = divide if fields["op"] == "div" else remainder
    return lambda out, a, b: np.copyto(out, function(a, b))


@executes(f"{{op:shl}}.{{type:{BITS}}}", "{op:shr}.{type:b16|u16|s16|b32|u32|s32|b64|u64|s64}", kind="int")
@elementwise(types=("{type}", "{type}", "u32"))
def shift(machine: Machine, fields: dict[str, str]) -> Compute:
    """Shifts; amounts beyond the width count as the width."""
    kind = fields["type"]
    dtype = dtype_of(kind)
    width = 8 * dtype.itemsize
    function = np.left_shift if fields["op"] == "shl" else np.right_shift
    signed = dtype.kind == "i"

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        if len(b) == 1 and int(b[0]) < width:
            function(a, b.astype(dtype), out=out)
            return
        amount = np.minimum(b, np.uint32(width - 1)).astype(dtype)
        shifted = function(a, amount)
        if not signed:
            shifted = np.where(b >= width, dtype.type(0), shifted)
        np.copyto(out, shifted)

    return compute


@executes("shf.{side:l|r}.{mode:clamp|wrap}.b32", kind="int")
@elementwise(types=("b32", "b32", "b32", "u32"))
def funnel_shift(machine: Machine, fields: dict[str, str]) -> Compute:
    """Shift the 64 bits b:a; the high word for l, the low word for r."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        amount = np.minimum(c, np.uint32(32)) if fields["mode"] == "clamp" else c & np.uint32(31)
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        if fields["side"] == "l":
            np.copyto(out, (both << amount.astype(np.uint64)) >> np.uint64(32), casting="unsafe")
        else:
            np.copyto(out, (both >> amount.astype(np.uint64)) & np.uint64(0xFFFFFFFF), casting="unsafe")

    return compute


@executes("lop3.b32", kind="int")
def lop3(machine: Machine, instruction: Instruction) -> Step:
    """Any function of three bits, given as its truth table."""
    to, a, b, c, table = instruction.operands
    truth = int(machine.source(instruction, table, "b32")[0])

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        result = np.zeros(out.shape, np.uint32)
        for k in range(8):
            if truth >> k & 1:
                result |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        np.copyto(out, result)

    return machine.keep(instruction, to, "b32", compute, [machine.source(instruction, x, "b32") for x in (a, b, c)])


@executes("prmt.b32{mode:.f4e|.b4e|.rc8|.ecl|.ecr|.rc16|}", kind="int")
@elementwise(types=("b32", "b32", "b32", "b32"))
def permute(machine: Machine, fields: dict[str, str]) -> Compute:
    """Choose four of the eight bytes b:a."""
    mode = fields["mode"]

    def selector(k: int, c: np.ndarray) -> np.ndarray:
        """Nibble k of the selector that stands for the mode."""
        if not mode:
            return (c >> np.uint32(4 * k)) & np.uint32(15)
        low = (c & np.uint32(3)).astype(np.int64)
        if mode == ".f4e":
            return low + k
        if mode == ".b4e":
            return (low - k) % 8
        if mode == ".rc8":
            return low
        if mode == ".ecl":
            return np.maximum(low, k)
        if mode == ".ecr":
            return np.minimum(low, k)
        return (low & 1) * 2 + k % 2

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        both = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(out.shape, np.uint64)
        for k in range(4):
            chosen = selector(k, c).astype(np.uint64)
            byte = (both >> ((chosen & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
            sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            byte = np.where(chosen & np.uint64(8), sign, byte)
            result |= byte << np.uint64(8 * k)
        np.copyto(out, result, casting="unsafe")

    return compute


def _bits_kind(fields: dict[str, str]) -> tuple[np.dtype, int]:
    dtype = dtype_of(fields["type"])
    return dtype, 8 * dtype.itemsize


@executes("bfe.{type:u32|s32|u64|s64}", kind="int")
@elementwise(types=("{type}", "{type}", "u32", "u32"))
def bit_field_extract(machine: Machine, fields: dict[str, str]) -> Compute:
    """`len` bits of a from `pos`, extended by its top bit for signed types."""
    dtype, width = _bits_kind(fields)
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def compute(out: np.ndarray, a: np.ndarray, pos: np.ndarray, length: np.ndarray) -> None:
        position = (pos & np.uint32(0xFF)).astype(np.int64)
        count = (length & np.uint32(0xFF)).astype(np.int64)
        bits = a.view(unsigned)
        moved = np.where(position < width, bits >> np.minimum(position, width - 1).astype(unsigned), unsigned.type(0))
        ones = ~unsigned.type(0)
        mask = np.where(
            count >= width, ones, (unsigned.type(1) << np.minimum(count, width - 1).astype(unsigned)) - unsigned.type(1)
        )
        field = moved & mask
        if dtype.kind == "i":
            top = np.minimum(position + count - 1, width - 1)
            sign = (bits >> np.maximum(top, 0).astype(unsigned)) & unsigned.type(1)
            field = np.where((count > 0) & (sign == 1), field | ~mask, field)
            # Bits that lie beyond the word are copies of the sign too.
            kept = np.clip(width - position, 0, width)
            have = np.where(
                kept >= width,
                ones,
                (unsigned.type(1) << np.minimum(kept, width - 1).astype(unsigned)) - unsigned.type(1),
            )
            field = np.where((count > 0) & (sign == 1), field | ~have, field)
            field = np.where(count == 0, unsigned.type(0), field)
        np.copyto(out, field.view(dtype))

    return compute


@executes("bfi.{type:b32|b64}", kind="int")
@elementwise(types=("{type}", "{type}", "{type}", "u32", "u32"))
def bit_field_insert(machine: Machine, fields: dict[str, str]) -> Compute:
    """b with `len` bits of a put in at `pos`."""
    dtype, width = _bits_kind(fields)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, pos: np.ndarray, length: np.ndarray) -> None:
        position = (pos & np.uint32(0xFF)).astype(np.int64)
        count = (length & np.uint32(0xFF)).astype(np.int64)
        one, zero = dtype.type(1), dtype.type(0)
        mask = np.where(count >= width, ~zero, (one << np.minimum(count, width - 1).astype(dtype)) - one)
        by = np.minimum(position, width - 1).astype(dtype)
        mask = np.where(position < width, mask << by, zero)
        np.copyto(out, (b & ~mask) | ((a << by) & mask))

    return compute


@executes("bmsk.{mode:clamp|wrap}.b32", kind="int")
@elementwise(types=("b32", "u32", "u32"))
def bit_mask(machine: Machine, fields: dict[str, str]) -> Compute:
    """`len` ones from bit `pos`."""

    def compute(out: np.ndarray, pos: np.ndarray, length: np.ndarray) -> None:
        if fields["mode"] == "wrap":
            position, count = (pos & np.uint32(31)).astype(np.uint64), (length & np.uint32(31)).astype(np.uint64)
        else:
            position, count = np.minimum(pos, 32).astype(np.uint64), np.minimum(length, 32).astype(np.uint64)
        ones = (np.uint64(1) << count) - np.uint64(1)
        np.copyto(out, (ones << position) & np.uint64(0xFFFFFFFF), casting="unsafe")

    return compute


def count_bits(a: np.ndarray) -> np.ndarray:
    """Ones of each value (uint32 or uint64), as uint32."""
    bytes_ = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)
    return _ONES[bytes_].sum(axis=1, dtype=np.uint32)


_ONES = np.array([bin(k).count("1") for k in range(256)], np.uint8)


def bit_length(a: np.ndarray) -> np.ndarray:
    """Position of the highest one plus one, 0 for 0 (uint32 or uint64), as uint32."""
    spread = a.copy()
    width = 8 * a.dtype.itemsize
    step = 1
    while step < width:
        spread |= spread >> a.dtype.type(step)
        step *= 2
    return count_bits(spread)


@executes("{op:popc|clz}.{type:b32|b64}", kind="int")
@elementwise(types=("u32", "{type}"))
def count(machine: Machine, fields: dict[str, str]) -> Compute:
    """Ones, or leading zeros."""
    _, width = _bits_kind(fields)
    if fields["op"] == "popc":
        return lambda out, a: np.copyto(out, count_bits(a))
    return lambda out, a: np.copyto(out, np.uint32(width) - bit_length(a))


@executes("fns.b32", kind="int")
@elementwise(types=("u32", "b32", "u32", "s32"))
def find_nth_set(machine: Machine, fields: dict[str, str]) -> Compute:
    """Position of the |n|th one of a from bit b on, upwards or (n < 0) downwards; n = 0: b if set. All ones if none."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, n: np.ndarray) -> None:
        a, b, n = np.broadcast_arrays(a, b.astype(np.int64), n.astype(np.int64), out)[:3]
        left, found = np.maximum(np.abs(n), 1), np.full(out.shape, 0xFFFFFFFF, np.uint32)
        for step in range(32):
            at = b + np.sign(n) * step
            one = (at >= 0) & (at < 32) & ((a >> np.clip(at, 0, 31).astype(np.uint32)) & 1 != 0)
            one &= (n != 0) | (step == 0)
            left = left - one
            found[one & (left == 0)] = at[one & (left == 0)]
        np.copyto(out, found)

    return compute


@executes("bfind{shift:.shiftamt|}.{type:u32|s32|u64|s64}", kind="int")
@elementwise(types=("u32", "{type}"))
def bit_find(machine: Machine, fields: dict[str, str]) -> Compute:
    """Position of the highest bit that is not the sign (or the shift that brings it to the top); all ones if none."""
    dtype, width = _bits_kind(fields)
    unsigned = np.dtype(f"u{dtype.itemsize}")

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        bits = np.where(a < 0, ~a, a).view(unsigned) if dtype.kind == "i" else a
        position = bit_length(bits) - np.uint32(1)
        if fields["shift"]:
            position = np.where(position == np.uint32(0xFFFFFFFF), position, np.uint32(width - 1) - position)
        np.copyto(out, position)

    return compute


@executes("brev.{type:b32|b64}", kind="int")
@elementwise
def bit_reverse(machine: Machine, fields: dict[str, str]) -> Compute:
    """The bits in the opposite order."""

    def compute(out: np.ndarray, a: np.ndarray) -> None:
        size = a.dtype.itemsize
        bytes_ = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), size)
        np.copyto(out, np.ascontiguousarray(_REVERSED[bytes_[:, ::-1]]).view(a.dtype).reshape(-1))

    return compute


_REVERSED = np.array([int(f"{k:08b}"[::-1], 2) for k in range(256)], np.uint8)


@executes("dp4a.{a:u32|s32}.{b:u32|s32}", kind="int")
@elementwise(types=("u32", "b32", "b32", "u32"))
def dot4(machine: Machine, fields: dict[str, str]) -> Compute:
    """c plus the dot product of four bytes."""

    def lanes(x: np.ndarray, kind: str) -> np.ndarray:
        part = np.uint8 if kind == "u32" else np.int8
        return np.ascontiguousarray(x).view(part).reshape(len(x), 4).astype(np.int64)

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        dot = (lanes(a, fields["a"]) * lanes(b, fields["b"])).sum(axis=1)
        np.copyto(out, (dot + c) & 0xFFFFFFFF, casting="unsafe")

    return compute


@executes("dp2a.{half:lo|hi}.{a:u32|s32}.{b:u32|s32}", kind="int")
@elementwise(types=("u32", "b32", "b32", "u32"))
def dot2(machine: Machine, fields: dict[str, str]) -> Compute:
    """c plus the dot product of the two halves of a with two bytes of b."""

    def compute(out: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        wide = np.uint16 if fields["a"] == "u32" else np.int16
        narrow = np.uint8 if fields["b"] == "u32" else np.int8
        halves = np.ascontiguousarray(a).view(wide).reshape(len(a), 2).astype(np.int64)
        bytes_ = np.ascontiguousarray(b).view(narrow).reshape(len(b), 4).astype(np.int64)
        chosen = bytes_[:, :2] if fields["half"] == "lo" else bytes_[:, 2:]
        np.copyto(out, ((halves * chosen).sum(axis=1) + c) & 0xFFFFFFFF, casting="unsafe")

    return compute
