"""Kernels with a mistake: products launched with other parameters, or on another grid, than their problems say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tilewright.gemm import call as call_module
from tilewright.gemm import stages
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.rung import Rung
from tilewright.jit import Launch
from tilewright.jit.params import Template
from tilewright.lab import ladder as ladder_module


def launch_wrongly(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[GemmProblem, Rung], GemmProblem] = lambda problem, rung: problem,
    params: Callable[[Template, GemmProblem, Rung], Template] = lambda template, problem, rung: template,
    shape: Callable[[Launch], Launch] = lambda launch: launch,
) -> None:
    """Every product is launched as one of change(problem), with its parameters and grid changed after that."""
    right, right_shape = stages.stage, stages.Tiled.shape

    def wrong(name: str, kernel: Any, problem: GemmProblem, places: Any, *options: Any) -> Any:
        if not isinstance(kernel, stages.Tiled):
            return right(name, kernel, problem, places, *options)
        other = right(name, kernel, change(problem, kernel.rung), places, *options)
        return replace(other, problem=problem, params=params(other.params, problem, kernel.rung))

    monkeypatch.setattr(stages, "stage", wrong)
    monkeypatch.setattr(stages.Tiled, "shape", lambda self, problem: shape(right_shape(self, problem)))
    for module, name in ((call_module, "program_of"), (ladder_module, "program_for")):  # nothing wrong stays remembered
        monkeypatch.setattr(module, name, getattr(stages, name).__wrapped__)


def scaled_by(template: Template, factor: float) -> Template:
    """The template with alpha as so many times what the call says, in float32's reach."""
    return _Scaled(template.data, template.addresses, template.scalars, factor)


class _Scaled(Template):
    factor: float

    def __init__(self, data: bytes, addresses: Any, scalars: Any, factor: float) -> None:
        super().__init__(data, addresses, scalars)
        object.__setattr__(self, "factor", factor)

    def fill(self, bases: Any, scalars: Any) -> bytes:
        changed = {**scalars, "alpha": scalars["alpha"] * self.factor} if "alpha" in scalars else scalars
        return super().fill(bases, changed)
