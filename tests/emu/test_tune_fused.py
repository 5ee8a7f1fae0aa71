"""Candidates with an epilogue, verified on the emulator: what is right passes, another expression or operand does not.

The GPU's memory and launches are the emulator's, as in test_tune_measure.py.
"""

from __future__ import annotations

import dataclasses

import pytest
from test_tune_measure import gpu  # noqa: F401  the fixture

from tilewright import epilogue as ep
from tilewright.errors import InvalidEpilogue, WrongResult
from tilewright.ladder import GemmConfig, find_rung
from tilewright.ops.epilogue.expression import trace
from tilewright.problems import INDEX, Epilogue, FusedOperand, GemmProblem, Matrix
from tilewright.tuning.fused import moved, read_words, with_epilogue
from tilewright.tuning.measure import GpuMeasurer, program_of
from tilewright.tuning.space import Candidate
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
    return Epilogue(of.description, of.code, tuple(by_name[name] for name in of.inputs), of.nodes)


def verdict(measurer: GpuMeasurer, candidate: Candidate, arch, epilogue: Epilogue | None = None) -> str:
    """Of the candidate; of its kernel compiled with another epilogue of as many operands."""
    problem = dataclasses.replace(measurer.problem, epilogue=epilogue or measurer.problem.epilogue)
    return measurer.verify(candidate, program_of(problem, candidate).product.compile(arch))


def by_row(operand: FusedOperand) -> FusedOperand:
    return dataclasses.replace(operand, matrix=Matrix(1, 0))


def by_column(operand: FusedOperand) -> FusedOperand:
    return dataclasses.replace(operand, matrix=Matrix(0, 1))


@pytest.mark.parametrize("dtype", CONFIGS)
def test_the_usual_epilogue_is_verified_and_timed_and_others_are_found_wrong(gpu, dtype):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(40, 40, 32, dtype=dtype), *read_words(USUAL))
    right, usual = candidate_for(dtype), problem.epilogue
    assert usual is not None
    row, col, bias, residual = usual.operands
    with GpuMeasurer(problem, 0, Pattern(dtype)) as measurer:
        assert verdict(measurer, right, gpu.arch) == ""
        measurer.prepare(right, program_of(problem, right).product.compile(gpu.arch))
        assert measurer.one_pass([right], 0) == pytest.approx([0.1])
        wrong = [
            traced(lambda acc, row_scale, col_scale, bias, residual: ep.gelu(acc * row_scale * col_scale + bias) + residual,
                   *usual.operands),
            traced(lambda acc, row_scale, col_scale, bias, residual: ep.silu(acc * row_scale * col_scale + bias) - residual,
                   *usual.operands),
            traced(lambda acc, row_scale, col_scale, bias, residual: ep.silu(acc * row_scale * col_scale) + bias + residual,
                   *usual.operands),
            dataclasses.replace(usual, operands=(by_column(row), by_row(col), bias, residual)),
            dataclasses.replace(usual, operands=(row, col, by_row(bias), residual)),
        ]  # fmt: skip
        for other in wrong if dtype == "bf16" else wrong[:1]:
            said = verdict(measurer, right, gpu.arch, other)
            assert "elements are wrong" in said, other
            assert "beside what its sum may be off" in said


def test_what_an_epilogue_kernel_writes_beside_its_result_is_found(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 32, dtype="bf16"), *read_words("bias"))
    right = candidate_for("bf16")
    with GpuMeasurer(problem, 0, Pattern("bf16")) as measurer:
        plan = type(H10).plan
        monkeypatch.setattr(
            type(H10), "plan",
            lambda self, problem, config, at, *more: plan(
                self, problem, config, dataclasses.replace(at, out=at.out + 64), *more
            ),
        )  # fmt: skip
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
    with GpuMeasurer(problem, 0, Pattern("bf16")) as measurer:
        assert verdict(measurer, candidate_for("bf16"), gpu.arch) == ""
        assert verdict(measurer, SPLIT, gpu.arch) == ""


def test_where_k_is_split_the_sum_computes_the_epilogue_and_a_wrong_one_is_found(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 64, dtype="bf16"), *read_words("bias,relu"))
    assert [stage.name for stage in program_of(problem, SPLIT).stages] == ["product", "sum of parts"]
    with GpuMeasurer(problem, 0, Pattern("bf16")) as measurer:
        assert verdict(measurer, SPLIT, gpu.arch) == ""
        other = with_epilogue(problem, *read_words("bias,silu"))
        monkeypatch.setattr("tilewright.tuning.measure.program_of", lambda problem, of: program_of(other, of))
        assert "elements are wrong" in verdict(measurer, SPLIT, gpu.arch)


def test_a_reference_with_a_wrong_epilogue_verifies_nothing(gpu, monkeypatch):  # noqa: F811
    problem = with_epilogue(GemmProblem.dense(32, 32, 32, dtype="bf16"), *read_words("bias,silu"))
    monkeypatch.setattr("tilewright.tuning.measure.moved", lambda epilogue: moved(other))
    other = with_epilogue(problem, *read_words("bias,gelu")).epilogue
    with pytest.raises(WrongResult, match=r"h01_simt gives a wrong silu\(acc \+ bias\) of a product .* float64"):
        GpuMeasurer(problem, 0, Pattern("bf16"))


def test_an_epilogue_that_is_not_finite_on_random_numbers_is_refused(gpu):  # noqa: F811
    logarithm = traced(lambda acc: ep.log(acc))
    problem = dataclasses.replace(GemmProblem.dense(32, 32, 32, dtype="bf16"), epilogue=logarithm)
    with pytest.raises(InvalidEpilogue, match=r"log\(acc\) is not finite .* no result could be verified"):
        GpuMeasurer(problem, 0, Pattern("bf16"))
    by_hand = dataclasses.replace(problem, epilogue=Epilogue("-acc", "value[i] = -value[i];"))
    with pytest.raises(InvalidEpilogue, match="-acc: only its code is known"):
        GpuMeasurer(by_hand, 0, Pattern("bf16"))
