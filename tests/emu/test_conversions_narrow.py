"""cvt of fp8 and bf16 against ml_dtypes and rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from single_instruction import execute, round_fraction

FP8 = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 0x7E), "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 0x7B)}
BF16_MOST = Fraction(255) * Fraction(2) ** 120


def floats(rng: np.random.Generator, count: int = 768) -> np.ndarray:
    """fp32 around what fp8 holds, ties among them, and far outside."""
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 18, count)
    values[: count // 3] = rng.integers(-64, 65, count // 3) * 2.0 ** rng.integers(-18, 12, count // 3)
    values[-8:] = [0.0, -0.0, np.inf, -np.inf, np.nan, 464.0, 465.0, 61440.0]
    return values.astype(np.float32)


def reference(values: np.ndarray, kind: str, relu: bool) -> np.ndarray:
    dtype, most, largest = FP8[kind]
    values = np.where(values <= 0, np.float32(0), values) if relu else values
    bits = values.astype(dtype).view(np.uint8)
    over = np.abs(values) >= most
    bits = np.where(over, np.uint8(largest) | np.signbit(values).astype(np.uint8) << np.uint8(7), bits)
    return np.where(np.isnan(values), np.uint8(0x7F), bits)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", list(FP8))
def test_fp32_is_rounded_to_pairs_of_fp8(kind, relu):
    rng = np.random.default_rng(1)
    a, b = floats(rng), rng.permutation(floats(rng))
    line = f"cvt.rn.satfinite{'.relu' * relu}.{kind}x2.f32 %d, %a, %b;"
    got = execute(line, "b16", ["f32", "f32"], [a.view(np.uint32), b.view(np.uint32)])
    np.testing.assert_array_equal(got >> 8, reference(a, kind, relu))
    np.testing.assert_array_equal(got & 255, reference(b, kind, relu))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", list(FP8))
def test_every_fp16_is_rounded_to_fp8(kind, relu):
    every = np.arange(1 << 16, dtype=np.uint16)
    for words in every.view(np.uint32).reshape(-1, 1024)[::4]:
        got = execute(f"cvt.rn.satfinite{'.relu' * relu}.{kind}x2.f16x2 %d, %a;", "b16", ["b32"], [words])
        halves = words.view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(got.view(np.uint8), reference(halves, kind, relu))


@pytest.mark.parametrize("kind", list(FP8))
def test_every_fp8_is_an_fp16(kind):
    every = np.arange(256, dtype=np.uint8)
    got = execute(f"cvt.rn.f16x2.{kind}x2 %d, %a;", "b32", ["b16"], [every.view(np.uint16)])
    expected = every.view(FP8[kind][0]).astype(np.float16)
    np.testing.assert_array_equal(got.view(np.float16), expected)
    assert (got.view(np.uint16)[np.isnan(expected)] == 0x7FFF).all()
    got = execute(f"cvt.rn.relu.f16x2.{kind}x2 %d, %a;", "b32", ["b16"], [every.view(np.uint16)])
    np.testing.assert_array_equal(got.view(np.float16), np.where(expected <= 0, np.float16(0), expected))


def bf16_of(value: Fraction, mode: str) -> int:
    if value == 0:
        return 0
    rounded = round_fraction(value, 8, -133, BF16_MOST, mode)
    sign = 0x8000 if value < 0 else 0
    if rounded == "inf":
        return sign | 0x7F80
    return sign | int(np.float32(float(abs(rounded))).view(np.uint32)) >> 16


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["s16", "u32", "s32", "u64", "s64", "f64", "f16"])
def test_numbers_are_rounded_once_to_bf16(kind, mode):
    rng = np.random.default_rng(2)
    if kind == "f64":
        values = rng.standard_normal(500) * 2.0 ** rng.integers(-150, 140, 500)
        values[:100] = (rng.integers(256, 512, 100) + 0.5) * 2.0 ** rng.integers(-145, 100, 100)
        values[100:200] = values[:100] * (1 + 2.0**-50)
        given, numbers = values.view(np.uint64), values.tolist()
    elif kind == "f16":
        given = rng.integers(0, 0x7C00, 500).astype(np.uint16) | rng.integers(0, 2, 500).astype(np.uint16) << 15
        numbers = given.view(np.float16).tolist()
    else:
        dtype = np.dtype({"s": "i", "u": "u"}[kind[0]] + str(int(kind[1:]) // 8))
        limits = np.iinfo(dtype)
        shift = rng.integers(0, int(kind[1:]), 500)
        given = rng.integers(limits.min, limits.max, 500, dtype=dtype) >> shift.astype(dtype)
        given[:3] = [limits.min, limits.max, 0]
        given[3:40] = (given[3:40] | 1).astype(dtype)
        numbers = given.tolist()
    got = execute(f"cvt.{mode}.bf16.{kind} %d, %a;", "b16", [kind], [given.view(f"u{given.itemsize}")])
    for result, number in zip(got.tolist(), numbers, strict=True):
        want = bf16_of(Fraction(number), mode)
        assert result in (want, want | 0x8000 if number == 0 else want), (number, hex(result), hex(want))


@pytest.mark.parametrize("mode", ["rm", "rp"])
def test_fp32_is_rounded_up_or_down_to_bf16(mode):
    bits = np.random.default_rng(4).integers(0, 2**32, 400, dtype=np.uint32)
    bits[:6] = [0, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 1, 0x80000001]
    got = execute(f"cvt.{mode}.bf16.f32 %d, %a;", "b16", ["f32"], [bits])
    for result, number in zip(got.tolist(), bits.view(np.float32).tolist(), strict=True):
        if np.isnan(number):
            assert result == 0x7FFF
        elif np.isinf(number):
            assert result == (0x7F80 if number > 0 else 0xFF80)
        else:
            assert result in (bf16_of(Fraction(number), mode), 0x8000 if number == 0 else -1), (number, hex(result))


@pytest.mark.parametrize(("kind", "least", "most"), [("s8", -128, 127), ("u8", 0, 255)])
def test_bf16_becomes_a_byte(kind, least, most):
    every = np.arange(0, 1 << 16, 37, dtype=np.uint16)[:1024]
    values = np.trunc((every.astype(np.uint32) << 16).view(np.float32).astype(np.float64))
    got = execute(f"cvt.rzi.{kind}.bf16 %d, %a;", kind, ["b16"], [every])
    np.testing.assert_array_equal(got, np.clip(np.nan_to_num(values, nan=0), least, most))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_bf16_becomes_whole(mode):
    every = np.arange(0, 1 << 16, 37, dtype=np.uint16)[:1024]
    values = (every.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    whole = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](values)
    got = execute(f"cvt.{mode}.bf16.bf16 %d, %a;", "b16", ["b16"], [every])
    np.testing.assert_array_equal((got.astype(np.uint32) << 16).view(np.float32), whole)
    got = execute(f"cvt.{mode}.s32.bf16 %d, %a;", "s32", ["b16"], [every]).view(np.int32)
    np.testing.assert_array_equal(got, np.clip(np.nan_to_num(whole, nan=0), -(2.0**31), 2.0**31 - 1).astype(np.int64))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_satfinite_gives_the_largest_number(kind):
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 1.5, 3.4e38, -0.0], np.float32)
    got = execute(f"cvt.rn.satfinite.{kind}.f32 %d, %a;", "b16", ["f32"], [values.view(np.uint32)])
    most = 0x7BFF if kind == "f16" else 0x7F7F
    middle = {"f16": most, "bf16": int(np.float32(1e30).view(np.uint32) + 0x8000) >> 16}[kind]
    assert got.tolist() == [middle, middle | 0x8000, most, most | 0x8000, 0x7FFF, 0x3E00 if kind == "f16" else 0x3FC0,
                            most, 0x8000]  # fmt: skip


def test_tf32_satfinite_rounds_ties_away_and_stays_finite():
    bits = np.array([0x3F801000, 0x3F800FFF, 0xBF801000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000], np.uint32)
    got = execute("cvt.rna.satfinite.tf32.f32 %d, %a;", "b32", ["f32"], [bits])
    assert [hex(x) for x in got.tolist()] == [
        hex(x) for x in (0x3F802000, 0x3F800000, 0xBF802000, 0x7F7FE000, 0x7F7FE000, 0xFF7FE000, 0x7FFFFFFF)
    ]
