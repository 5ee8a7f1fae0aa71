"""Fused epilogues on the emulator: every rung and store path, every kind of operand, against float64."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest
from epilogue_cases import ByNumpy, assert_whole, given, judge, stored_values, target, values
from test_rungs import SMALL as SMALL32
from test_tensor_rungs import SMALL as SMALL16

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.errors import ConfigRejected
from tilewright.gemm import call as call_module
from tilewright.gemm.problem import Epilogue, GemmProblem
from tilewright.gemm.rung import Rung
from tilewright.gemm.rungs import GEMM_RUNGS, find_rung
from tilewright.gpus import ARCHS
from tilewright.jit import CompiledKernel
from tilewright.plan.plan import Plan

SMALL = SMALL32 | SMALL16
ELEMENTS_ONLY = ("f01_naive", "f02_coalesced", "f03_shared", "f04_tile1d", "f05_tile2d")
STORES = ("f01", "f04", "f06", "f09", "f12", "h01", "h02", "h04", "h08", "h11")
"""One rung of each way to store a tile. All of them run on a GPU (tests/gpu/test_epilogues_on_gpu.py)."""


def gated(f):
    return lambda acc, bias, r: f.silu(acc + bias) * r


def run(rung: str, a, b, out, dtype: str, **options):
    with tw.emulator():
        return tw.matmul(given(a, dtype), given(b, dtype), out=out, rung=rung, config=SMALL.get(rung), **options)


# --- every rung -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rung",
    [
        rung.id
        for rung in GEMM_RUNGS
        if rung.precision == "ieee" and rung.id not in ELEMENTS_ONLY and not rung.id.startswith("q")  # fp8: test_fp8.py
    ],
)
def test_whole_vectors_with_operands_of_every_type(rung):
    wide = find_rung(rung).dtypes == ("f32",)
    dtype, bias_dtype, r_dtype = ("f32", "bf16", "f16") if wide else ("f16", "f32", "bf16")
    out_dtype = ("f32", "f16", "bf16")[int(rung[1:3]) % 3] if wide else "bf16"  # f12: as it is
    a, b = values(64, 32, dtype=dtype), values(32, 64, dtype=dtype)
    bias, r = values(64, dtype=bias_dtype), values(64, 64, dtype=r_dtype)
    guarded, out = target((64, 64), out_dtype)
    run(rung, a, b, out, dtype, epilogue=gated(ep), bias=given(bias, bias_dtype), r=given(r, r_dtype))
    assert_whole(guarded)
    verdict = judge(stored_values(guarded), a, b, gated(ByNumpy), bias=bias, r=r, dtype=dtype, out_dtype=out_dtype)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("rung", [find_rung(name).id for name in STORES])
def test_ragged_and_batched_with_everything_that_has_a_name_of_its_own(rung):
    dtype = "f32" if rung.startswith("f") else "bf16"
    out_dtype = "f32" if rung.startswith(("f01", "f06")) else "f16"
    m, n, k = 35, 41, 7
    a, b, c = values(2, m, k, dtype=dtype), values(2, k, n, dtype=dtype), values(2, m, n, dtype=out_dtype)
    bias, rows, cols = values(m, 1), values(2, m, dtype="f16"), values(n, dtype="bf16")
    residual = values(n, m, seed=5).T
    guarded, out = target((2, m, n), out_dtype)
    run(rung, a, b, out, dtype, c=given(c, out_dtype), alpha=0.5, beta=-2.0, bias=bias, activation="relu",
        residual=residual, row_scale=given(rows, "f16"), col_scale=given(cols, "bf16"))  # fmt: skip
    assert_whole(guarded)

    def function(acc, bias, rows, cols, residual):
        return ByNumpy.relu(acc * rows * cols + bias) + residual

    verdict = judge(
        stored_values(guarded), a, b, function, c=c, alpha=0.5, beta=-2.0, dtype=dtype, out_dtype=out_dtype, bias=bias,
        rows=rows[..., None], cols=cols, residual=residual,
    )  # fmt: skip
    assert verdict.ok, verdict.reason


# --- how operands lie -------------------------------------------------------------------------------------------------

SHAPES = {
    "scalar": lambda: values(1)[0:1].reshape(()),
    "one": lambda: values(1),
    "row": lambda: values(48),
    "column": lambda: values(40, 1),
    "batch": lambda: values(3, 1, 1),
    "matrix": lambda: values(40, 48),
    "whole": lambda: values(3, 40, 48),
    "transposed": lambda: values(3, 48, 40).swapaxes(1, 2),
    "strided": lambda: values(3, 81, 97)[:, 1::2, 1::2],
    "offset": lambda: values(40 * 48 + 1)[1:].reshape(40, 48),
    "padded": lambda: values(40, 53)[:, :48],
    "repeated": lambda: np.broadcast_to(values(40, 1), (40, 48)),
}


@pytest.mark.parametrize("first", [0, 4, 8], ids=lambda first: " ".join([*SHAPES][first : first + 4]))
@pytest.mark.parametrize("rung", ["f12_multistage", "h11_mma_multistage"])
def test_operands_of_any_shape_that_broadcasts(rung, first):
    """Four in one kernel, each with a factor of its own."""
    dtype = "f32" if rung.startswith("f") else "f16"
    a, b = values(3, 40, 24, dtype=dtype), values(3, 24, 48, dtype=dtype)
    operands = {x: SHAPES[name]() for x, name in zip("wxyz", [*SHAPES][first : first + 4], strict=True)}
    guarded, out = target((3, 40, 48), "f32")

    def function(acc, w, x, y, z):
        return acc - 2 * w + 3 * x - 5 * y + 7 * z

    run(rung, a, b, out, dtype, epilogue=function, **operands)
    assert_whole(guarded)
    verdict = judge(stored_values(guarded), a, b, function, dtype=dtype, **operands)
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("fold", [True, False], ids=["one_b", "many_b"])
def test_indices_count_over_every_axis_also_where_batches_are_folded_or_looped_over(fold):
    """A batch over one b would be folded into the rows; axes that do not merge are launched apart."""
    a = values(3, 2, 20, 8)
    b = values(8, 24) if fold else values(2, 8, 24)
    with tw.emulator() as emulator:
        out = tw.matmul(a, b, rung="f02",
                        epilogue=lambda acc, row, col, batch: row + 100 * col + 10000 * batch + 0 * acc)  # fmt: skip
        assert len(emulator.results) == (1 if fold else 2)
    batch, row, col = np.meshgrid(np.arange(6), np.arange(20), np.arange(24), indexing="ij")
    np.testing.assert_array_equal(out.reshape(6, 20, 24), row + 100 * col + 10000 * batch)


def test_a_batch_folded_into_the_rows_carries_its_operands():
    a, b, bias, residual = values(4, 8, 16), values(16, 32), values(32), values(4, 8, 32)
    assert tw.explain(a, b, bias=bias, residual=residual, gpu="H200").problem.m == 32
    with tw.emulator():
        out = tw.matmul(a, b, bias=bias, residual=residual, rung="f02")
        per_batch = tw.matmul(a, b, bias=values(4, 1, 32), residual=residual, rung="f02")
    verdict = judge(out, a, b, lambda acc, bias, residual: acc + bias + residual, bias=bias, residual=residual)
    assert verdict.ok, verdict.reason
    verdict = judge(per_batch, a, b, lambda acc, bias, residual: acc + bias + residual, bias=values(4, 1, 32),
                    residual=residual)  # fmt: skip
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize(
    ("left", "right"), [((16,), (16, 33)), ((33, 16), (16,)), ((2, 33, 16), (16,)), ((16,), (16,))]
)
def test_products_of_vectors_take_operands_of_the_results_shape(left, right):
    a, b = values(*left), values(*right)
    result = (a @ b).shape
    residual, scale = values(*result), values(*result[-1:] if len(right) == 1 else (1,))
    with tw.emulator():
        out = tw.matmul(a, b, residual=residual, activation="relu", row_scale=scale, rung="f02")
    assert np.shape(out) == result
    wanted = np.maximum((a.astype(np.float64) @ b) * scale.reshape(scale.shape if result else ()), 0) + residual
    np.testing.assert_allclose(out, wanted, atol=1e-5)


def test_row_scale_of_m_numbers_is_one_a_row_and_of_a_square_too():
    a, b, scale = values(16, 16), values(16, 16), values(16)
    with tw.emulator():
        for given_scale in (scale, scale[:, None]):
            out = tw.matmul(a, b, row_scale=given_scale, rung="f02")
            np.testing.assert_allclose(out, (a.astype(np.float64) @ b) * scale[:, None], atol=1e-5)
        out = tw.matmul(a, b, col_scale=scale, rung="f02")
        np.testing.assert_allclose(out, (a.astype(np.float64) @ b) * scale, atol=1e-5)


@pytest.mark.parametrize("rung", ["f12_multistage", "h11_mma_multistage"])
def test_out_may_be_an_operand_itself(rung):
    dtype = "f32" if rung.startswith("f") else "f16"
    a, b = values(40, 24, dtype=dtype), values(24, 48, dtype=dtype)
    guarded, out = target((40, 48), dtype)
    guarded.view[...] = held = given(values(40, 48, dtype=dtype), dtype)
    held = held.astype(np.float32)
    assert run(rung, a, b, out, dtype, residual=out, activation="tanh") is out
    assert guarded.intact()
    verdict = judge(stored_values(guarded), a, b, lambda acc, r: np.tanh(acc) + r, r=held, dtype=dtype, out_dtype=dtype)
    assert verdict.ok, verdict.reason


# --- what else a kernel may be ----------------------------------------------------------------------------------------


def test_split_k_applies_the_epilogue_once_to_the_whole_sum():
    rung, config = "h11_mma_multistage", dataclasses.replace(SMALL16["h11_mma_multistage"], split_k=3)
    a, b, bias = values(40, 200, dtype="f16"), values(200, 48, dtype="f16"), values(48)
    guarded, out = target((40, 48), "f16")
    with tw.emulator() as emulator:
        tw.matmul(given(a, "f16"), given(b, "f16"), out=out, bias=bias, activation="silu", residual=bias, rung=rung,
                  config=config)  # fmt: skip
        assert len(emulator.results) == 2
    assert_whole(guarded)
    verdict = judge(
        stored_values(guarded), a, b, lambda acc, bias: ByNumpy.silu(acc + bias) + bias, bias=bias, dtype="f16",
        out_dtype="f16",
    )  # fmt: skip
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("parts", [1, 2])
def test_a_plan_that_packs_applies_the_epilogue_once_and_never_to_what_it_packs(monkeypatch, parts):
    config = dataclasses.replace(SMALL16["h11_mma_multistage"], split_k=parts)
    plan = Plan(find_rung("h11"), config, "a test", "a test", packs=("a", "b"))
    monkeypatch.setattr(call_module, "plan_rows", lambda *given, **options: plan)
    a, b, c, bias = values(33, 71, dtype="f16"), values(71, 45, dtype="f16"), values(33, 45, dtype="f16"), values(33, 1)
    guarded, out = target((33, 45), "f16")
    with tw.emulator() as emulator:
        tw.matmul(given(a, "f16"), given(b, "f16"), c=given(c, "f16"), beta=0.5, out=out, bias=bias, activation="gelu")
        assert len(emulator.results) == 2 + parts
    assert_whole(guarded)
    verdict = judge(stored_values(guarded), a, b, lambda acc, bias: ByNumpy.gelu(acc + bias), bias=bias, c=c, beta=0.5,
                    dtype="f16", out_dtype="f16")  # fmt: skip
    assert verdict.ok, verdict.reason


def test_batch_invariant_rows_keep_their_bits_through_an_epilogue():
    a, b, r = values(70, 48), values(48, 40), values(70, 40)
    with tw.emulator():
        whole = tw.matmul(a, b, residual=r, activation="silu", batch_invariant=True)
        one = tw.matmul(a[37:38], b, residual=r[37:38], activation="silu", batch_invariant=True)
    np.testing.assert_array_equal(one[0], whole[37])


def in_ptx(rung: Rung, problem: GemmProblem) -> CompiledKernel:
    """The rung's kernel with its small config, without machine code."""
    with tw.emulator():
        return rung.compile(problem, SMALL[rung.id], ARCHS["sm_90a"])


