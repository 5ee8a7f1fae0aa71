"""The suite of fp8 apart from a GPU: its cases, and what its check finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.lab.fp8 import make_arrays, verdict, whole_scale
from tilewright.lab.suite import read_suite

CASES = read_suite(Path(__file__).parents[2] / "benchmarks" / "fp8.json")["cases"]


def test_no_case_is_there_twice():
    assert len({tuple(case.items()) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("scales", ["tensor", "rows", "blocks"])
def test_one_wrong_element_is_found(scales):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    arrays = make_arrays(torch, {"m": 40, "n": 150, "k": 300, "scales": scales}, "cpu")
    a = arrays.a.float() * whole_scale(torch, arrays.a_scale, (40, 300))
    b = arrays.b.float() * whole_scale(torch, arrays.b_scale, (300, 150))
    arrays.out.copy_(a @ b)
    assert verdict(torch, arrays) == ""
    arrays.out[39, 149] += 8
    assert verdict(torch, arrays).startswith("row 39, column 149")
    arrays.out[39, 149] = float("nan")
    assert verdict(torch, arrays).startswith("row 39, column 149")


def test_scales_of_blocks_cover_what_their_blocks_do():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    scale = torch.arange(6.0).reshape(2, 3)
    whole = whole_scale(torch, scale, (200, 300))
    assert whole.shape == (200, 300)
    assert whole[127, 128] == scale[0, 1]
    assert whole[128, 299] == scale[1, 2]
