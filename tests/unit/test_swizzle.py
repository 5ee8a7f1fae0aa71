"""The swizzle: a permutation, the one its name says, and the same in Python and in device code."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import emu
from tilewright.emu import banks
from tilewright.errors import InvalidOperand
from tilewright.swizzle import Swizzle

SHAPES = [(3, 3, 3), (2, 3, 3), (1, 3, 3), (3, 3, 4), (3, 3, 5), (0, 3, 3), (2, 0, 5)]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_permutes_each_period_and_undoes_itself(shape):
    swizzle = Swizzle(*shape)
    period = 1 << sum(shape)
    places = [swizzle(offset) for offset in range(2 * period)]
    assert sorted(places[:period]) == list(range(period))
    assert [swizzle(place) for place in places] == list(range(2 * period))
    assert [place - period for place in places[period:]] == places[:period]


def test_chunk_c_of_row_r_moves_to_c_xor_r():
    swizzle = Swizzle(3, 3, 3)
    for row in range(16):
        for chunk in range(8):
            for element in range(8):
                assert swizzle(row * 64 + chunk * 8 + element) == row * 64 + (chunk ^ row % 8) * 8 + element


@pytest.mark.parametrize("shape", SHAPES)
def test_the_device_code_computes_the_same_for_every_offset(shape):
    swizzle = Swizzle(*shape)
    count = 2 << sum(shape)
    source = f"""
    #include "tile/tile16.cuh"
    extern "C" __global__ void k(unsigned* out, int count) {{
      const int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < count) out[i] = Swizzle<{", ".join(map(str, shape))}>::apply(i);
    }}"""
    out = np.full(count, 2**32 - 1, np.uint32)
    done = emu.emulate(source, "k", -(-count // 256), 256, [out, np.int32(count)])
    np.testing.assert_array_equal(done.arrays[0], [swizzle(offset) for offset in range(count)])


@pytest.mark.parametrize("inner", [8, 16, 32, 64, 128, 256])
def test_the_conflict_free_swizzle_gives_ldmatrix_one_wavefront_a_matrix(inner):
    bits = inner.bit_length() - 4  # of a line's 16-byte chunks
    swizzle = Swizzle(min(3, bits), 3, max(3, bits))
    source = f"""
    #include "tile/tile16.cuh"
    extern "C" __global__ void k(unsigned* out) {{
      using S = ConflictFree<{inner}>;
      out[threadIdx.x] = S::apply(threadIdx.x * 8);
    }}"""
    done = emu.emulate(source, "k", 1, 1024, [np.zeros(1024, np.uint32)])
    np.testing.assert_array_equal(done.arrays[0], [swizzle(8 * i) for i in range(1024)])
    for first in range(0, 64, 8):
        for chunk in range(inner // 8):
            lines = np.array([[2 * swizzle((first + i % 8) * inner + 8 * chunk) for i in range(32)]])
            assert banks.wavefronts(lines, 16, access="matrix").tolist() == [4]


def test_rows_a_power_of_two_apart_meet_without_it():
    for inner, expected in ((16, 2), (32, 4), (64, 8), (128, 8)):
        rows = np.array([[2 * inner * (i % 8) for i in range(32)]])
        assert banks.wavefronts(rows, 16, access="matrix").tolist() == [4 * expected]


def test_swizzle_3_3_3_leaves_two_rows_in_a_bank_where_lines_are_128_long():
    """h09's case: a line is two rows of banks, so only two of the three bits come from the line."""
    swizzle = Swizzle(3, 3, 3)
    rows = np.array([[2 * swizzle(128 * (i % 8)) for i in range(32)]])
    assert banks.wavefronts(rows, 16, access="matrix").tolist() == [4 * 2]


@pytest.mark.parametrize("shape", [(3, 3, 2), (-1, 3, 3), (1, -1, 3)])
def test_overlapping_or_negative_bits_are_refused(shape):
    with pytest.raises(InvalidOperand, match=f"Swizzle<{shape[0]}, {shape[1]}, {shape[2]}>"):
        Swizzle(*shape)