def test_only_operands_whose_rows_differ_and_lie_contiguous_are_fetched_ahead():
    a, b = values(64, 32), values(32, 64)
    lies = {"matrix": values(64, 64), "row": values(64), "column": values(64, 1), "transposed": values(64, 64).T}
    for name, x in lies.items():
        problem = tw.explain(a, b, epilogue=lambda acc, x: acc + x, x=x, gpu="H200").problem
        kernel = in_ptx(find_rung("f12"), problem)
        assert ("prefetch.global.L2" in kernel.ptx) == (name == "matrix"), name


def test_nan_and_infinity_pass_through_and_relu_keeps_nan():
    a = np.zeros((4, 4), np.float32)
    a[0, 0], a[1, 1], a[2, 2] = np.nan, np.inf, -np.inf
    with tw.emulator():
        out = tw.matmul(a, np.ones((4, 4), np.float32), activation="relu", rung="f02")
        capped = tw.matmul(
            a, np.ones((4, 4), np.float32), epilogue=lambda acc: ep.minimum(ep.maximum(acc, -1), 1), rung="f02"
        )
    assert np.isnan(out[0]).all()
    np.testing.assert_array_equal(out[1:, 0], [np.inf, 0, 0])
    assert np.isnan(capped[0]).all()
    np.testing.assert_array_equal(capped[1:, 0], [1, -1, 0])


