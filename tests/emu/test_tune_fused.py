"""Candidates with an epilogue, verified on the emulator: what is right passes, another expression or operand does not.

The GPU's memory and launches are the emulator's, as in test_tune_measure.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from epilogue_cases import ByNumpy
from test_tune_measure import gpu  # noqa: F401  the fixture

from tilewright import epilogue as ep
from tilewright.epilogue.evaluate import evaluate
from tilewright.epilogue.expression import trace
from tilewright.errors import InvalidEpilogue, WrongResult
from tilewright.gemm.problem import INDEX, Epilogue, FusedOperand, GemmProblem, Matrix
from tilewright.gemm.rung import GemmConfig
from tilewright.gemm.rungs import find_rung
from tilewright.plan.space import Candidate
from tilewright.run.program import Stage
from tilewright.tuning.fused import IN_FP32, exact, moved, read_words, with_epilogue
from tilewright.tuning.product_trial import ProductTrial, program_of
from tilewright.tuning.verify import Pattern

H10, F12 = find_rung("h10"), find_rung("f12")
CONFIGS = {
    "bf16": (H10, GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3)),
    "f32": (F12, GemmConfig(16, 64, 8, 4, 4, 16, 32, stages=2, cache="ca")),
}
USUAL = "row_scale,col_scale,bias,silu,residual"


def candidate_for(dtype: str) -> Candidate:
    return Candidate(*CONFIGS[dtype], None)  # type: ignore[arg-type]


SPLIT = Candidate(
    find_rung("h11"), GemmConfig(32, 32, 32, warp_m=16, warp_n=16, stages=3, split_k=2), None  # type: ignore[arg-type]
)  # fmt: skip


def traced(function, *operands: FusedOperand) -> Epilogue:
    of = trace(function, {operand.name: None for operand in operands if operand.dtype != INDEX})
    by_name = {operand.name: operand for operand in operands}
    return Epilogue(of.description, of.code, tuple(by_name[name] for name in of.inputs), of.nodes, of.numbers)


def verdict(measurer: ProductTrial, candidate: Candidate, arch, epilogue: Epilogue | None = None) -> str:
    """Of the candidate; of its kernel compiled with another epilogue of as many operands."""
    problem = dataclasses.replace(measurer.problem, epilogue=epilogue or measurer.problem.epilogue)
    return measurer.verify(candidate, program_of(problem, candidate).product.compile(arch))


def by_row(operand: FusedOperand) -> FusedOperand:
    return dataclasses.replace(operand, matrix=Matrix(1, 0))


def by_column(operand: FusedOperand) -> FusedOperand:
    return dataclasses.replace(operand, matrix=Matrix(0, 1))


OTHERS = (
    lambda acc, bias, residual: ep.gelu(acc + bias) + residual,
    lambda acc, bias, residual: ep.silu(acc + bias) - residual,
    lambda acc, bias, residual: ep.silu(acc) + bias + residual,
)


def other_usual(of, usual: Epilogue) -> Epilogue:
    return traced(
        lambda acc, row_scale, col_scale, bias, residual: of(acc * row_scale * col_scale, bias, residual),
        *usual.operands,
    )


@pytest.mark.parametrize("dtype", CONFIGS)
def test_the_usual_epilogue_is_verified_and_timed_and_others_are_found_wrong(gpu, dtype):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(40, 40, 32, dtype=dtype), *read_words(USUAL))
    right, usual = candidate_for(dtype), problem.epilogue
    assert usual is not None
    row, col, bias, residual = usual.operands
    with ProductTrial(problem, 0, Pattern(dtype)) as measurer:
        assert verdict(measurer, right, gpu.arch) == ""
        measurer.prepare(right, program_of(problem, right).product.compile(gpu.arch))
        assert measurer.one_pass([right], 0) == pytest.approx([0.1])
        wrong = [other_usual(of, usual) for of in OTHERS]
        wrong += [
            dataclasses.replace(usual, operands=(by_column(row), by_row(col), bias, residual)),
            dataclasses.replace(usual, operands=(row, col, by_row(bias), residual)),
        ]  # fmt: skip
        for other in wrong if dtype == "bf16" else wrong[:1]:
            said = verdict(measurer, right, gpu.arch, other)
            assert "elements are wrong" in said, other
            assert "besides what its sum may be off" in said


def test_every_set_has_operands_of_its_own_and_is_computed_from_them(gpu):  # noqa: F811
    m, n, k = 32, 64, 32
    gpu.gpu = dataclasses.replace(gpu.gpu, l2=16_000)
    problem = with_epilogue(GemmProblem.dense(m, n, k), *read_words("row_scale,silu,residual"))
    right = candidate_for("f32")
    with ProductTrial(problem, 0, Pattern("f32")) as measurer:
        first, second = measurer.sets
        assert set(first.fused).isdisjoint(second.fused)
        measurer.prepare(right, program_of(problem, right).product.compile(gpu.arch))
        results = []
        for at in measurer.sets:
            a, b, scale, residual, out = (
                gpu.download(address, 4 * rows * cols).view(np.float32).reshape(rows, cols).astype(np.float64)
                for address, rows, cols in (
                    (at.a, m, k), (at.b, k, n), (at.fused[0], m, 1), (at.fused[1], m, n), (at.out, m, n),
                )
            )  # fmt: skip
            assert np.abs(ByNumpy.silu((a @ b) * scale) + residual - out).max() < 1e-4
            results.append(out)
            assert len({a[0, 0], b[0, 0], scale[0, 0], residual[0, 0]}) == 4
    assert (results[0] != results[1]).all()


def test_what_an_epilogue_kernel_writes_beside_its_result_is_found(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 32, dtype="bf16"), *read_words("bias"))
    right = candidate_for("bf16")
    with ProductTrial(problem, 0, Pattern("bf16")) as measurer:
        launch = Stage.launch
        monkeypatch.setattr(
            Stage, "launch", lambda self, at, scalars: launch(self, {**at, "out": at["out"] + 64}, scalars)
        )
        assert verdict(measurer, right, gpu.arch) == "it wrote outside its output"


def test_operands_of_other_types_strides_and_batches_and_indices_are_computed_as_they_lie(gpu):  # noqa: F811
    m, n, k, batch = 33, 40, 64, 2
    operands = (
        FusedOperand("x", "f32", Matrix(0, 1)), FusedOperand("y", "f16", Matrix(3, 100, 4100, alignment=2)),
        FusedOperand("row", INDEX, Matrix(1, 0)), FusedOperand("batch", INDEX, Matrix(0, 0, 1)),
    )  # fmt: skip
    epilogue = traced(lambda acc, x, y, row, batch: ep.where(row % 3 == batch, ep.relu(acc + x), acc * y), *operands)
    plain = GemmProblem.dense(m, n, k, batch=batch, dtype="bf16", out_dtype="f32")
    problem = dataclasses.replace(plain, epilogue=epilogue)
    with ProductTrial(problem, 0, Pattern("bf16")) as measurer:
        assert verdict(measurer, candidate_for("bf16"), gpu.arch) == ""
        assert verdict(measurer, SPLIT, gpu.arch) == ""


def test_where_k_is_split_the_sum_computes_the_epilogue_and_a_wrong_one_is_found(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 64, dtype="bf16"), *read_words("bias,relu"))
    assert [stage.name for stage in program_of(problem, SPLIT).stages] == ["product", "sum of parts"]
    with ProductTrial(problem, 0, Pattern("bf16")) as measurer:
        assert verdict(measurer, SPLIT, gpu.arch) == ""
        other = with_epilogue(problem, *read_words("bias,silu"))
        monkeypatch.setattr("tilewright.tuning.product_trial.program_of", lambda problem, of: program_of(other, of))
        assert "elements are wrong" in verdict(measurer, SPLIT, gpu.arch)


def test_a_reference_with_a_wrong_epilogue_verifies_nothing(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 32, dtype="bf16"), *read_words("bias,silu"))
    monkeypatch.setattr("tilewright.tuning.product_trial.moved", lambda epilogue: moved(other))
    other = with_epilogue(problem, *read_words("bias,gelu")).epilogue
    with pytest.raises(WrongResult, match=r"h01_simt gives a wrong silu\(acc \+ bias\) of a product .* float64"):
        ProductTrial(problem, 0, Pattern("bf16"))


def test_an_epilogue_that_is_not_finite_on_random_numbers_is_refused(gpu):  # noqa: F811
    logarithm = traced(lambda acc: ep.log(acc))
    problem = dataclasses.replace(GemmProblem.dense(32, 32, 32, dtype="bf16"), epilogue=logarithm)
    with pytest.raises(InvalidEpilogue, match=r"log\(acc\) is not finite .* no result could be verified"):
        ProductTrial(problem, 0, Pattern("bf16"))
    by_hand = dataclasses.replace(problem, epilogue=Epilogue("-acc", "value[i] = -value[i];"))
    with pytest.raises(InvalidEpilogue, match="-acc: only its code is known"):
        ProductTrial(by_hand, 0, Pattern("bf16"))


FUNCTIONS = {
    "acc": (lambda e, acc, x, i: acc, "sum"),
    **{
        name: (lambda e, acc, x, i, name=name: getattr(e, name)(acc), name)
        for name in ("exp", "tanh", "erf", "sigmoid", "silu", "relu", "gelu", "gelu_tanh")
    },
    **{
        name: (lambda e, acc, x, i, name=name: getattr(e, name)(abs(acc) + 0.125), name)
        for name in ("log", "sqrt", "rsqrt")
    },
    "arithmetic": (lambda e, acc, x, i: -(acc + x) * 2.5 / (1 + abs(x)) - acc**3, "-"),
    "larger": (lambda e, acc, x, i: e.maximum(acc, x) + e.minimum(acc, 0.5), "maximum"),
    "conditions": (lambda e, acc, x, i: e.where(((acc > x) & (x != 0)) | ~(acc >= -1), acc, x), "where"),
    "more of them": (lambda e, acc, x, i: e.where((acc < x) & (acc <= 1), 1.0, e.where(i == 2, x, acc)), "=="),
    "indices": (lambda e, acc, x, i: acc * ((i + 5) // 3 * 2 - (i - 7) % 4) + i, "//"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expression_is_computed_in_float64_as_numpy_would(name):
    function, op = FUNCTIONS[name]
    of = trace(lambda acc, x, row: function(ep, acc, x, row), {"x": None})
    assert op in {node.op for node in of.nodes}
    rng = np.random.default_rng(0)
    acc, x, row = rng.standard_normal((5, 7)), rng.standard_normal(7), np.arange(5)[:, None]
    values, largest = evaluate(of.nodes, acc, {"x": x, "row": row}, of.numbers)
    right = np.broadcast_to(function(ByNumpy, acc, x, row), acc.shape)
    assert values.dtype == np.float64
    assert np.abs(values - right).max() <= 1e-14 * max(1, np.abs(right).max())
    assert largest >= np.abs(right).max() * (1 - 1e-14)


def test_what_may_be_off_follows_the_elements_own_slope_and_what_is_not_looked_at_does_not_count():
    x_lies = FusedOperand("x", "f32", Matrix(0, 1))
    of = traced(lambda acc, x: ep.where(x > 0, ep.relu(acc * x), acc / (x - x)), x_lies)
    sums, x = np.array([[-2.0, 0.05, 2.0, 3.0]]), np.array([[1.0, 1.0, 1.0, 100.0]])
    found = exact(of, sums, 0.1, {"x": x})
    assert found.values == pytest.approx(np.array([[0, 0.05, 2, 300]]))
    assert found.largest == 300, "the quotient is no number, and where does not choose it"
    assert found.off == pytest.approx(np.array([[0, 0.1, 0.1, 10]]) + IN_FP32 * 300)
