"""Products with one weight and ever other numbers of rows: planned from the kernels that are there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from fake_executor import fake_gpu

import tilewright as tw
from tilewright.arch import GPUS
from tilewright.errors import InvalidOperand
from tilewright.gemm import rows
from tilewright.gemm.prepare import representatives
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rows import ENOUGH
from tilewright.gemm.rungs import GEMM_RUNGS


@pytest.fixture(autouse=True)
def no_weights():
    rows._weights.clear()


def planned(monkeypatch):
    plan, made = rows.plan_for, []
    monkeypatch.setattr(
        rows, "plan_for", lambda problem, *rest, **more: made.append(problem.m) or plan(problem, *rest, **more)
    )
    return made


def test_after_enough_numbers_of_rows_a_new_one_is_not_planned_by_itself_and_is_right(monkeypatch):
    made = planned(monkeypatch)
    b = np.random.default_rng(1).standard_normal((64, 80)).astype(np.float32)
    with fake_gpu():
        for m in range(1, 3 * ENOUGH):
            a = np.random.default_rng(m).standard_normal((m, 64)).astype(np.float32)
            np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
        assert made == list(range(1, ENOUGH + 2)), "one row lies otherwise than rows do"
        told = str(tw.explain(np.ones((500, 64), np.float32), b))
        assert "the kernels that are there" in told
        assert "deterministic=True plans 500 rows" in told.replace("\n         ", " ")


def test_deterministic_and_invariant_products_are_planned_each_by_itself(monkeypatch):
    made = planned(monkeypatch)
    b = np.ones((64, 64), np.float32)
    with fake_gpu():
        for m in range(1, ENOUGH + 10):
            tw.matmul(np.ones((m, 64), np.float32), b, deterministic=True)
            tw.matmul(np.ones((m, 64), np.float32), b, batch_invariant=True)
    assert set(made) == set(range(1, ENOUGH + 10))


def test_other_weights_layouts_and_epilogues_are_planned_apart(monkeypatch):
    made = planned(monkeypatch)
    with fake_gpu():
        for m in range(1, ENOUGH + 5):
            tw.matmul(np.ones((m, 64), np.float32), np.ones((64, 64), np.float32))
        made.clear()
        tw.matmul(np.ones((200, 64), np.float32), np.ones((64, 128), np.float32))
        tw.matmul(np.ones((200, 64), np.float32), np.ones((64, 64), np.float32).T)
        tw.matmul(np.ones((64, 200), np.float32).T, np.ones((64, 64), np.float32))
    assert made == [200, 200, 200]


def test_rows_to_prepare_reach_from_the_least_to_the_largest():
    assert representatives(range(1, 10)) == list(range(1, 10))
    chosen = representatives(range(1, 4097))
    assert len(chosen) == ENOUGH + 1
    assert (chosen[0], chosen[-1]) == (1, 4096)
    assert any(m % 128 for m in chosen[-5:])


def test_prepare_runs_what_it_says_and_then_nothing_is_planned(monkeypatch):
    made, said = planned(monkeypatch), []
    b = np.ones((64, 48), np.float32)
    with fake_gpu() as executor:
        ran = tw.prepare(
            b, range(1, 2000), c=lambda m: np.ones((m, 48), np.float32), progress=lambda *at: said.append(at)
        )
        assert len(ran) == len(executor.launches) == ENOUGH + 1
        assert said[-1] == (ENOUGH + 1, ENOUGH + 1)
        made.clear()
        for m in (3, 77, 1024, 1999, 3000):
            tw.matmul(np.ones((m, 64), np.float32), b, c=np.ones((m, 48), np.float32))
        assert not made
        with pytest.raises(InvalidOperand, match="holds no number of rows"):
            tw.prepare(b, range(0))
        with pytest.raises(InvalidOperand, match=f"holds {2**70} rows; kernels take"):
            tw.prepare(b, (1, 2**70))
        for not_rows in (4, "4", [2.5], np.ones((2, 3), np.float32)):
            with pytest.raises(InvalidOperand, match="is not whole numbers of rows"):
                tw.prepare(b, not_rows)
        with pytest.raises(InvalidOperand, match="takes a matrix"):
            tw.prepare(np.ones((2, 3, 4), np.float32), range(5))


SHAPES = [(n, k, layout) for n, k in ((512, 512), (768, 200), (500, 96)) for layout in ("nn", "nt", "tn")]


@pytest.mark.parametrize("rung", GEMM_RUNGS, ids=str)
def test_what_a_kernel_is_compiled_for_depends_on_the_rows_as_rows_says(rung):
    """Else a kernel could be taken for one that serves a number of rows which it does not serve."""
    rng = np.random.default_rng(0)
    configs = [rung.default, *rng.choice(np.array(rung.space(), object), 6)]
    gpu = GPUS["H200"]
    for (n, k, layout), dtype in product(SHAPES, rung.dtypes):
        for config in configs:
            tall = config.tile_m * config.cluster_m
            seen = {}
            for m in (2, 7, 8, config.tile_m, tall, 3 * tall, 64 * tall, tall + 1, 5 * tall + 8, 9999, 4096, 10_240):
                problem = GemmProblem.dense(m, n, k, layout=layout, dtype=dtype, precision=rung.precision)
                told = rung.why_not(problem, config, gpu.arch) is None and rung.constants(problem, config)
                # where the lines of A lie otherwise they are another weight's rows
                like = problem.a, rows._alike(m, config)
                assert seen.setdefault(like, told) == told, (str(config), m, n, k, layout)
