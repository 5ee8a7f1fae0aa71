"""verify=True behind an epilogue, and where out is c or an operand: right results pass, planted mistakes raise."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from wrong_launches import launch_wrongly, scaled_by

import tilewright as tw
from tilewright.emu.memory import ARENA_BASE
from tilewright.emu.session import Emulator
from tilewright.epilogue import erf, exp, gelu, gelu_tanh, log, maximum, rsqrt, sigmoid, silu, sqrt, tanh, where
from tilewright.errors import WrongResult
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import GEMM_RUNGS
from tilewright.gemm.verify import config_of_sums
from tilewright.gpus import ARCHS

SMALL = GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, group_m=8, min_blocks=4)
HARD = np.array(
    [0, -0.0, 1, -1, 0.5, 1e-3, -1e-3, 5, -5, 9, -9, -1.2784645, -0.75, 40, -40, 87.4, -87.4, 88.8, -88.8, -104, 104,
     1e-40, -1e-40, 1e-20, 1e20, -1e20, 1e38, -1e38, 3.4e38, np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip


def values(*shape: int, dtype: str = "float16", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(sum(shape) + seed).standard_normal(shape).astype(dtype)


def each_function(acc, r, col):
    """Another function in each column. The last cancel: what is left of them is rounding."""
    x = abs(acc)
    of = [
        silu(acc), gelu(acc), gelu_tanh(acc), sigmoid(acc), tanh(acc), erf(acc), exp(acc), log(x), sqrt(x), rsqrt(x),
        maximum(acc, r) / 3.0, acc / r, where((acc > 0.5) & ~(acc == r), col % 3, -col // 2) * 1.5, acc * r + acc,
        exp(acc) - exp(acc * 0.99), acc * 1.7 - acc * 0.7 - acc,
    ]  # fmt: skip
    result = of[0]
    for number, value in enumerate(of[1:], 1):
        result = where(col == number, value, result)
    return result


def spoil(monkeypatch, change) -> None:
    """change(bits) of the result's elements behind the launch that makes it: the second, the first makes bare sums."""
    launch = Emulator.launch
    products = []

    def spoiling(self, kernel, one):
        launch(self, kernel, one)
        if kernel.entry == "gemm":
            products.append(one)
            if len(products) == 2:
                (name, out) = next((b.name, b) for b in self.memory._buffers if b.name == "out")
                assert out.start <= int.from_bytes(one.params[24:32], "little") < out.end, name
                first = (out.start - ARENA_BASE) // 4
                change(self.memory.views[4][first : first + out.bytes // 4])

    monkeypatch.setattr(Emulator, "launch", spoiling)


def fused_run(a, b, **options):
    small = {"config": SMALL} if a.dtype == np.float16 else {"rung": "f04"}
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, **small, **options)
        assert not emulator.memory._buffers, "what was borrowed is given back"
    return out


@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [("float16", "float16"), ("float32", "float32"), ("float32", "float16")]
)
def test_results_of_hard_numbers_pass_whatever_is_fused(dtype, out_dtype):
    """Infinities, NaN, cancelled bits, tails below the smallest number, sums beyond the largest."""
    with np.errstate(all="ignore"):
        a, r = HARD[:, None].astype(dtype), values(len(HARD), 16)
        b = np.ones((1, 16), dtype)
        c = np.where(np.arange(16) % 3 == 1, -HARD[:, None], 0).astype(out_dtype)
    out = fused_run(a, b, epilogue=each_function, r=r, c=c, alpha=0.9, out_dtype=out_dtype, verify=True)
    assert np.isnan(out[-1, :10]).all()
    assert np.isfinite(out).mean() > 0.6


def test_behind_what_may_overflow_a_nan_passes():
    """Just beyond the largest number exp may be that or infinite, and the quotient 1 or NaN."""
    a = np.nextafter(np.float32(np.log(np.finfo(np.float32).max)), np.float32(100)).reshape(1, 1)
    out = fused_run(a, np.ones((1, 1), np.float32), epilogue=lambda acc: exp(acc) / exp(acc), verify=True)
    assert np.isnan(out) or out == 1


def test_every_part_of_a_call_is_verified_with_it():
    a, b = values(2, 3, 40, 21).swapaxes(-1, -2)[:, ::2], values(3, 40, 24)
    bias, c, r = values(24, dtype="float32"), values(2, 2, 21, 24, seed=1), values(21, 24)[::-1]
    parts = replace(SMALL, split_k=2)
    with tw.emulator():
        out = tw.matmul(
            a, b[::2], c=c, alpha=-3.0, beta=0.5, bias=bias, activation="silu", residual=r, config=parts, verify=True
        )
    acc = -3.0 * (a.astype(np.float64) @ b[::2]) + 0.5 * c + bias
    np.testing.assert_allclose(out, acc / (1 + np.exp(-acc)) + r, rtol=2e-3, atol=2e-3)


