"""Operands and results that run backwards (a[::-1], a[:, ::-1]) are read and written where they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InvalidOperand
from tilewright.gemm import call as call_module
from tilewright.gemm.call import Options, read_call
from tilewright.gemm.problem import GemmProblem, Matrix
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.gemm.stages import program_for
from tilewright.plan.plan import Plan
from tilewright.tuning.inputs import Inputs
from tilewright.tuning.verify import Pattern

WAYS = {
    "rows": (slice(None, None, -1), slice(None)), "columns": (slice(None), slice(None, None, -1)),
    "both": (slice(None, None, -1), slice(None, None, -1)), "every other": (slice(None, None, -2), slice(None)),
}  # fmt: skip
SMALL = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=2, group_m=2, min_blocks=4)


def normal(rows: int, cols: int, way: str, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """rows x cols random numbers that lie in memory the way told, NaN around and between them."""
    where = WAYS[way]
    reach = [extent * abs(part.step or 1) for extent, part in zip((rows, cols), where, strict=True)]
    view = np.full([extent + 2 for extent in reach], np.nan, dtype)[1:-1, 1:-1][where]
    view[...] = np.random.default_rng(seed).standard_normal((rows, cols))
    return view


def around(view: np.ndarray) -> np.ndarray:
    """The whole array that `normal` cut the view from."""
    while view.base is not None:
        view = view.base
    return view


@pytest.mark.parametrize(
    ("rung", "dtype", "way"),
    [
        ("f04", "float32", "rows"), ("f12", "float32", "both"), ("h02", "float16", "rows"),
        ("h11", "float16", "columns"), ("t03", "float32", "every other"),
    ],
)  # fmt: skip
def test_rungs_read_and_write_backwards(rung, dtype, way):
    found = find_rung(rung)
    m, n, k = (64, 64, 32) if rung == "h02" else (40, 33, 20)
    a, b, c = (normal(*shape, way, dtype, i) for i, shape in enumerate(((m, k), (k, n), (m, n))))
    out = normal(m, n, way, dtype)
    out[...] = np.nan
    config = SMALL if rung[0] == "t" else None
    with tw.emulator():
        tw.matmul(a, b, c=c, alpha=1.5, out=out, rung=rung, config=config, precision=found.precision)
    expected = 1.5 * (a.astype(np.float64) @ b) + c
    loose = found.precision == "tf32" or dtype == "float16"
    np.testing.assert_allclose(out, expected, rtol=0, atol=3e-2 if loose else 3e-5)
    assert np.isfinite(around(out)).sum() == m * n, "nothing beside the result is written"


def test_wmma_does_not_read_lines_that_lie_one_before_the_other():
    """Aligned as wmma asks for, but their distance is negative: h02 reads them element by element."""
    a, b = (np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float16)[::-1] for seed in range(2))
    with tw.emulator():
        out = tw.matmul(a, b, rung="h02")
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=3e-2)


def test_packing_goes_along_the_nearer_neighbours_whichever_way_they_lie():
    plan = Plan(find_rung("h11"), replace(SMALL, stages=3), "a test", "a test", packs=("a",))
    for row_stride, col_stride, along_rows in ((-300, 2, False), (2, -300, True), (-2, 300, True), (300, -2, False)):
        problem = GemmProblem.dense(100, 64, 100, dtype="f16")
        problem = replace(problem, a=Matrix(row_stride, col_stride, alignment=2))
        pack = program_for(problem, plan).stages[0].problem
        assert abs(pack.a.col_stride) == 2
        assert (pack.a.col_stride == row_stride) == along_rows


def test_batches_epilogues_and_broadcasts_run_backwards_too():
    a, b = np.stack([normal(9, 20, "both", seed=s) for s in range(3)])[::-1], normal(20, 14, "rows")
    bias, residual = normal(1, 14, "columns")[0], normal(9, 14, "both", "float16")
    kept = residual.astype(np.float64)
    with tw.emulator():
        out = tw.matmul(a, b, bias=bias, activation="relu", residual=residual)
        np.testing.assert_allclose(out, np.maximum(a.astype(np.float64) @ b + bias, 0) + kept, rtol=0, atol=3e-5)
        own = normal(9, 14, "both")
        expected = a[0].astype(np.float64) @ b + own
        assert tw.matmul(a[0], b, residual=own, out=own) is own, "the very array of an operand"
        np.testing.assert_allclose(own, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("way", ["rows", "columns"])
def test_packed_operands_lie_forwards(monkeypatch, way):
    plan = Plan(find_rung("h11"), replace(SMALL, stages=3), "a test", "a test", packs=("a", "b"))
    monkeypatch.setattr(call_module, "plan_rows", lambda *rest, **options: plan)
    a, b = normal(40, 50, way, "float16"), normal(50, 48, way, "float16")
    with tw.emulator() as emulator:
        out = tw.matmul(a, b)
    assert len(emulator.results) == 3
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=0, atol=3e-2)


def test_an_out_whose_extent_meets_an_operand_is_seen():
    whole = np.zeros((12, 8), np.float32)
    with tw.emulator(), pytest.raises(InvalidOperand, match="overlaps"):
        tw.matmul(whole[7::-1], np.eye(8, dtype=np.float32), out=whole[::-1][:8])


class Flat:
    """Memory of a GPU that there is not, each piece right behind the one before."""

    start = 1 << 20

    def __init__(self) -> None:
        self.end = self.start

    def filled(self, nbytes: int, pattern: Pattern) -> int:
        self.end += nbytes
        return self.end - nbytes


@pytest.mark.parametrize("way", list(WAYS))
def test_tuning_makes_room_before_an_operand_that_runs_backwards(way):
    a, b = normal(8, 6, way), normal(6, 4, way)
    problem = read_call(a, b, None, 1.0, None, None, Options()).product.problem
    inputs = Inputs(problem, Pattern("f32"))
    inputs.allocate(Flat(), 1)
    places = {}
    for name, view, lies in (("a", a, problem.a), ("b", b, problem.b)):
        rows, cols = view.shape
        steps = np.add.outer(np.arange(rows) * lies.row_stride, np.arange(cols) * lies.col_stride)
        places[name] = inputs.address(name, 0) + 4 * steps
        assert places[name].min() >= Flat.start
        assert inputs.address(name, 0) % 16 == lies.alignment % 16
    assert places["a"].max() < places["b"].min()
    assert places["b"].max() + 4 <= Flat.start + inputs.bytes
