"""The comparison that every candidate passes before it is timed, executed from its PTX: what is wrong is counted."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emu import Emulator
from tilewright.gemm.problem import GemmProblem
from tilewright.gpus import ARCHS
from tilewright.tuning.inputs import Inputs
from tilewright.tuning.verify import (
    RESULT_BYTES,
    Difference,
    Pattern,
    allowed_error,
    compare_kernel,
    compare_launch,
    read_difference,
    sample_places,
)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """Of values that bf16 holds exactly."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


STORE = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16), "bf16": bf16_bits}


def compared(
    found: np.ndarray, expected: np.ndarray, out_dtype: str, allowed: float, sides: tuple[np.ndarray, ...] = ()
) -> Difference:
    emulator = Emulator("H200")
    addresses = [emulator.upload(array.view(np.uint8)) for array in (found, expected, np.zeros(RESULT_BYTES, np.uint8))]
    above, below = (emulator.upload(side.view(np.uint8)) for side in sides) if sides else (0, 0)
    launch = compare_launch(*addresses, expected.size, allowed, (above, below))
    emulator.launch(compare_kernel(out_dtype, ARCHS["sm_90a"].name), launch)
    return read_difference(emulator.download(addresses[2], RESULT_BYTES))


@pytest.mark.parametrize("out_dtype", STORE)
def test_what_is_equal_is_right_and_every_wrong_element_is_counted(out_dtype):
    expected = np.arange(-600, 701, dtype=np.float32) / 128  # numbers of few digits: all three types hold some exactly
    exact = expected if out_dtype != "bf16" else (expected.view(np.uint32) & 0xFFFF0000).view(np.float32)
    stored = STORE[out_dtype](exact)
    assert compared(stored, exact, out_dtype, 1e-6) == Difference(0, 0.0)
    bad = stored.copy()
    bad[[0, 300, 1300]] = STORE[out_dtype](np.full(3, 64, np.float32))
    found = compared(bad, exact, out_dtype, 1e-6)
    assert found.wrong == 3
    assert found.worst == pytest.approx(64 - min(exact[[0, 300, 1300]]), rel=1e-2)


@pytest.mark.parametrize("out_dtype", STORE)
def test_a_nan_or_an_element_nobody_wrote_is_wrong_however_much_is_allowed(out_dtype):
    expected = np.ones(257, np.float32)
    stored = STORE[out_dtype](expected).copy()
    stored.view(np.uint8)[-stored.itemsize :] = 0xFF  # what outputs are filled with
    assert compared(stored, expected, out_dtype, 1e30).wrong == 1
    stored[0] = STORE[out_dtype](np.full(1, np.inf, np.float32))[0]
    assert compared(stored, expected, out_dtype, 1e30).wrong == 2


@pytest.mark.parametrize(("out_dtype", "step"), [("f16", 2.0**-10), ("bf16", 2.0**-7)])
def test_half_a_step_of_the_results_type_is_allowed_and_no_more(out_dtype, step):
    expected = np.array([1 + 0.45 * step, 1 + 0.55 * step, 4 + 1.8 * step], np.float32)
    below = STORE[out_dtype](np.array([1, 1, 4], np.float32))
    assert compared(below, expected, out_dtype, 1e-7).wrong == 1, "0.55 of a step is more than half of one"


def test_what_is_allowed_is_an_absolute_bound_for_fp32():
    expected = np.full(3, 1000.0, np.float32)
    found = expected + np.array([0.0, 0.01, 0.03], np.float32)
    assert compared(found, expected, "f32", 0.02).wrong == 1


def test_allowed_errors_grow_with_k_and_are_far_below_a_missing_product():
    for dtype in ("f32", "bf16"):
        assert allowed_error(4096, dtype, 300) > allowed_error(64, dtype, 300)
        assert allowed_error(16384, dtype, 600) < 0.1


def test_the_pattern_is_the_same_each_time_and_its_values_are_those_stored():
    for dtype in STORE:
        one, two = Pattern(dtype), Pattern(dtype)
        assert (one.stored == two.stored).all()
        places = np.array([0, 5, Pattern.LENGTH, Pattern.LENGTH + 5])
        values = one.values(places)
        assert values[0] == values[2] != values[1] == values[3]
        assert (STORE[dtype](values.astype(np.float32)) == one.stored[places % Pattern.LENGTH]).all()
        assert abs(one.values(np.arange(100_000)).std() - 1) < 0.02


def test_no_line_of_a_is_one_of_b():
    """4096 cubed, transposed times plain: one pattern for both, of whatever length, would repeat somewhere."""
    problem = GemmProblem.dense(4096, 4096, 4096, layout="tn", dtype="bf16")
    inputs = Inputs(problem, Pattern("bf16"))
    rows, every = np.arange(256), np.arange(4096)
    sums = inputs.values("a", 0, np.array([2048]), rows) @ inputs.values("b", 0, rows, every)
    assert np.abs(sums).max() < 8 * 256**0.5, "a sum of 256 squares is 16 times the root of 256"


@pytest.mark.parametrize("extent", [1, 2, 15, 16, 17, 5000])
def test_samples_hold_the_first_and_the_last(extent):
    places = sample_places(extent, 16, 0)
    assert places[0] == 0
    assert places[-1] == extent - 1
    assert len(set(places.tolist())) == len(places) <= 16


def test_an_element_may_be_off_by_as_far_as_its_sides_are_and_a_side_that_is_no_number_allows_nothing():
    expected = np.array([1, 1, 1, 1, 1, 1, 0], np.float32)
    above, below = expected + np.float32(0.25), expected - np.float32(0.5)
    found = np.array([1.51, 1.49, 0.49, 0.51, 1, 1, 0.3], np.float32)
    above[4], below[5], above[6] = np.nan, np.inf, 0
    assert compared(found, expected, "f32", 0.0, (above, below)).wrong == 4
    assert compared(found, expected, "f32", 0.1, (above, below)).wrong == 2
    assert compared(found, expected, "f32", 0.0).wrong == 5
