"""Freivalds' check of a product on the device that made it, as launches like any other.

R. Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977: A (B x) is compared with out x for a
vector x of random signs. It reads each of A, B, C and out once, in fp64, and waits for the answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import WrongResult
from ..jit import CompiledKernel
from ..jit.params import WORK, Place
from ..jit.source import Constant
from ..run.program import Program, Stage
from ..run.runner import Site
from .params import check_rows_params, sign_rows_params
from .problem import GemmProblem, Matrix
from .rung import UNITS, result_constants
from .stages import Helper, shapes_for

ROWS = 32
"""Rows of a block of 256 threads."""
_ROUNDING = {"f32": (2.0**-24, 1e-37, 3.4e38), "f16": (2.0**-11, 2.0**-25, 65504.0), "bf16": (2.0**-8, 1e-37, 3.38e38)}
"""Of a result's dtype: half the distance of neighbours, relative; the same near 0, absolute; the largest number."""
_STEP = {"f32": 2.0**-24, "f16": 2.0**-23, "bf16": 2.0**-23, "tf32": 2.0**-23, "fp32x3": 2.0**-24}
"""What one step of a sum loses at most, by what is multiplied how: tensor cores cut where FFMA rounds."""
_OPERANDS = {"tf32": 2.0**-10 + 2.0**-22}
"""What rounding both operands before they are multiplied adds to a product, as a part of it."""


def _operand(problem: GemmProblem, columns: int) -> dict[str, Constant]:
    """The matrix that stands in `a`: problem.m rows of `columns`."""
    return {"in_type": CPP_TYPES[problem.dtype], "a_unit": UNITS[problem.a.unit(problem.m, columns)], "rows": ROWS}


def _bounds(problem: GemmProblem) -> dict[str, Constant]:
    rounding, least, largest = _ROUNDING[problem.out_dtype]
    operands = _OPERANDS.get(problem.kind, 0.0)
    return {
        "rounding": rounding, "step": _STEP[problem.kind], "operands": operands, "least": least, "largest": largest,
    }  # fmt: skip


def _threads(problem: GemmProblem) -> int:
    return ceil_div(problem.m, ROWS) * 256


SIGN_ROWS = Helper("sign_rows", 256, 1, lambda p: _operand(p, p.n), _threads)
CHECK_ROWS = Helper(
    "check_rows", 256, 1,
    lambda p: _operand(p, p.k) | _bounds(p) | result_constants(p), _threads,
)  # fmt: skip


def verification(problem: GemmProblem, seed: int) -> tuple[Program, Place]:
    """The launches that check `problem`'s result, and where they leave each row's multiple (float64, batch x m).

    A row passes with a multiple of at most 1.
    """
    copies = problem.batch if problem.b.batch_stride else 1
    pairs = 2 * problem.k
    step = pairs if copies > 1 else 0
    ratios = copies * pairs
    signs = GemmProblem(
        problem.k, problem.n, 0, problem.b, Matrix(0, 0), Matrix(2, 1, step), None, copies, problem.dtype, "f32",
    )  # fmt: skip
    sums, multiples = Place(WORK), Place(WORK, 8 * ratios)
    c = Place("c") if problem.c is not None else 0
    params = sign_rows_params(problem, seed, step, Place("b"), sums)
    first = Stage("signed rows of b", SIGN_ROWS, signs, SIGN_ROWS.shape(signs), params)
    params = check_rows_params(problem, seed, step, Place("a"), c, Place("out"), sums, multiples)
    second = Stage("check of rows", CHECK_ROWS, problem, CHECK_ROWS.shape(problem), params)
    stages = (first, second) if problem.k else (second,)
    return Program(stages, 8 * (ratios + problem.batch * problem.m), len(stages) - 1), multiples


class RowCheck:
    """Freivalds' check of products of one problem, compiled, with its memory."""

    def __init__(self, problem: GemmProblem, site: Site) -> None:
        self._program, self._place = verification(problem, secrets.randbits(31))
        self._kernels = [stage.compile(site.gpu.arch) for stage in self._program.stages]
        self._work, self._site, self._rows = site.hold(self._program.workspace_bytes), site, problem.m

    def __call__(
        self, count: int, at: Mapping[str, int], scalars: Mapping[str, float], first: int, made_by: str
    ) -> None:
        """Check `count` products with their operands at `at`, the result at at["out"]; the first is number `first`.

        Raises WrongResult with the row that is farthest off, and `made_by`.
        """
        launch_stages(self._site, self._program, self._kernels, count, {**at, WORK: self._work}, scalars)
        size = count * self._rows
        multiples = self._site.download(self._work + self._place.offset, 8 * size).view(np.float64)
        if (multiples <= 1).all():
            return
        worst = int(np.where(np.isnan(multiples), np.inf, multiples).argmax())
        raise WrongResult(
            f"verify: row {worst % self._rows} of product {first + worst // self._rows} is off by "
            f"{multiples[worst]:.3g} times what rounding can do, and {int((~(multiples <= 1)).sum())} of {size} rows "
            f"are off. {made_by}"
        )


def launch_stages(
    site: Site, program: Program, kernels: Sequence[CompiledKernel], count: int, at: Mapping[str, int],
    scalars: Mapping[str, float], copies: int = 1,
) -> None:  # fmt: skip
    """Launch a program's stages for `count` products. `copies`: as shapes_for."""
    for one, shape, kernel in zip(program.stages, shapes_for(program, count, copies), kernels, strict=True):
        site.run(kernel, replace(shape, params=one.params.fill(at, scalars)))
