"""quantize: scales of every block, bits that are the nearest, and what cannot be scaled."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.arrays.dlpack import Imported, give
from tilewright.arrays.dtypes import numpy_dtype, parse_dtype
from tilewright.arrays.float8 import LARGEST, to_bits, to_values
from tilewright.emu.isa.tensor_sum import fp8_values
from tilewright.errors import InvalidOperand
from tilewright.lab.numbers import POISON, from_stored, half_spacing, to_stored

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def hard_numbers(dtype: str) -> np.ndarray:
    """Every number of the type, what lies between neighbours, its own neighbours, and numbers of every exponent."""
    values = fp8_values(dtype)
    values = np.sort(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    rng = np.random.default_rng(0)
    others = rng.integers(0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ends = np.array([np.inf, -np.inf, np.nan, 464, 465, 480, 61440, 61439, 1e30], np.float32)
    parts = (values, middles, np.nextafter(middles, np.float32(9e9)), np.nextafter(middles, np.float32(-9e9)))
    return np.concatenate([*parts, others, ends]).astype(np.float32)


@pytest.mark.parametrize("dtype", TYPES)
def test_bits_are_those_of_torchs_cast(dtype):
    torch = pytest.importorskip("torch")
    x = hard_numbers(dtype)
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[dtype]
    found, theirs = to_bits(x, dtype), torch.from_numpy(x).to(kind).view(torch.uint8).numpy()
    if dtype == "e4m3" and torch.tensor(1000.0).to(kind).float().isfinite():  # torch 2.13 knows no overflow
        within = np.abs(x) <= 464
        found, theirs = found[within], theirs[within]
    np.testing.assert_array_equal(found, theirs)


@pytest.mark.parametrize("dtype", TYPES)
def test_bytes_are_read_exactly(dtype):
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(to_values(every, dtype), every.view(TYPES[dtype]).astype(np.float32))


@pytest.mark.parametrize("dtype", TYPES)
def test_bits_are_those_of_ml_dtypes_but_for_how_a_nan_is_written(dtype):
    x = hard_numbers(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        other = x.astype(TYPES[dtype])
    mine = to_bits(x, dtype)
    numbers = ~np.isnan(other.astype(np.float32))
    np.testing.assert_array_equal(mine[numbers], other.view(np.uint8)[numbers])
    assert np.isnan(mine[~numbers].view(TYPES[dtype]).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("block", "shape"),
    [(None, ()), ((1, -1), (2, 150, 1)), ((-1, np.int64(1)), (2, 1, 300)), ((1, 128), (2, 150, 3)),
     ((128, 128), (2, 2, 3)), ((-1, -1), (2, 1, 1))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", TYPES)
def test_each_block_is_scaled_by_its_largest_number(block, shape, dtype):
    x = np.random.default_rng(0).standard_normal((2, 150, 300)).astype(np.float32)
    x8, scale = tw.quantize(x, dtype, block=block)
    assert (x8.dtype, x8.shape, scale.dtype, scale.shape) == (TYPES[dtype], x.shape, np.float32, shape)
    high, wide = (150, 300) if block is None else (side if side > 0 else 10**6 for side in block)
    places = np.indices(x.shape)
    each = scale if block is None else scale[places[0], places[1] // high, places[2] // wide]
    back = x8.astype(np.float32) * each
    digits = {"e4m3": 4, "e5m2": 3}[dtype]
    assert (np.abs(back - x) <= np.maximum(2.0**-digits * np.abs(x), 2.0**-9 * each)).all()
    largest = [np.abs(x[each == one]).max() for one in np.unique(scale)] if block is not None else [np.abs(x).max()]
    np.testing.assert_allclose(np.unique(scale), np.sort(np.array(largest) / LARGEST[dtype]), rtol=1e-6)


def test_zeros_infinities_nan_and_the_smallest_numbers():
    x = np.zeros((6, 128), np.float32)
    x[1, 0], x[2, 3], x[3, 1], x[4, 4], x[3, 0], x[2, 0], x[4, 0] = 1e-45, np.inf, np.nan, -np.inf, 7, 1, 2
    x8, scale = tw.quantize(x, "e5m2", block=(1, 128))
    assert np.isfinite(scale).all()
    assert (scale > 0).all()
    assert scale[0] == scale[5] == 1, "a block of zeros"
    assert np.isinf(x8[2, 3].astype(np.float32))
    assert np.isnan(x8[3, 1].astype(np.float32))
    assert x8[4, 4].astype(np.float32) == -np.inf
    np.testing.assert_allclose(x8.astype(np.float32)[2:5, 0] * scale[2:5, 0], [1, 7, 2], rtol=1e-6)
    assert np.isnan(tw.quantize(x, "e4m3", block=(1, 128))[0].astype(np.float32)[2, 3]), "e4m3 has no infinity"


def test_empty_arrays_have_empty_scales():
    for shape in ((0, 128), (3, 0)):
        x8, scale = tw.quantize(np.zeros(shape, np.float32), block=(1, 128))
        assert (x8.shape, scale.shape) == (shape, (shape[0], -(-shape[1] // 128)))
        assert tw.quantize(np.zeros(shape, np.float32))[1] == 1


def test_torch_and_numpy_agree():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((3, 40, 200)).astype(np.float32)
    x[0, 0, 0], x[1, 2, 3], x[1, 2, 4], x[2] = np.nan, np.inf, -np.inf, 0
    for block in (None, (1, -1), (-1, 1), (1, 128), (128, 128)):
        x8, scale = tw.quantize(x, "e4m3", block=block)
        t8, t_scale = tw.quantize(torch.from_numpy(x), torch.float8_e4m3fn, block=block)
        np.testing.assert_array_equal(t8.view(torch.uint8).numpy(), x8.view(np.uint8))
        np.testing.assert_array_equal(t_scale.numpy(), scale)


@pytest.mark.parametrize(
    ("x", "given", "words"),
    [
        (np.ones((2, 2)), {}, "x is float64"),
        (np.ones((2, 2), np.float32), {"dtype": "bf16"}, "is not fp8"),
        (np.ones((2, 2), np.float32), {"dtype": SimpleNamespace(dtype="e4m3")}, "is not a dtype"),
        (np.ones((2, 2), np.float32), {"block": (0, 128)}, r"block=\(0, 128\)"),
        (np.ones(4, np.float32), {"block": (1, 128)}, "add an axis"),
        ([1.0], {}, "is of type list"),
        (np.ma.array(np.ones((2, 2), np.float32), mask=True), {}, "masked array"),
        (np.ones((2, 2), ">f4"), {}, "dtype >f4"),
    ],
)
def test_what_cannot_be_quantized_is_refused(x, given, words):
    with pytest.raises(InvalidOperand, match=words):
        tw.quantize(x, **given)


def test_a_numpy_matrix_is_an_array_of_two_axes():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain, scale = tw.quantize(x, block=(1, -1))
    for where in (contextlib.nullcontext(), tw.emulator()):
        with where:
            found = tw.quantize(np.matrix(x), block=(1, -1))
        np.testing.assert_array_equal(found[0].view(np.uint8), plain.view(np.uint8))
        np.testing.assert_array_equal(found[1], scale)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_lab_holds_fp8_as_bytes_and_knows_how_far_apart_they_are(dtype):
    values = np.random.default_rng(0).standard_normal((5, 7), dtype=np.float32)
    np.testing.assert_array_equal(to_stored(values, dtype), values.astype(TYPES[dtype]).view(np.uint8))
    np.testing.assert_array_equal(to_stored(values.T, dtype), to_stored(values, dtype).T)
    np.testing.assert_array_equal(from_stored(to_stored(values, dtype), dtype), values.astype(TYPES[dtype]))
    numbers = to_values(np.arange(1, 0x78, dtype=np.uint8), dtype).astype(np.float64)
    np.testing.assert_array_equal(half_spacing(numbers[:-1], dtype), np.diff(numbers) / 2)
    assert np.isnan(from_stored(np.array([POISON[dtype]]), dtype)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_names_dtypes_and_dlpack_codes_of_fp8(dtype):
    name = np.dtype(TYPES[dtype]).name
    assert parse_dtype(dtype) == parse_dtype(name) == parse_dtype(TYPES[dtype]) == dtype
    assert numpy_dtype(dtype) == np.dtype(TYPES[dtype])
    capsule = give(4096, (2, 3), dtype, (1, 0), None, versioned=True)
    assert Imported(capsule, "a").dtype == dtype


@pytest.mark.parametrize("shape", [(40, 300), (3, 40, 300)])
def test_scales_of_rows_of_blocks_lie_by_columns(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    of_numpy = tw.quantize(x, block=(1, 128))[1]
    assert of_numpy.shape == (*shape[:-1], 3)
    assert of_numpy.strides[-2:] == (4, 160)
    torch = pytest.importorskip("torch", reason="torch is not installed")
    of_torch = tw.quantize(torch.from_numpy(x), block=(1, 128))[1]
    assert of_torch.stride()[-2:] == (1, 40)
    np.testing.assert_array_equal(of_torch.numpy(), of_numpy)