def test_k_of_zero_is_the_epilogue_of_zero():
    with tw.emulator():
        out = tw.matmul(np.ones((3, 0), np.float32), np.ones((0, 5), np.float32), bias=np.arange(5, dtype=np.float32),
                        rung="f02")  # fmt: skip
    np.testing.assert_array_equal(out, np.broadcast_to(np.arange(5), (3, 5)))


def instructions(kernel) -> Counter[str]:
    """How often each instruction form stands in the PTX."""
    return Counter(re.findall(r"^\t(?:@!?%p\d+ +)?([a-z][\w.:]+)\s", kernel.ptx, re.MULTILINE))


@pytest.mark.parametrize("rung", ["f12_multistage", "h11_mma_multistage"])
def test_an_epilogue_costs_what_it_computes_and_nothing_else(rung):
    """That of the sum itself compiles to the instructions of the kernel that has none, whose parameters are bare."""
    found = find_rung(rung)
    problem = GemmProblem.dense(64, 64, 64, dtype=found.dtypes[-1])
    bare = in_ptx(found, problem)
    assert re.search(r"\.param \.align \d+ \.b8 gemm_param_0\[152\]", bare.ptx)
    same = dataclasses.replace(problem, epilogue=Epilogue("acc", "value[i] = value[i];"))
    assert instructions(in_ptx(found, same)) == instructions(bare)
    assert sum(instructions(bare).values()) > 200
    other = dataclasses.replace(problem, epilogue=Epilogue("-acc", "value[i] = -value[i];"))
    assert instructions(in_ptx(found, other)) != instructions(bare)


