"""An operation of epilogues is one row of the table: a made-up one runs, differentiates, is checked and is costed."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from epilogue_cases import values

import tilewright as tw
from tilewright import epilogue as ep
from tilewright.epilogue.derivative import differentiate
from tilewright.epilogue.evaluate import evaluate
from tilewright.epilogue.expression import record, trace
from tilewright.epilogue.functions import function_of
from tilewright.epilogue.ops import OPS, Op
from tilewright.gemm.classes import class_of
from tilewright.gemm.problem import Epilogue, GemmProblem
from tilewright.words import Activation

CUBE = Op(
    "cube", 1, lambda x: x**3, "{0} * {0} * {0}", "{0} * {0} * {0}", 2, lambda torch, x: x**3,
    lambda f, g, z, x: (g * (3 * f.square(x)),), doc="x to the third.",
)  # fmt: skip
SQUARE = Op("square", 1, np.square, "{0} * {0}", "{0} * {0}", 1, lambda torch, x: x * x, doc="x squared.")


@pytest.fixture
def cube(monkeypatch):
    for op in (CUBE, SQUARE):
        monkeypatch.setitem(OPS, op.name, op)
    return function_of(CUBE)


def test_a_row_is_an_operation_that_kernels_run_and_verify(cube):
    a, b, x = values(33, 20), values(20, 18), values(18)
    with tw.emulator():
        out = tw.matmul(a, b, epilogue=lambda acc, x: cube(acc) + np.square(x), x=x, rung="f02", verify=True)
    exact = (a.astype(np.float64) @ b) ** 3 + x.astype(np.float64) ** 2
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_a_row_has_a_reference_a_derivative_a_description_and_a_cost(cube):
    traced = trace(lambda acc: cube(acc), {})
    assert traced.description == "cube(acc)"
    sums = np.linspace(-2, 2, 9)
    np.testing.assert_array_equal(evaluate(traced.nodes, sums, {})[0], sums**3)
    derivative = differentiate(record(lambda acc: cube(acc), {}))
    slope = derivative.recorded(derivative.of_sum).nodes
    np.testing.assert_allclose(evaluate(slope, sums, {derivative.grad: np.ones(9)})[0], 3 * sums**2)
    bare = GemmProblem.dense(64, 64, 64)
    for function, shows in ((cube, True), (function_of(SQUARE), False)):
        traced = trace(function, {})
        fused = dataclasses.replace(bare, epilogue=Epilogue("", traced.code, (), traced.nodes))
        assert class_of(fused).fused is shows


def test_torch_has_it_too(cube):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import tilewright.torch as tt

    a, b = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.testing.assert_close(tt.matmul(a, b, epilogue=lambda acc: cube(acc)), (a @ b) ** 3)
    assert torch.autograd.gradcheck(lambda a, b: tt.matmul(a, b, epilogue=lambda acc: cube(acc)), (a, b))


def test_every_row_with_a_docstring_is_public_and_nothing_else():
    assert sorted(ep.__all__) == sorted(op.name for op in OPS.values() if op.doc)
    for name in ep.__all__:
        assert getattr(ep, name).__name__ == name
        assert getattr(ep, name).__doc__ == OPS[name].doc


def test_an_activation_has_its_name_in_annotations_and_its_function_in_every_framework():
    names = [op.name for op in OPS.values() if op.activation]
    assert sorted(get_args(Activation)) == sorted(names)
    for file in ("torch/linear.py", "jax/calls.py"):  # read, since neither library need be here
        text = ast.parse((Path(ep.__file__).parents[1] / file).read_text())
        (table,) = [
            node.value for node in text.body
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target).endswith("ACTIVATIONS")
        ]  # fmt: skip
        assert sorted(ast.literal_eval(key) for key in table.keys) == sorted(names), file


def test_the_table_knows_nothing_of_tracing_and_tracing_nothing_of_the_functions():
    folder = Path(ep.__file__).parent
    inside = {
        name: {
            node.module
            for node in ast.walk(ast.parse((folder / f"{name}.py").read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 1
        }
        for name in ("ops", "trace")
    }
    assert inside == {"ops": set(), "trace": {"ops"}}
