"""Freivalds' check of a product on the device that made it, as launches like any other.

R. Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977: A (B x) is compared with out x for a
vector x of random signs. It reads each of A, B, C and out once, in fp64, and waits for the answer.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ..errors import WrongResult
from ..jit import CompiledKernel
from ..jit.params import WORK, Place
from ..jit.source import Constant
from ..run.program import Program, Stage, Workspace
from ..run.ready import ready
from ..run.runner import Site
from .params import check_rows_params, dequantise_params, fused_base, sign_rows_params
from .problem import SCALE_BLOCK, GemmProblem, Matrix
from .rung import UNITS, result_constants
from .stages import Helper, shapes_for

ROWS = 32
"""Rows of a block of 256 threads."""
_ROUNDING = {"f32": (2.0**-24, 1e-37, 3.4e38), "f16": (2.0**-11, 2.0**-25, 65504.0), "bf16": (2.0**-8, 1e-37, 3.38e38)}
"""Of a result's dtype: half the distance of neighbours, relative; the same near 0, absolute; the largest number."""
_STEP = {
    "f32": 2.0**-24, "f16": 2.0**-23, "bf16": 2.0**-23, "tf32": 2.0**-23, "fp32x3": 2.0**-24, "fp8": 2.0**-23,
    "fast": 2.0**-18,
}  # fmt: skip
"""What one step of a sum loses at most, by what is multiplied how: tensor cores cut where FFMA rounds. Of fp8 Hopper's
keep 13 bits after the first, and lose the rest in 32 steps at once."""
_OPERANDS = {"tf32": 2.0**-10 + 2.0**-22, "fp32x3": 2.0**-21, "fp8": 2.0**-9, "fast": 2.0**-9}
"""What is lost of a product besides, as a part of it: by rounding both operands before they are multiplied; by what two
parts of an element lack; of fp8 by cutting it 13 bits below the largest of 32 and the sum so far."""


def _operand(problem: GemmProblem, columns: int) -> dict[str, Constant]:
    """The matrix that stands in `a`: problem.m rows of `columns`."""
    return {"in_type": CPP_TYPES[problem.dtype], "a_unit": UNITS[problem.a.unit(problem.m, columns)], "rows": ROWS}


def _bounds(problem: GemmProblem, kind: str) -> dict[str, Constant]:
    rounding, least, largest = _ROUNDING[problem.out_dtype]
    operands = _OPERANDS.get(kind, 0.0)
    return {
        "rounding": rounding, "step": _STEP[kind], "operands": operands, "least": least, "largest": largest,
    }  # fmt: skip


def _threads(problem: GemmProblem) -> int:
    return ceil_div(problem.m, ROWS) * 256


SIGN_ROWS = Helper("sign_rows", 256, 1, lambda p: _operand(p, p.n), _threads)
DEQUANTISE = Helper(
    "dequantise", 256, 1,
    lambda p: {
        "in_type": CPP_TYPES[p.dtype], "scaled": bool(p.n), "rows": p.n, "columns": SCALE_BLOCK,
    },
    lambda p: p.m * p.k,
)  # fmt: skip


@lru_cache(maxsize=8)
def check_rows(kind: str) -> Helper:
    return Helper(
        "check_rows", 256, 1,
        lambda p: _operand(p, p.k) | _bounds(p, kind) | result_constants(p), _threads,
    )  # fmt: skip


def _dequantised(name: str, problem: GemmProblem, workspace: Workspace) -> tuple[Stage, Matrix, Place]:
    """An operand as fp32, with the scales of its blocks: the launch, how it then lies, and where."""
    source, rows, cols = problem.side(name)
    number = problem.scaled_blocks.get(name)
    assert problem.epilogue is not None
    scales = problem.epilogue.operands[number].matrix if number is not None else Matrix(0, 0)
    copies = problem.batch if source.batch_stride or scales.batch_stride else 1
    lies = Matrix(cols, 1, rows * cols if copies > 1 else 0)
    place = workspace.room(copies * rows * cols * ITEM_BYTES["f32"])
    lines = 0 if number is None else 1 if name == "a" else SCALE_BLOCK  # of a block
    work = GemmProblem(rows, lines, cols, source, scales, lies, None, copies, problem.dtype_of(name), "f32")
    at = Place(fused_base(number)) if number is not None else 0
    params = dequantise_params(work, Place(name), at, place)
    return Stage(f"dequantise {name}", DEQUANTISE, work, DEQUANTISE.shape(work), params), lies, place


