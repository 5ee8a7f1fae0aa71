"""verify=True on the emulator: right results pass, wrong ones of every kind raise, at every dtype, layout and scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wrong_launches import launch_wrongly, scaled_by

import tilewright as tw
from tilewright.errors import WrongResult
from tilewright.gemm import call as call_module
from tilewright.gemm import stages
from tilewright.gemm.rung import GemmConfig

SMALL = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, group_m=8, min_blocks=4)
SMALL32 = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=2, group_m=2)


def values(*shape: int, dtype: str = "float16", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "shape"),
    [
        *(("float16", None, shape) for shape in ((40, 33, 70), (1, 1, 1), (65, 2, 300), (5, 7, 0))),
        *(("float32", *rest) for rest in ((None, (40, 33, 70)), (None, (5, 7, 0)), ("float16", (40, 33, 70)))),
    ],
)
def test_right_products_pass_with_their_check_launched(dtype, out_dtype, shape):
    m, n, k = shape
    a, b = values(m, k, dtype=dtype), values(k, n, dtype=dtype)
    with tw.emulator() as emulator:
        plain = tw.matmul(a, b, out_dtype=out_dtype)
        alone = len(emulator.results)
        np.testing.assert_array_equal(tw.matmul(a, b, out_dtype=out_dtype, verify=True), plain)
        assert len(emulator.results) == 2 * alone + (2 if k else 1)
        assert not emulator.memory._buffers


def test_every_layout_scale_and_batch_passes():
    a, b = values(2, 2, 40, 21).swapaxes(-1, -2), values(2, 33, 40).swapaxes(-1, -2)
    c = values(33)
    out = np.full((2, 2, 33, 21), np.nan, np.float32).swapaxes(-1, -2)
    with tw.emulator():
        tw.matmul(a, b, c=c, alpha=-3.0, beta=0.5, verify=True)
        tw.matmul(a, b, alpha=1e-3, out=out, verify=True)
        tw.matmul(values(2, 4, 5, 50)[:, ::2], values(3, 1, 1, 50, 9), verify=True)  # several launches
        tw.matmul(np.full((2, 300), 0.1, np.float32), np.full((300, 3), 0.1, np.float32), verify=True)


@pytest.mark.parametrize("precision", ["tf32", "fp32x3"])
def test_each_precision_passes_by_its_own_bound(precision):
    """The rounding of operands to tf32 is no mistake where it was asked for."""
    a, b = values(40, 70, dtype="float32"), values(70, 33, dtype="float32")
    with tw.emulator():
        product = tw.matmul(a, b, precision=precision, config=SMALL32, verify=True)
        assert (np.abs(product - a.astype(np.float64) @ b).max() > 1e-4) == (precision == "tf32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_that_are_not_finite_pass_where_they_belong(dtype):
    a, b = values(40, 30, dtype=dtype), values(30, 20, dtype=dtype)
    a[3, 4], a[17, 2], b[5, 6] = np.nan, np.inf, -np.inf
    with tw.emulator():
        tw.matmul(a, b, verify=True)
        large = np.full((4, 64), 3e2 if dtype == "float16" else 3e20, dtype)
        assert np.isinf(tw.matmul(large, large.T, verify=True)).all(), "beyond the type's range"


def test_sums_beyond_float32_pass_where_alpha_would_make_them_small():
    """Every way of writing such a product adds in float32 first, cuBLAS's too: its result is right to be infinite."""
    large = np.full((4, 64), 3e19, np.float32)
    with tw.emulator():
        assert np.isinf(tw.matmul(large, large.T, alpha=1e-10, verify=True)).all()


def wrong_kernel(monkeypatch, change) -> None:
    """Every rung's launch becomes change(problem), as a kernel with a mistake would run it."""
    launch_wrongly(monkeypatch, lambda problem, rung: change(problem))


@pytest.mark.parametrize(
    ("mistake", "change"),
    [
        ("k stops early", lambda p: replace(p, k=p.k - 32)),
        ("rows are left out", lambda p: replace(p, m=p.m - 32)),
        ("columns are left out", lambda p: replace(p, n=p.n - 32)),
        ("b's rows are read too near", lambda p: replace(p, b=replace(p.b, row_stride=p.b.row_stride - 8))),
        ("a's rows are read too near", lambda p: replace(p, a=replace(p.a, row_stride=p.a.row_stride - 8))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_wrong_kernel_is_caught(monkeypatch, mistake, change, dtype):
    a, b = values(64, 128, dtype=dtype), values(128, 96, dtype=dtype)
    config = SMALL if dtype == "float16" else None
    wrong_kernel(monkeypatch, change)
    with tw.emulator(), pytest.raises(WrongResult, match=r"row \d+ of product 0 is off by .* Do not use it"):
        tw.matmul(a, b, config=config, rung=None if config else "f04", verify=True)


def test_a_wrong_sum_of_parts_and_a_wrong_alpha_are_caught(monkeypatch):
    a, b = values(32, 128), values(128, 32)
    parts = replace(SMALL, split_k=4)
    pack = stages.sum_parts_params

    def fewer(problem, sums, count, *rest):
        return pack(problem, sums, count - 1, *rest)

    with tw.emulator():
        tw.matmul(a, b, config=parts, verify=True)
        monkeypatch.setattr(stages, "sum_parts_params", fewer)
        monkeypatch.setattr(call_module, "program_of", stages.program_of.__wrapped__)
        with pytest.raises(WrongResult):
            tw.matmul(a, b, config=parts, verify=True)
    monkeypatch.undo()
    launch_wrongly(monkeypatch, params=lambda template, problem, rung: scaled_by(template, 0.9))
    with tw.emulator(), pytest.raises(WrongResult):
        tw.matmul(a, b, config=SMALL, verify=True)


def test_the_row_and_product_that_are_off_are_named(monkeypatch):
    a, b = values(3, 40, 64), values(3, 64, 32)
    from tilewright.emu.session import Emulator

    launch = Emulator.launch

    def spoil(self, kernel, one):
        launch(self, kernel, one)
        if kernel.entry == "gemm":
            out = int.from_bytes(one.params[24:32], "little")
            spot = out + 2 * ((1 * 40 + 17) * 32 + 5)
            self.memory.views[2][(spot - 0x10_0000_0000) // 2] = np.float16(200).view(np.uint16)

    monkeypatch.setattr(Emulator, "launch", spoil)
    with tw.emulator(), pytest.raises(WrongResult, match=r"row 17 of product 1 is off .* 1 of 120 rows are off"):
        tw.matmul(a, b, config=SMALL, verify=True)