def test_out_may_be_c_or_an_operand():
    a, b, c = values(20, 40, dtype="float32"), values(40, 12, dtype="float32"), values(20, 12, dtype="float32")
    product = a.astype(np.float64) @ b
    for options in ({"c": (out := c.copy())}, {"c": (both := c.copy()), "activation": "relu"}, {"residual": c.copy()}):
        out = options.get("c", options.get("residual"))
        assert fused_run(a, b, out=out, verify=True, **options) is out
        right = np.maximum(product + c, 0) if out is both else product + c
        np.testing.assert_allclose(out, right, rtol=0, atol=3e-5)


@pytest.mark.parametrize("rung", GEMM_RUNGS, ids=str)
def test_a_config_that_makes_a_result_makes_its_bare_sums_too(rung):
    """In fp32, whatever the result's dtype: verify runs them by the same config."""
    arch = ARCHS["sm_90a"]
    for out_dtype in ("f32", "bf16", "f16"):
        k = 800 if rung.dtypes[0] == "bf16" and rung.maps is not None else 777
        n = 136 if k == 800 else 130  # TMA reads lines at multiples of 16 bytes
        problem = GemmProblem.dense(333, n, k, dtype=rung.dtypes[0], precision=rung.precision, out_dtype=out_dtype)
        able = [config for config in rung.space()[::7] if rung.why_not(problem, config, arch) is None]
        assert able
        bare = replace(problem, out_dtype="f32")
        sums = [config_of_sums(rung, config, bare, (), arch) for config in able]
        assert not [config for config in sums if rung.why_not(bare, config, arch) is not None]
        free = {"stages", "staged"} & {field.name for field in fields(able[0])}
        for one, two in zip(able, sums, strict=True):
            assert replace(one, **{name: getattr(two, name) for name in free}) == two, "another order of sums"


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_an_element_that_is_off_by_a_few_last_bits_is_caught_and_named(monkeypatch):
    a, b, c = values(20, 40, dtype="float32"), values(40, 12, dtype="float32"), values(20, 12, dtype="float32")

    def change(bits):
        bits[7 * 12 + 5] += 8
        bits[9 * 12] = np.float32(np.nan).view(np.uint32)

    spoil(monkeypatch, change)
    with pytest.raises(
        WrongResult, match=r"element \(7, 5\) of product 0 is .* lies from .* 2 of 240 elements are off"
    ):
        fused_run(a, b, c=c, out=c, verify=True)


def test_each_functions_range_is_close(monkeypatch):
    """Off by 2^-15 of itself nearly every element is found; where columns cancel, rounding may do more."""
    a, r = np.linspace(-4, 4, 33, dtype=np.float32)[:, None], values(33, 16)
    found = []

    def change(bits):
        numbers = bits.view(np.float32)
        found.append(np.isfinite(numbers) & (numbers != 0))
        numbers *= 1 + 2.0**-15

    spoil(monkeypatch, change)
    with pytest.raises(WrongResult) as caught:
        fused_run(a, np.ones((1, 16), np.float32), epilogue=each_function, r=r, verify=True)
    off = int(str(caught.value).split(" of 528 elements")[0].split()[-1])
    assert off > 0.9 * found[0].reshape(33, 16)[:, :14].sum()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("an operand is read by another's strides", "what is fused"),
        ("alpha is another", "what is fused"),
        ("k stops early", "These are its sums, ahead of what is fused"),
    ],
)
def test_a_wrong_kernel_is_caught(monkeypatch, mistake, words):
    def wrong(problem, rung):
        if mistake == "k stops early":
            return replace(problem, k=problem.k - 32)
        if problem.epilogue is None or mistake == "alpha is another":
            return problem
        bias, residual = problem.epilogue.operands
        residual = replace(residual, matrix=replace(residual.matrix, row_stride=residual.matrix.row_stride - 8))
        return replace(problem, epilogue=replace(problem.epilogue, operands=(bias, residual)))

    def params(template, problem, rung):
        another = problem.epilogue is not None and mistake == "alpha is another"
        return scaled_by(template, 1.001) if another else template

    launch_wrongly(monkeypatch, wrong, params)
    with pytest.raises(WrongResult, match=words):
        fused_run(values(32, 64), values(64, 32), bias=values(32), residual=values(32, 32), alpha=0.5, verify=True)
