"""fp32 plans of several launches on the emulator: operands packed first, k split and its parts summed, and both."""

from __future__ import annotations

from dataclasses import replace

import epilogue_cases
import numpy as np
import pytest

import tilewright as tw
from tilewright.gemm import call as call_module
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.lab.check import Guarded, check
from tilewright.lab.numbers import to_stored
from tilewright.plan.plan import Plan

SMALL = GemmConfig(32, 32, 8, 4, 4, 16, 32, stages=3, cache="ca", group_m=8, min_blocks=8)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape, dtype=np.float32)


def right(out, a, b, **options) -> None:
    verdict = check(np.asarray(out), np.asarray(a), np.asarray(b), **options)
    assert verdict.ok, verdict.reason


@pytest.fixture
def planned(monkeypatch):
    """Makes every plan pack the operands named and split k in parts."""

    def use(*names: str, parts: int = 1) -> None:
        plan = Plan(find_rung("f12"), replace(SMALL, split_k=parts), "a test", "a test", packs=names)
        monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)

    return use


def lying(rows: int, cols: int, kind: str) -> np.ndarray:
    return {
        "odd rows": lambda: values(rows, cols),
        "odd columns": lambda: values(cols, rows).T,
        "offset": lambda: values(rows * cols + 1)[1:].reshape(rows, cols),
        "strided": lambda: values(2 * rows + 1, 3 * cols)[1 : 2 * rows + 1 : 2, ::3],
    }[kind]()


@pytest.mark.parametrize(
    ("m", "n", "k", "parts", "dtype"), [(33, 41, 67, 3, "f16"), (1, 70, 40, 2, "f32"), (32, 32, 16, 9, "bf16")]
)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_the_parts_of_a_split_product_add_up_and_are_rounded_once(planned, layout, m, n, k, parts, dtype):
    a, b = lying(m, k, "odd rows"), lying(k, n, "odd rows")
    if layout == "tt":
        a, b = lying(m, k, "odd columns"), lying(k, n, "odd columns")
    target, out = epilogue_cases.target((m, n), dtype)
    planned(parts=parts)
    with tw.emulator() as emulator:
        tw.matmul(a, b, out=out)
        assert len(emulator.results) == 2, "the product, and the sum of its parts"
        whole = tw.matmul(a, b)
        assert not emulator.memory._buffers, "the workspace is given back"
    right(epilogue_cases.stored_values(target), a, b, out_dtype=dtype)
    np.testing.assert_array_equal(target.view, to_stored(whole, dtype), "the parts, or their sum, were rounded before")
    assert target.untouched() == 0
    assert target.intact()


@pytest.mark.parametrize("kind", ["odd rows", "odd columns", "offset", "strided"])
def test_packed_operands_give_the_very_bits_of_unpacked_ones(planned, kind):
    a, b = lying(41, 19, kind), lying(19, 35, kind)
    with tw.emulator() as emulator:
        plain = tw.matmul(a, b, config=SMALL)
        for names in (("a", "b"), ("a",), ("b",))[: 3 if kind == "odd rows" else 1]:
            planned(*names)
            target, before = Guarded((41, 35)), len(emulator.results)
            tw.matmul(a, b, out=target.view)
            assert len(emulator.results) == before + 1 + len(names)
            np.testing.assert_array_equal(target.view, plain)
            assert target.intact()
    right(plain, a, b)


@pytest.mark.parametrize("shape", [(8, 40, 1), (1, 40, 8), (40, 1, 8)], ids=str)
def test_zeros_behind_a_line_of_one_element_are_what_is_read(planned, shape):
    """Infinities show a read of a neighbour: times a zero they are no number."""
    m, n, k = shape
    a, b = values(m, k).T.copy().T, values(k, n)
    a[-1, -1] = np.inf
    planned("a", "b")
    with tw.emulator():
        out = tw.matmul(a, b)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_scalars_c_and_an_epilogue_are_applied_once_in_the_sum(planned):
    a, b, c, bias = values(20, 43), values(43, 25), values(20, 25, seed=3), values(25, seed=4)
    planned("b", parts=3)
    whole = np.full((60, 78), 7, np.float32)
    with tw.emulator():
        for lies in (whole[:20, :25], whole[:25, :20].T, whole[::3, 3::3]):
            tw.matmul(a, b, c=c, alpha=-1.5, beta=0.5, out=lies)
            right(lies, a, b, c=c, alpha=-1.5, beta=0.5)
            lies[...] = 7
            assert (whole == 7).all(), "written beside out"
        fused = tw.matmul(a, b, alpha=2.0, bias=bias, activation="relu", out_dtype="f16")
        nothing = tw.matmul(a, b, c=np.full_like(c, np.nan), beta=0)
    exact = np.maximum(2.0 * (a.astype(np.float64) @ b) + bias, 0)
    np.testing.assert_allclose(fused, exact, rtol=2.0**-11, atol=1e-4)
    right(nothing, a, b)


