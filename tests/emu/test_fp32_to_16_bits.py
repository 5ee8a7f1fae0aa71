"""Results of float32 operands in bf16 and fp16: right whatever lies how, and rounded only once. Rungs that store as f12
does, and tensor cores: test_epilogues.py, test_tensor32_rungs.py, test_precision.py; split k: test_fp32_programs.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rung_products import Bench, Case
from test_rungs import SMALL as SMALL_FFMA
from test_tensor32_rungs import SMALL as SMALL_TENSOR

import tilewright as tw
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung
from tilewright.gpus import ARCHS
from tilewright.lab.numbers import from_stored, to_stored

SMALL = SMALL_FFMA | SMALL_TENSOR
RUNGS = [rung.id for rung in GEMM_RUNGS if "f32" in rung.dtypes]


def narrow(*sizes, **changes) -> Case:
    return Case(*sizes, dtype="f32", **changes)


CASES = [
    # rows of whole 16-byte vectors, with C and without
    narrow(64, 64, 16, out_dtype="bf16"),
    narrow(32, 40, 24, layouts="tn", out="p", out_dtype="f16", alpha=1.5, beta=-0.5),
    # four elements of a row that start anywhere: rows of odd length, a first element that is odd
    narrow(35, 41, 20, layouts="nt", out_dtype="f16", alpha=-1.0, beta=2.0, c="q"),
    narrow(64, 32, 8, out="o", out_dtype="bf16", batch=2, shared_b=True),
    # one by one: columns contiguous, neither
    narrow(20, 34, 9, layouts="tt", out="t", out_dtype="bf16", beta=1.0, c="t"),
    narrow(34, 19, 13, layouts="ss", out="s", out_dtype="f16", beta=0.5),
]


def pairs_of_rung_and_case() -> list[tuple[str, Case]]:
    """All with f12; of those that store element by element, but f05, which is large, each takes two."""
    one_by_one = enumerate(RUNGS[:4])
    return [("f12_multistage", case) for case in CASES] + [
        (rung, case) for number, rung in one_by_one for place, case in enumerate(CASES) if (number + place) % 3 == 0
    ]


def of(rung: str, case: Case) -> np.ndarray:
    """What is stored, checked."""
    bench = Bench(case)
    if case.beta is not None:  # C of few digits, the same whatever its type is
        bench.put(2, np.random.default_rng(1).integers(-9, 9, bench.values[2].shape).astype(np.float32) / 4)
    bench.run(find_rung(rung), SMALL.get(rung, find_rung(rung).default)).assert_right()
    return bench.out.view


@pytest.mark.parametrize(("rung", "case"), pairs_of_rung_and_case(), ids=str)
def test_a_product_is_right_and_stays_inside(rung, case):
    of(rung, case)


@pytest.mark.parametrize(("rung", "out_dtype"), [("f12_multistage", "bf16"), ("t01_tf32", "f16")])
def test_what_is_stored_is_the_fp32_result_rounded_once_to_nearest(rung, out_dtype):
    case = narrow(33, 40, 24, alpha=1.5, beta=-0.5, precision=find_rung(rung).precision)
    wide = of(rung, case)
    np.testing.assert_array_equal(
        of(rung, dataclasses.replace(case, out_dtype=out_dtype)), to_stored(np.ascontiguousarray(wide), out_dtype)
    )
    assert (from_stored(to_stored(np.ascontiguousarray(wide), out_dtype), out_dtype) != wide).any(), "bits were dropped"


def test_sums_beyond_fp16_become_infinity_and_small_ones_subnormal():
    a, b = np.full((4, 64), 100, np.float32), np.full((64, 8), 100, np.float32)
    b[:, 1::2] = 2.0**-30
    with tw.emulator():
        out = tw.matmul(a, b, out_dtype="f16")
    assert out.dtype == np.float16
    assert np.isposinf(out[:, ::2]).all()
    np.testing.assert_array_equal(out[:, 1::2], np.float16(6400 * 2.0**-30))


def test_whole_rows_are_stored_8_bytes_an_access():
    """Half the sectors of fp32's results, by as many requests."""
    wide, halves = (
        Bench(narrow(64, 64, 8, out_dtype=out)).run(find_rung("f12"), SMALL["f12_multistage"]).result.counters
        for out in ("f32", "f16")
    )
    assert wide.global_store_requests == halves.global_store_requests == 64 * 64 / 4 / 32
    assert wide.global_store_sectors == 2 * halves.global_store_sectors == 64 * 64 * 4 / 32


def test_the_result_may_be_of_any_type_whatever_rung_was_named():
    for rung in RUNGS:
        found = find_rung(rung)
        for out_dtype in ("f32", "bf16", "f16"):
            problem = GemmProblem.dense(256, 256, 256, out_dtype=out_dtype, precision=found.precision)
            assert found.why_not(problem, found.default, ARCHS["sm_90a"]) is None


def test_explain_tells_the_results_type_beside_the_precision():
    a = np.zeros((64, 64), np.float32)
    assert "in f32 to f16; A rows" in str(tw.explain(a, a, out_dtype="f16", gpu="H200"))
    text = str(tw.explain(a, a, out_dtype="bf16", precision="tf32", gpu="H200")).replace("\n         ", " ")
    assert "in f32 to bf16, operands rounded to tf32" in text
