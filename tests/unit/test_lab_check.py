"""The rule by which a product is judged, and the guard bands around it."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.lab.check import Guarded, check, reference
from tilewright.lab.numbers import from_stored, half_spacing, rounded, to_stored


def operands(m: int = 40, n: int = 30, k: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)


def sequential(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As a thread of a kernel sums: one chain in fp32 along k."""
    out = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for step in range(a.shape[1]):
        out += a[:, step, None] * b[None, step]
    return out


def test_a_sum_in_one_chain_of_fp32_passes():
    a, b = operands(k=3000)
    verdict = check(sequential(a, b), a, b)
    assert verdict.ok, verdict.reason
    assert 0 < verdict.max_error <= verdict.bound


def test_alpha_and_beta_are_judged():
    a, b = operands()
    c = np.random.default_rng(8).standard_normal((40, 30), dtype=np.float32)
    out = np.float32(1.5) * sequential(a, b) + np.float32(-0.5) * c
    assert check(out, a, b, c=c, alpha=1.5, beta=-0.5).ok
    assert not check(out, a, b, c=c, alpha=1.5, beta=0.5).ok
    np.testing.assert_allclose(reference(a, b, c, 1.5, -0.5), out, atol=1e-4)


def test_c_full_of_nan_is_not_read_when_beta_is_zero():
    a, b = operands()
    assert check(sequential(a, b), a, b, c=np.full((40, 30), np.nan, np.float32), beta=0.0).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_not_finite_never_passes(bad):
    a, b = operands()
    out = sequential(a, b)
    out[3, 4] = bad
    verdict = check(out, a, b)
    assert not verdict.ok
    assert "(3, 4)" in verdict.reason
    assert np.isinf(verdict.max_error)


def test_one_product_left_out_of_one_sum_is_seen():
    a, b = operands(k=3000)
    out = sequential(a, b)
    out[5, 6] -= np.float32(0.02)  # far less than a typical product of two standard normal numbers
    verdict = check(out, a, b)
    assert not verdict.ok
    assert "(5, 6)" in verdict.reason


def test_operands_rounded_to_ten_bits_are_seen():
    """What a tensor core does to fp32 operands (tf32) is no fp32 product."""
    a, b = operands(k=1000)

    def cut(x: np.ndarray) -> np.ndarray:
        return ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)

    assert not check(sequential(cut(a), cut(b)), a, b).ok


def test_infinities_and_nans_of_the_product_itself_must_come_out_as_such():
    a, b = operands()
    a[2, 3], b[5, 7] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        out = sequential(a, b)
    assert check(out, a, b).ok
    assert not check(np.nan_to_num(out, nan=0.0), a, b).ok
    flipped = out.copy()
    flipped[2] = -flipped[2]
    assert not check(flipped, a, b).ok


def test_a_product_beyond_the_range_of_fp32_must_be_infinite():
    a, b = np.full((1, 1), 3e38, np.float32), np.full((1, 1), -2.0, np.float32)
    assert check(np.full((1, 1), -np.inf, np.float32), a, b).ok
    assert not check(np.full((1, 1), np.inf, np.float32), a, b).ok
    assert not check(np.full((1, 1), -3e38, np.float32), a, b).ok


def test_the_library_given_is_the_measure():
    a, b = operands()
    out = sequential(a, b)
    off = out + np.float32(1e-3)
    assert not check(off, a, b).ok
    assert check(off, a, b, library=reference(a, b).astype(np.float32) + np.float32(2e-3)).ok


def test_a_library_result_that_is_not_finite_gives_no_slack():
    a, b = operands()
    off = sequential(a, b) + np.float32(1.0)
    assert not check(off, a, b, library=np.full((40, 30), np.nan, np.float32)).ok


def test_a_wrong_shape_and_an_empty_product():
    a, b = operands()
    assert "shape" in check(np.zeros((30, 40), np.float32), a, b).reason
    empty = check(np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32), np.zeros((2, 3), np.float32))
    assert empty.ok