def seed() -> float:
    """32 bits for the signs of one check, as the float32 that has them; it is a normal number."""
    return float(struct.unpack("<f", struct.pack("<I", secrets.randbits(32) & 0xBFFFFFFF | 0x20000000))[0])


@lru_cache(maxsize=1024)
def verification(problem: GemmProblem, kind: str = "") -> tuple[Program, Place]:
    """The launches that check `problem`'s result, and where they leave each row's multiple (float64, batch x m).

    `kind`: whose rounding is allowed for, by default GemmProblem.kind. A row passes with a multiple of at most 1.
    """
    kind, workspace, stages = kind or problem.kind, Workspace(), []
    places = {name: Place(name) for name in "ab"}
    if problem.scaled_blocks and problem.k:
        lies = {}
        for name in "ab":
            stage, lies[name], places[name] = _dequantised(name, problem, workspace)
            stages.append(stage)
        problem = replace(problem, a=lies["a"], b=lies["b"], dtype="f32", b_dtype="", precision="ieee", epilogue=None)
    copies = problem.batch if problem.b.batch_stride else 1
    pairs = 2 * problem.k
    step = pairs if copies > 1 else 0
    ratios = copies * pairs
    signs = GemmProblem(
        problem.k, problem.n, 0, problem.b, Matrix(0, 0), Matrix(2, 1, step), None, copies, problem.dtype_of("b"),
        "f32",
    )  # fmt: skip
    sums, multiples = workspace.room(8 * ratios), workspace.room(8 * problem.batch * problem.m)
    c = Place("c") if problem.c is not None else 0
    if problem.k:
        params = sign_rows_params(problem, step, places["b"], sums)
        stages.append(Stage("signed rows of b", SIGN_ROWS, signs, SIGN_ROWS.shape(signs), params))
    params = check_rows_params(problem, step, places["a"], c, Place("out"), sums, multiples)
    check = check_rows(kind)
    stages.append(Stage("check of rows", check, problem, check.shape(problem), params))
    return Program(tuple(stages), workspace.bytes, len(stages) - 1), multiples


class RowCheck:
    """Freivalds' check of products of one problem, compiled, with its memory."""

    def __init__(self, problem: GemmProblem, site: Site, kind: str = "") -> None:
        self._program, self._place = verification(problem, kind)
        self._kernels = ready(self._program, site.gpu.arch).kernels
        self._work, self._site, self._rows = site.hold(self._program.workspace_bytes), site, problem.m

    def __call__(
        self, count: int, at: Mapping[str, int], scalars: Mapping[str, float], first: int, made_by: str
    ) -> None:
        """Check `count` products with their operands at `at`, the result at at["out"]; the first is number `first`.

        Raises WrongResult with the row that is farthest off, and `made_by`.
        """
        numbers = {**scalars, "seed": seed()}
        launch_stages(self._site, self._program, self._kernels, count, {**at, WORK: self._work}, numbers)
        multiples = self._site.download(self._work + self._place.offset, 8 * count * self._rows).view(np.float64)
        judge_rows(multiples, self._rows, first, made_by)


def judge_rows(multiples: np.ndarray, rows: int, first: int, made_by: str) -> None:
    """Raise WrongResult with the row that is farthest off, and `made_by`, where one is off by more than rounding.

    `multiples`: of what rounding can do, of products of `rows` rows; the first is number `first`.
    """
    if (multiples <= 1).all():
        return
    worst = int(np.where(np.isnan(multiples), np.inf, multiples).argmax())
    raise WrongResult(
        f"verify: row {worst % rows} of product {first + worst // rows} is off by {multiples[worst]:.3g} times what "
        f"rounding can do, and {int((~(multiples <= 1)).sum())} of {len(multiples)} rows are off. {made_by}"
    )


def launch_stages(
    site: Site, program: Program, kernels: Sequence[CompiledKernel], count: int, at: Mapping[str, int],
    scalars: Mapping[str, float], copies: int = 1,
) -> None:  # fmt: skip
    """Launch a program's stages for `count` products. `copies`: as shapes_for."""
    for one, shape, kernel in zip(program.stages, shapes_for(program, count, copies), kernels, strict=True):
        site.run(kernel, replace(shape, params=one.params.fill(at, scalars), maps=one.params.maps_at(at)))