def test_operands_are_read_as_vectors_where_lines_are_aligned():
    a, b = given(values(64, 32, dtype="f16"), "f16"), given(values(32, 64, dtype="f16"), "f16")

    def loads(residual) -> int:
        with tw.emulator() as emulator:
            tw.matmul(a, b, rung="h11", config=SMALL16["h11_mma_multistage"])
            bare = emulator.last.counters.global_load_requests
            tw.matmul(a, b, residual=residual, rung="h11", config=SMALL16["h11_mma_multistage"])
            return emulator.last.counters.global_load_requests - bare

    whole = loads(values(64, 64).astype(np.float16))
    assert whole == 64 * 64 / 4 / 32, "four elements an access"
    assert loads(values(64, 65).astype(np.float16)[:, 1:]) == 4 * whole
    assert loads(values(64, 1).astype(np.float16)) == whole, "one a run, though it is for all of it"


def test_a_peers_kernel_refuses_epilogues():
    from tilewright.lab.peers import cutlass

    problem = GemmProblem.dense(64, 64, 64, dtype="bf16", out_dtype="bf16")
    fused = dataclasses.replace(problem, epilogue=Epilogue("-acc", "value[i] = -value[i];"))
    rung = cutlass.TENSOR
    assert rung.why_not(problem, rung.default, ARCHS["sm_90a"]) is None
    assert "epilogue" in rung.why_not(fused, rung.default, ARCHS["sm_90a"])
    with pytest.raises(ConfigRejected):
        rung.compile(fused, rung.default, ARCHS["sm_90a"])
