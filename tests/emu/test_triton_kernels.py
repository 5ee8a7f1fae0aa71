"""Triton's kernels on the emulator: compiled by Triton, run from their PTX, with faults at their Python lines."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import EmulatorFault, InvalidOperand

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


@triton.jit
def softmax(x, o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + tl.program_id(0) * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul(a, b, c, M, N, K, bias, alpha, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        y = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(x, y)
    acc *= alpha
    if bias is not None:
        acc += tl.load(bias + rn, mask=rn < N)[None, :]
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def total(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    s = tl.sum(tl.load(x + i, mask=i < n, other=0.0), 0)
    tl.store(o, tl.load(o) + s)  # lost


@triton.jit
def total_right(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(o, tl.sum(tl.load(x + i, mask=i < n, other=0.0), 0))


RANDOM = np.random.default_rng(0)


def test_elementwise_and_reductions_are_right():
    x, y = RANDOM.normal(size=(2, 1000)).astype(np.float32)
    args = {"x": x, "y": y, "o": "f32[1000]=empty", "n": 1000, "B": 256}
    result = tw.emulate_triton(add, lambda meta: triton.cdiv(meta["n"], meta["B"]), args, explore=2)
    assert np.array_equal(result.named["o"], x + y)
    assert result.hazards == []
    x = RANDOM.normal(size=(8, 100)).astype(np.float32)
    got = tw.emulate_triton(softmax, 8, {"x": x, "o": np.zeros_like(x), "n": 100, "B": 128}).named["o"]
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.abs(got - e / e.sum(1, keepdims=True)).max() < 1e-6


@pytest.mark.parametrize(("gpu", "stages"), [("H200", 3), ("H200", 1), ("A100", 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_right_on_each_architecture(gpu, stages, bias):
    a, b = RANDOM.normal(size=(100, 96)).astype(np.float16), RANDOM.normal(size=(96, 80)).astype(np.float16)
    row = RANDOM.normal(size=80).astype(np.float32) if bias else None
    args = {"a": a, "b": b, "c": "f32[100,80]=empty", "M": 100, "N": 80, "K": 96, "bias": row, "alpha": 0.5}
    tile = {"BM": 64, "BN": 64, "BK": 32}
    result = tw.emulate_triton(matmul, (2, 2), args | tile, num_stages=stages, gpu=gpu)
    want = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + (0 if row is None else row)
    assert np.abs(result.named["c"] - want).max() < 1e-3
    assert {hazard.kind for hazard in result.hazards} <= {"copy_fence_missing"}  # Triton's compiler leaves it out


def test_a_fault_names_its_python_line():
    args = {"x": np.ones(1000, np.float32), "o": np.zeros(1, np.float32), "n": 1000, "B": 256}
    with pytest.raises(EmulatorFault) as caught:
        tw.emulate_triton(total, 4, args)
    hazard = caught.value.hazard
    assert hazard.kind == "lost_update"
    assert hazard.source_text.endswith("# lost")
    assert tw.emulate_triton(total_right, 4, args).named["o"][0] == 1000


def test_arguments_that_are_not_the_kernels_are_refused():
    x = np.ones(256, np.float32)
    for args, says in (
        ({"x": x}, "y is missing"),
        ({"x": x, "y": x, "o": x, "n": 256, "B": 256, "z": 1}, "z is not one of them"),
        ({"x": np.ones(4, np.complex64), "y": x, "o": x, "n": 256, "B": 256}, "complex64"),
    ):
        with pytest.raises(InvalidOperand, match=says):
            tw.emulate_triton(add, 1, args)
    with pytest.raises(InvalidOperand, match=r"not what @triton\.jit makes"):
        tw.emulate_triton(lambda: 0, 1, {})
