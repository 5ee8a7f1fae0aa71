"""Plans of several launches on the emulator: operands packed first, k split and its parts summed, and both."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm import call as call_module
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.lab.check import Guarded, check
from tilewright.plan.plan import Plan

SMALL = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, group_m=8, min_blocks=4)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(np.float16)


def right(out, a, b, out_dtype="f16", **options) -> None:
    wide = [np.asarray(x, np.float32) for x in (out, a, b)]
    verdict = check(*wide, dtype="f16", out_dtype=out_dtype, **options)
    assert verdict.ok, verdict.reason


def with_parts(parts: int) -> GemmConfig:
    return GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, group_m=8, min_blocks=4, split_k=parts)


@pytest.fixture
def packing(monkeypatch):
    """Makes every plan pack the operands named."""

    def use(*names: str, parts: int = 1) -> None:
        plan = Plan(find_rung("h11"), with_parts(parts), "a test", "a test", packs=names)
        monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)

    return use


# --- k in parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((64, 64, 128), 2), ((64, 64, 128), 9), ((1, 70, 200), 3), ((33, 41, 97), 2), ((33, 41, 97), 9)],
)
def test_the_parts_of_a_split_product_add_up(shape, parts):
    m, n, k = shape
    a, b = values(m, k), values(k, n)
    target = Guarded((m, n), "f16")
    with tw.emulator() as emulator:
        tw.matmul(a, b, config=with_parts(parts), out=target.view)
        assert len(emulator.results) == 2, "the product, and the sum of its parts"
        assert not emulator.memory._buffers, "the workspace is given back"
    right(target.view, a, b)
    assert target.untouched() == 0
    assert target.intact()


@pytest.mark.parametrize("out_dtype", ["f32", "f16"])
@pytest.mark.parametrize("lies", ["rows", "columns", "strided"])
def test_alpha_beta_and_c_are_applied_once_in_the_sum(out_dtype, lies):
    a, b = values(20, 100), values(100, 24)
    dtype = np.float32 if out_dtype == "f32" else np.float16
    c = values(20, 24, seed=3).astype(dtype)
    whole = np.full((60, 72), 7, dtype)
    out = {"rows": whole[:20, :24], "columns": whole[:24, :20].T, "strided": whole[::3, ::3]}[lies]
    with tw.emulator():
        tw.matmul(a, b, c=c, alpha=-1.5, beta=0.5, out=out, config=with_parts(3))
        right(out, a, b, out_dtype, c=c.astype(np.float32), alpha=-1.5, beta=0.5)
        nothing = np.full_like(c, np.nan)
        right(tw.matmul(a, b, c=nothing, beta=0, out_dtype=out_dtype, config=with_parts(3)), a, b, out_dtype)
    out[...] = 7
    assert (whole == 7).all(), "written beside out"


def test_split_batches_are_right_also_over_several_launches():
    a, b = values(3, 4, 9, 70)[:, ::2], values(5, 1, 1, 70, 11)
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, config=with_parts(2))
        assert len(emulator.results) == 2 * tw.explain(a, b).launches > 2
    right(out, a, b)


def test_the_sum_of_parts_has_the_same_bits_every_time_and_no_more_error_than_one_chain():
    a, b = values(16, 512), values(512, 16)
    with tw.emulator():
        one, again = (tw.matmul(a, b, out_dtype="f32", config=with_parts(4)) for _ in range(2))
        chain = tw.matmul(a, b, out_dtype="f32", config=SMALL)
    np.testing.assert_array_equal(one, again)
    right(one, a, b, "f32")
    assert (one != chain).any(), "another order of summation: were it the same, nothing was split"


# --- packing ---------------------------------------------------------------------------------------------------------


def lying(rows: int, cols: int, kind: str) -> np.ndarray:
    return {
        "odd": lambda: values(rows, cols),
        "odd columns": lambda: values(cols, rows).T,
        "offset": lambda: values(rows * cols + 1)[1:].reshape(rows, cols),
        "strided": lambda: values(2 * rows + 1, 3 * cols)[1 : 2 * rows + 1 : 2, ::3],
        "one column": lambda: np.broadcast_to(values(rows, 1), (rows, cols)),
    }[kind]()


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        *((("a", "b"), kind) for kind in ("odd", "odd columns", "offset", "strided", "one column")),
        *(((name,), kind) for name, kind in zip("abab", ("odd", "offset", "odd columns", "one column"), strict=True)),
    ],
    ids=str,
)
def test_packed_operands_give_the_very_bits_of_unpacked_ones(packing, names, kind):
    a, b = lying(41, 67, kind), lying(67, 35, kind)
    with tw.emulator() as emulator:
        plain = tw.matmul(a, b, config=SMALL)
        packing(*names)
        target = Guarded((41, 35), "f16")
        tw.matmul(a, b, out=target.view)
        assert len(emulator.results) == 2 + len(names)
        assert not emulator.memory._buffers
    np.testing.assert_array_equal(target.view, plain)
    right(plain, a, b)
    assert target.intact()


def test_a_packed_operand_is_read_by_16_byte_copies(packing):
    a, b = lying(64, 67, "odd"), lying(67, 64, "odd columns")
    with tw.emulator() as emulator:
        tw.matmul(a, b, config=SMALL)
        plain = emulator.last.counters
        packing("a", "b")
        tw.matmul(a, b)
    assert emulator.last.counters.global_load_requests < plain.global_load_requests / 4


@pytest.mark.parametrize("shared", ["a", "b", ""])
def test_a_batch_is_packed_and_an_operand_that_all_share_once(packing, shared, monkeypatch):
    a, b = values(1 if shared == "a" else 3, 9, 33), values(1 if shared == "b" else 3, 33, 20)
    packing("a", "b", parts=2)
    with tw.emulator() as emulator:
        launch, grids = emulator.launch, []
        monkeypatch.setattr(emulator, "launch", lambda kernel, one: grids.append(one.grid) or launch(kernel, one))
        out = tw.matmul(a, b)
    assert out.shape == (3, 9, 20)
    right(out, a, b)
    products = 1 if shared == "b" else 3  # one b for all: the batch becomes rows of one product
    assert [grid[1] for grid in grids] == [1 if shared == "a" else products, products, products, products]


# --- what the plan does by itself ------------------------------------------------------------------------------------


def test_a_thin_product_is_split_by_the_plan_and_right():
    a, b = values(1, 4096), values(4096, 64)
    with tw.emulator("A100") as emulator:
        told = tw.explain(a, b)
        out = tw.matmul(a, b)
    assert told.stages == ("product", "sum of parts")
    assert len(emulator.results) == 2
    assert "k in " in told.plan.why
    right(out, a, b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_batch_invariant_rows_have_the_same_bits_whatever_m_is(dtype):
    a, b = values(70, 300).astype(dtype), values(300, 40).astype(dtype)
    with tw.emulator():
        rows = [tw.matmul(a[:m], b, batch_invariant=True)[:1] for m in (1, 17)]
        out = tw.matmul(a, b, batch_invariant=True)
        right(out, a, b, "f32" if dtype is np.float32 else "f16")
    for row in rows:
        np.testing.assert_array_equal(row, out[:1])


@pytest.mark.parametrize("name", ["h11", "h13", "f12"])
@pytest.mark.parametrize("rows", [33, 1])
def test_a_kernel_that_was_compiled_for_other_rows_serves_whole_tiles(monkeypatch, name, rows):
    rung = find_rung(name)
    dtype = np.float32 if name == "f12" else np.float16
    config = None if name == "f12" else SMALL if name == "h11" else rung.default
    plan = Plan(rung, config or rung.default, "a test", "a test", rows=rows)
    monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((256, 64)).astype(dtype), rng.standard_normal((64, 256)).astype(dtype)
    with tw.emulator():
        found = tw.matmul(a, b)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, want, rtol=2e-3, atol=2e-2 if dtype is np.float16 else 1e-4)