def test_the_sum_of_no_products_is_zero_and_nothing_else():
    a, b = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    assert check(np.zeros((2, 3), np.float32), a, b).ok
    assert not check(np.full((2, 3), 1e-30, np.float32), a, b).ok


def test_guard_bands_notice_writes_on_either_side_even_of_nan():
    for place in (255, 256 + 12):
        guarded = Guarded((3, 4))
        assert guarded.intact()
        assert np.isnan(guarded.view).all()
        guarded.whole.view(np.float32)[place] = np.nan
        assert not guarded.intact()


def test_elements_that_nobody_wrote_are_counted():
    guarded = Guarded((3, 4))
    assert guarded.untouched() == 12
    guarded.view[:2] = 1.0
    assert guarded.untouched() == 4
    assert guarded.intact()


# --- 16 bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_16_bit_product_is_judged_by_what_its_type_can_hold(dtype):
    a, b = (rounded(x, dtype) for x in operands(k=1000))
    out = rounded(sequential(a, b), dtype)
    kinds = {"dtype": dtype, "out_dtype": dtype}
    assert check(out, a, b, **kinds).ok
    assert not check(out, a, b, dtype=dtype).ok, "an fp32 result must not be as coarse"
    place = np.unravel_index(np.abs(out).argmin(), out.shape)  # where a bound taken from the largest would forgive most
    for change in (0.05, -0.05):
        off = out.copy()
        off[place] += change
        verdict = check(off, a, b, **kinds)
        assert not verdict.ok
        assert verdict.bound < 0.02


@pytest.mark.parametrize(("dtype", "at_one"), [("f32", 0.0), ("f16", 2.0**-11), ("bf16", 2.0**-8)])
def test_half_the_distance_between_numbers(dtype, at_one):
    values = np.array([1.0, 1.99, 2.0, 0.0])
    halves = half_spacing(values, dtype)
    np.testing.assert_array_equal(halves[:3], [at_one, at_one, 2 * at_one])
    assert halves[3] < 1e-7
    if dtype != "f32":  # half a step up is the tie that goes to even, more goes up
        assert rounded(np.array([1 + at_one], np.float32), dtype)[0] == 1.0
        assert rounded(np.array([1 + 1.01 * at_one], np.float32), dtype)[0] == 1 + 2 * at_one


def test_a_sum_beyond_the_range_of_f16_must_be_infinite():
    a, b = np.full((1, 2), 300.0, np.float32), np.full((2, 1), 300.0, np.float32)
    assert check(np.full((1, 1), np.inf, np.float32), a, b, out_dtype="f16").ok
    assert not check(np.full((1, 1), 65504.0, np.float32), a, b, out_dtype="f16").ok


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_guarded_buffers_of_every_type_are_nan_until_written(dtype):
    guarded = Guarded((3, 4), dtype)
    assert np.isnan(from_stored(guarded.view, dtype)).all()
    guarded.view[...] = to_stored(np.ones((3, 4), np.float32), dtype)
    assert guarded.intact()
    assert guarded.untouched() == 0
    np.testing.assert_array_equal(from_stored(guarded.view, dtype), 1.0)
    guarded.whole[-1] = 0
    assert not guarded.intact()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_values_come_back_and_keep_their_layout(dtype):
    values = rounded(operands()[0], dtype)
    for layout in (values, values.T):
        stored = to_stored(layout, dtype)
        assert stored.flags.c_contiguous == layout.flags.c_contiguous
        np.testing.assert_array_equal(from_stored(stored, dtype), layout)
    exact = np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)  # ties of bf16: to even, down then up
    if dtype == "bf16":
        np.testing.assert_array_equal(rounded(exact, dtype), np.array([1.0, 1.0, 1 + 2.0**-6], np.float32))


def test_twice_the_librarys_error_is_allowed_and_no_more():
    a, b = operands()
    ref = reference(a, b)
    library = (ref + 1e-2).astype(np.float32)
    assert check((ref + 1.9e-2).astype(np.float32), a, b, library=library).ok
    assert not check((ref + 2.2e-2).astype(np.float32), a, b, library=library).ok
