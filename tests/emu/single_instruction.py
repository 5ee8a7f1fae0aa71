"""Builds PTX around one instruction and runs it with one element of each input a lane."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from random import Random

import numpy as np
from hypothesis import strategies as st

from tilewright import emu

DTYPE = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "u32": np.uint32,
    "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f16": np.uint16,
    "f32": np.uint32, "f64": np.uint64, "bf16": np.uint16,
}  # fmt: skip
"""How each PTX type is passed here: floats as their bits."""


def _register(kind: str) -> str:
    width = max(np.dtype(DTYPE[kind]).itemsize * 8, 16)
    return f".{kind}" if kind in ("f32", "f64") else f".b{width}"


def ptx_for(line: str, out: str, ins: list[str]) -> str:
    """`line` computes %d from %a, %b, %c, %e, ..."""
    names = "abcefgh"
    params = ["out", *(f"in{k}" for k in range(len(ins)))]
    text = [
        ".version 8.0", ".target sm_90a", ".address_size 64",
        ".visible .entry k(" + ", ".join(f".param .u64 {p}" for p in params) + ")", "{",
        ".reg .pred %p<8>;", ".reg .b32 %r<16>;", ".reg .b64 %rd<16>;", f".reg {_register(out)} %d;",
    ]  # fmt: skip
    text += [f".reg {_register(kind)} %{name};" for kind, name in zip(ins, names, strict=False)]
    text += ["mov.u32 %r15, %tid.x;"]
    for k, (kind, name) in enumerate(zip(ins, names, strict=False)):
        size = np.dtype(DTYPE[kind]).itemsize
        load = kind if kind in ("f32", "f64", "u8", "s8") else f"b{8 * size}"
        text += [
            f"ld.param.u64 %rd15, [in{k}];", f"mad.wide.u32 %rd15, %r15, {size}, %rd15;",
            f"ld.global.{load} %{name}, [%rd15];",
        ]  # fmt: skip
    size = np.dtype(DTYPE[out]).itemsize
    store = out if out in ("f32", "f64", "u8", "s8") else f"b{8 * size}"
    text += [
        line, "ld.param.u64 %rd15, [out];", f"mad.wide.u32 %rd15, %r15, {size}, %rd15;",
        f"st.global.{store} [%rd15], %d;", "ret;", "}",
    ]  # fmt: skip
    return "\n".join(text)


def execute(line: str, out: str, ins: list[str], arrays: list[np.ndarray]) -> np.ndarray:
    """The result of `line` on each element; values of floats are given and returned as bits."""
    n = len(arrays[0])
    memory = emu.GlobalMemory()
    address = memory.add(np.zeros(n, DTYPE[out]), "out")
    inputs = [
        memory.add(np.array(a, DTYPE[kind]), f"in{k}") for k, (a, kind) in enumerate(zip(arrays, ins, strict=True))
    ]
    params = struct.pack(f"<{1 + len(ins)}Q", address, *inputs)
    emu.run(ptx_for(line, out, ins), "k", grid=(1, 1, 1), block=(n, 1, 1), params=params, memory=memory)
    return memory.read(address, n * np.dtype(DTYPE[out]).itemsize).view(DTYPE[out])


LANES = 96

_F32_EDGES = [
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0xBF800000,
    0x3F800001, 0x3F7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0x4B800000,
    0x4B800001, 0x34000000, 0x33800000, 0x33800001, 0x0C000000, 0x5F000000, 0x4F000000, 0xCF000000,
]  # fmt: skip


_F64_EDGES = [0, 1 << 63, 1, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8 << 48, 0x3FF0 << 48, 0x3FF0000000000001]


def _f32_value(random: Random) -> int:
    """Bits of fp32: anything, an edge, short mantissas of near exponents (ties), or numbers with tiny products."""
    choice = random.randrange(4)
    if choice == 0:
        return random.getrandbits(32)
    if choice == 1:
        return random.choice(_F32_EDGES)
    sign = random.getrandbits(1) << 31
    if choice == 2:
        return sign | random.randint(100, 154) << 23 | random.getrandbits(12) << 11
    return sign | random.randint(0, 70) << 23 | random.getrandbits(23)


def _f64_value(random: Random) -> int:
    """Bits of fp64: anything, an edge, or a moderate exponent."""
    choice = random.randrange(4)
    if choice == 0:
        return random.getrandbits(64)
    if choice == 1:
        return random.choice(_F64_EDGES)
    return random.getrandbits(1) << 63 | random.randint(1000, 1060) << 52 | random.getrandbits(52)


def _integer_value(bits: int) -> Callable[[Random], int]:
    def value(random: Random) -> int:
        if random.randrange(3) == 0:
            return random.choice([0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, bits - 1, bits, 3])
        return random.getrandbits(random.randint(1, bits))

    return value


def _lanes(value: Callable[[Random], int]) -> st.SearchStrategy[list[int]]:
    """One value a lane, all from one seed: many values an example, at the price of shrinking."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: [value(random) for random in [Random(seed)] for _ in range(LANES)]
    )


f32_lanes = _lanes(_f32_value)
f64_lanes = _lanes(_f64_value)


def integer_lanes(bits: int) -> st.SearchStrategy[list[int]]:
    """One unsigned value of so many bits a lane."""
    return _lanes(_integer_value(bits))


def f32(bits: int) -> float:
    """The value of fp32 bits."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def f64(bits: int) -> float:
    """The value of fp64 bits."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def round_fraction(
    value: Fraction, mantissa: int, least_exponent: int, most: Fraction, mode: str = "rn"
) -> Fraction | str:
    """A nonzero rational rounded to a binary format: the exact rational, or "inf" past the largest number.

    mantissa: bits with the hidden one; least_exponent: of the last bit of subnormals.
    """
    sign, magnitude = (-1, -value) if value < 0 else (1, value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** max(exponent - mantissa + 1, least_exponent)
    quotient = magnitude / unit
    low = quotient.numerator // quotient.denominator
    rest = quotient - low
    away = (mode == "rp" and sign > 0) or (mode == "rm" and sign < 0)
    if mode == "rn":
        low += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1)
    elif away and rest:
        low += 1
    rounded = low * unit
    if rounded > most:
        return "inf" if mode == "rn" or away else sign * most
    return sign * rounded


F32_MOST = Fraction(2**24 - 1) * Fraction(2) ** 104


def f32_of_fraction(value: Fraction, zero_negative: bool, mode: str = "rn") -> int:
    """Bits of fp32 for a rational; of a zero (exact or by underflow) the sign is given for exact ones."""
    if value == 0:
        return 0x80000000 if zero_negative else 0
    rounded = round_fraction(value, 24, -149, F32_MOST, mode)
    if rounded == "inf":
        return 0x7F800000 if value > 0 else 0xFF800000
    assert isinstance(rounded, Fraction)
    bits = struct.unpack("<I", struct.pack("<f", float(rounded)))[0]
    return bits | (0x80000000 if value < 0 else 0)
