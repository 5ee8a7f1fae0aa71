"""The suite of fp32 sums: its shapes, its verdict, and the plans that it compares."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import GPUS
from tilewright.lab import sums
from tilewright.lab.record import provenance
from tilewright.lab.suite import find_suite, read_suite
from tilewright.report.tables import PAGES, markdown

H200 = GPUS["H200"]


def errors(ours: float, cublas: float) -> dict[str, float]:
    return {"ours": ours, "cublas": cublas, "ratio": ours / cublas, "beyond": ours / max(2 * cublas, 4)}


def test_shapes_are_the_same_at_every_run_and_within_their_bounds():
    case, other = read_suite(find_suite("fp32-sums"))["cases"]
    assert sums.shapes_of(other) == sums.shapes_of(case)
    shapes = sums.shapes_of(case)
    assert len(shapes) == case["shapes"] >= 1000
    assert shapes == sums.shapes_of(case)
    assert all(m * n * k <= sums.MOST_PRODUCTS and k <= sums.LONGEST and max(m, n) <= sums.WIDEST for m, n, k in shapes)
    assert max(k for _, _, k in shapes) > 50_000


@pytest.mark.parametrize(
    ("ours", "cublas", "right"),
    [(3.9, 0.5, True), (4.1, 0.5, False), (9.9, 5.0, True), (10.1, 5.0, False), (float("inf"), 5.0, False)],
)
def test_an_error_may_be_twice_cublas_s_or_four_half_ulps(ours, cublas, right):
    found = sums.summary([((8, 8, 64), errors(1.0, 1.0)), ((8, 8, 128), errors(ours, cublas))], "nn", H200)
    assert found["right"] is right
    assert found["beyond"] == (0 if right else 1)
    assert found["worst"][0]["shape"] == (8, 8, 128)
    assert bool(found["reason"]) is not right


def test_a_long_sum_has_a_plan_with_shorter_chains_and_a_short_one_has_not():
    chosen, plain = sums.plans_of((2, 8, 20_000), "nn", H200)
    assert chosen.config != plain.config
    chosen, plain = sums.plans_of((512, 512, 64), "nn", H200)
    assert chosen.config == plain.config


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_errors_are_told_in_half_ulps_of_the_largest_result(layout):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    with tw.emulator():
        found = sums.errors_of(torch, (5, 7, 333), layout, "cpu")
    assert 0 < found["ours"] < 40
    assert found["ratio"] == pytest.approx(found["ours"] / found["cublas"])
    assert np.isfinite(found["beyond"])


def test_the_page_tells_both_records():
    errors_told = sums.summary([((8, 8, 64), errors(1.0, 1.0))], "nn", H200)
    time_told = {"right": True, "shapes": 3, "ratio": 0.995, "least": 0.97}
    records = [
        {
            "suite": "fp32-sums",
            "case": {"what": what},
            "result": result,
            "provenance": provenance(machine_kind="gpu", gpu="NVIDIA H200"),
        }
        for what, result in (("errors", errors_told), ("time", time_told))
    ]
    text = markdown(PAGES["fp32-sums"], records)
    assert "| errors | 1 | 0 | 0 |" in text
    assert "0.995 | 0.970" in text
