"""quantize's kernels on the emulator: the bytes and scales of the host's own arithmetic, for every block and layout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm import quantize_call

BLOCKS = [None, (1, -1), (-1, 1), (1, 128), (128, 128), (3, 5), (128, 1), (-1, -1), (1 << 40, 128)]
SHAPES = [(40, 300), (3, 5, 264), (1, 7), (130, 128), (17, 1)]
TYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def numbers(shape, dtype, seed=0):
    """Of many magnitudes, some infinite or NaN, and a row of zeros."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-20, 12, shape))).astype(dtype)
    x.flat[0], x.flat[-1], x.flat[x.size // 2] = np.inf, np.nan, -np.inf
    x[..., shape[-2] // 2, :] = 0
    return x


def assert_same(found, wanted):
    (bits, scale), (wanted_bits, wanted_scale) = found, wanted
    np.testing.assert_array_equal(scale, wanted_scale)
    np.testing.assert_array_equal(bits.view(np.uint8), wanted_bits.view(np.uint8))
    assert (bits.dtype, scale.dtype) == (wanted_bits.dtype, wanted_scale.dtype)


@pytest.mark.parametrize("columns", [False, True], ids=["by rows", "by columns"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_give_the_bits_of_the_host(shape, block, columns):
    which = SHAPES.index(shape) + BLOCKS.index(block)
    x, dtype = numbers(shape, TYPES[which % 3]), ("e4m3", "e5m2")[which % 2]
    if columns:
        x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    wanted = tw.quantize(x, dtype, block=block)
    with tw.emulator():
        found = tw.quantize(x, dtype, block=block)
    assert_same(found, wanted)


@pytest.mark.parametrize("gpu", ["A100", "RTX 4090"])
def test_gpus_without_instructions_for_fp8_round_alike(gpu):
    x = numbers((24, 264), np.float32)
    for dtype in ("e4m3", "e5m2"):
        wanted = tw.quantize(x, dtype, block=(1, 128))
        with tw.emulator(gpu):
            assert_same(tw.quantize(x, dtype, block=(1, 128)), wanted)


def test_one_scale_of_a_large_array_is_found_by_all_blocks():
    x = numbers((150, 136), ml_dtypes.bfloat16)
    wanted = tw.quantize(x)
    with tw.emulator():
        assert_same(tw.quantize(x), wanted)
    x[...] = 0
    with tw.emulator():
        assert tw.quantize(x)[1] == 1


@pytest.mark.parametrize("columns", [128, 96], ids=["chunks of eight", "chunks that end early"])
@pytest.mark.parametrize("block", [(1, 128), (1, 40), (64, 64), (-1, 128), (-1, 1), (5, 2), None], ids=str)
def test_every_way_through_an_array_of_many_blocks(monkeypatch, block, columns):
    """Teams with several blocks, teams that read their block twice, and long strips: ways of large arrays."""
    monkeypatch.setattr(quantize_call, "BLOCKS", 1)
    monkeypatch.setattr(quantize_call, "HELD", 1)
    x = numbers((2, 206, 2 * columns), ml_dtypes.bfloat16)[:, :, : 2 * columns - 3 * (columns == 96)]
    wanted = tw.quantize(x, block=block)
    with tw.emulator():
        assert_same(tw.quantize(x, block=block), wanted)


def test_a_nan_keeps_its_sign():
    x = np.ones((2, 128), np.float32)
    x[0, :2], x[1, :2] = (-np.nan, np.nan), (-np.inf, np.inf)
    wanted = tw.quantize(x, block=(1, 128))
    assert wanted[0].view(np.uint8)[:, :2].tolist() == [[0xFF, 0x7F], [0xFF, 0x7F]]
    with tw.emulator():
        assert_same(tw.quantize(x, block=(1, 128)), wanted)


def test_scales_of_rows_of_blocks_lie_by_columns_for_products():
    with tw.emulator():
        scale = tw.quantize(numbers((40, 300), np.float32), block=(1, 128))[1]
    assert scale.strides == (4, 160)


def test_rows_that_start_anywhere_are_read():
    whole = numbers((20, 141), np.float16)
    for x in (whole[:, 1:130], whole[:, 5:], whole[::2, ::3], whole[::-1]):
        wanted = tw.quantize(x, block=(1, 128))
        with tw.emulator():
            assert_same(tw.quantize(x, block=(1, 128)), wanted)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_quotients_are_exact_for_numbers_of_every_magnitude(dtype):
    rng = np.random.default_rng(5)
    exponents = rng.integers(-149, 128, (60, 1)) - rng.integers(0, 16, (60, 200))
    with np.errstate(over="ignore"):
        x = np.ldexp(rng.uniform(-2, 2, (60, 200)), exponents).astype(np.float32)
    wanted = tw.quantize(x, dtype, block=(1, -1))
    with tw.emulator():
        assert_same(tw.quantize(x, dtype, block=(1, -1)), wanted)


@pytest.mark.parametrize("seed", range(12))
def test_random_arrays_and_blocks(monkeypatch, seed):
    rng = np.random.default_rng(100 + seed)
    if seed % 3 == 0:  # the ways of large arrays
        monkeypatch.setattr(quantize_call, "BLOCKS", 1)
        monkeypatch.setattr(quantize_call, "HELD", 1)
    quantize_call.program_of.cache_clear()  # it holds launches of the other ways
    rows, cols = (int(rng.choice([1, 2, 3, 7, 8, 16, 33, 64, 129, 200])) for _ in range(2))
    lead = [int(extent) for extent in rng.integers(1, 4, rng.integers(0, 3))]
    x = numbers((*lead, rows + 2, cols + 9), TYPES[rng.integers(0, 3)], seed)
    parts = (
        x,
        x[..., :rows, :cols],
        x[..., 1 : rows + 1, 3 : cols + 3],
        x[..., ::-1, :],
        x[..., ::2],
        x.swapaxes(-1, -2),
    )
    x, dtype = parts[rng.integers(0, len(parts))], ("e4m3", "e5m2")[rng.integers(0, 2)]
    sides = [int(side) for side in rng.choice([-1, 1, 2, 5, 8, 16, 40, 128, 300], 2)]
    block = None if seed % 6 == 1 else tuple(sides)
    wanted = tw.quantize(x, dtype, block=block)
    with tw.emulator(str(rng.choice(["H200", "A100"]))):
        assert_same(tw.quantize(x, dtype, block=block), wanted)
    quantize_call.program_of.cache_clear()