@pytest.mark.parametrize("shared", ["a", "b", ""])
def test_a_batch_is_packed_and_an_operand_that_all_share_once(planned, shared, monkeypatch):
    a, b = values(1 if shared == "a" else 3, 9, 33), values(1 if shared == "b" else 3, 33, 20)
    planned("a", "b", parts=2)
    with tw.emulator() as emulator:
        launch, grids = emulator.launch, []
        monkeypatch.setattr(emulator, "launch", lambda kernel, one: grids.append(one.grid) or launch(kernel, one))
        out = tw.matmul(a, b)
    right(out, np.broadcast_to(a, (3, 9, 33)), np.broadcast_to(b, (3, 33, 20)))
    products = 1 if shared == "b" else 3  # one b for all: the batch becomes rows of one product
    assert [grid[1:] for grid in grids] == [
        (1 if shared == "a" else products, 1), (products, 1), (products, 2), (products, 1),
    ]  # fmt: skip


def test_a_thin_product_is_split_by_the_plan_and_the_wide_operand_read_16_bytes_an_access():
    a, b = values(1, 512), values(512, 1056)
    with tw.emulator("A100") as emulator:
        told = tw.explain(a, b)
        out = tw.matmul(a, b)
    assert told.stages[-2:] == ("product", "sum of parts")
    assert "k in " in told.plan.why
    right(out, a, b)
    assert emulator.results[-2].counters.global_load_requests < 512 * 1056 / 32, "a request is 32 lanes' accesses"


def in_stretches(a: np.ndarray, b: np.ndarray, stretch: int) -> np.ndarray:
    """The product with k in chains of `stretch`, whose sums are one chain: in fp32, each step rounded once."""
    whole = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, len(b), stretch):
        chain = np.zeros_like(whole)
        for k in range(first, min(first + stretch, len(b))):
            exact = a[:, k, None].astype(np.float64) * b[k]
            chain = (chain + exact).astype(np.float32)
        whole = whole + chain
    return whole


@pytest.mark.parametrize("rung", ["f11", "f12"])
@pytest.mark.parametrize("k", [8, 200, 1000])
def test_two_sets_of_sums_add_up_stretches_of_a_tile_or_of_8(rung, k):
    a, b = values(20, k), values(k, 36)
    config = replace(SMALL, sums=2, stages=2 if rung == "f11" else 3)
    with tw.emulator():
        out = tw.matmul(a, b, rung=rung, config=config)
        one = tw.matmul(a, b, rung=rung, config=replace(config, sums=1))
    stretch = max(config.tile_k, 8)
    same = np.isclose(out, in_stretches(a, b, stretch), rtol=0, atol=0)
    assert same.mean() > 0.999, "fp64 rounds some of the sums twice, the GPU's fma none"
    exact = a.astype(np.float64) @ b
    if k > stretch:
        assert np.abs(out - exact).mean() < 0.7 * np.abs(one - exact).mean()
    else:
        np.testing.assert_array_equal(out, one)


@pytest.mark.parametrize("parts", [2, 8, 9, 20])
def test_parts_are_summed_as_trees_of_eight(planned, parts):
    """Of ones, parts and halves that a chain would lose."""
    k = 8 * parts
    a, b = np.ones((3, k), np.float32), np.zeros((k, 5), np.float32)
    b[::8] = np.float32(2.0**-24)
    b[0] = 1
    planned(parts=parts)
    with tw.emulator():
        out = tw.matmul(a, b)
    sums = np.zeros(8 * -(-parts // 8), np.float32)
    sums[:parts] = b[::8, 0]
    total = np.float32(0)
    for eight in sums.reshape(-1, 8):
        while len(eight) > 1:
            eight = eight[: len(eight) // 2] + eight[len(eight) // 2 :]
        total = np.float32(total + eight[0])
    np.testing.assert_array_equal(out, np.full((3, 5), total))
