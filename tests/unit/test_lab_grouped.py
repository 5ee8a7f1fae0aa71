"""The suite of grouped products apart from a GPU: its cases, and what its check finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.lab.fp8 import whole_scale
from tilewright.lab.grouped import make_arrays, sizes_of, verdict
from tilewright.lab.suite import read_suite

CASES = read_suite(Path(__file__).parents[2] / "benchmarks" / "grouped.json")["cases"]
SMALL = {"groups": 5, "sizes": [0, 9], "n": 24, "k": 16, "dtype": "bf16"}


def test_sizes_are_the_same_every_time_and_within_their_limits():
    for case in CASES:
        sizes = sizes_of(case)
        assert sizes == sizes_of(case)
        assert len(sizes) == case["groups"]
        low, high = (case["sizes"],) * 2 if isinstance(case["sizes"], int) else case["sizes"]
        assert low <= min(sizes) <= max(sizes) <= high


@pytest.mark.parametrize(("form", "layout"), [("rows", "nn"), ("rows", "nt"), ("k", "tn")])
def test_one_wrong_element_of_a_group_is_found(form, layout):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = SMALL | {"form": form, "layout": layout}
    arrays = make_arrays(torch, case, "cpu")
    begin = 0
    for group, end in enumerate(arrays.ends):
        if form == "k":
            arrays.out[group] = arrays.a[:, begin:end] @ arrays.b[begin:end]
        else:
            arrays.out[begin:end] = arrays.a[begin:end] @ arrays.b[group]
        begin = end
    assert_finds_one_wrong(torch, case, arrays)


@pytest.mark.parametrize("scales", ["rows", "blocks"])
def test_one_wrong_element_of_fp8_groups_is_found(scales):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    case = SMALL | {"form": "rows", "layout": "nt", "dtype": "e4m3", "scales": scales, "k": 256}
    arrays = make_arrays(torch, case, "cpu")
    begin = 0
    for group, end in enumerate(arrays.ends):
        a = arrays.a[begin:end].float() * whole_scale(torch, arrays.scales["a_scale"][begin:end], (end - begin, 256))
        b = arrays.b[group].float() * whole_scale(torch, arrays.scales["b_scale"][group], (256, 24))
        arrays.out[begin:end] = a @ b
        begin = end
    assert_finds_one_wrong(torch, case, arrays)


def assert_finds_one_wrong(torch, case, arrays):
    assert verdict(torch, case, arrays) == ""
    arrays.out[..., 3, 5] += 80
    assert verdict(torch, case, arrays).startswith("group")
    arrays.out[..., 3, 5] = float("nan")
    assert verdict(torch, case, arrays).startswith("group")
