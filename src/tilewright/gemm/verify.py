"""verify=True: a result checked on the device that made it, before it is given back.

A bare product is checked by Freivalds' product (freivalds.py), row by row. What an epilogue makes of a product is not
linear, and where out is c, what was added is gone once the result is there. Such calls are checked in two steps:

    before   the same kernel with the same config makes the bare sums A B once more, in fp32; Freivalds' product checks
             them; from them comes, element by element, what the result may be (cuda/gemm/expected.cuh)
    after    each element of the result is compared with that (cuda/gemm/compare.cuh)

Both runs add up the same products in the same order, so their sums have the same bits, and all that can differ is how
the compiler rounds what follows: interval arithmetic follows each rounding (cuda/tile/range.cuh), and needs no bound on
how steep an activation is. Operands are read before the result is written, so out may be one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ..arrays.extents import same_view
from ..epilogue.ranges import range_headers
from ..errors import WrongResult
from ..run.launches import Recipe
from ..run.program import Helper, Place, Stage, program_for
from .call import Call
from .freivalds import Device, RowCheck
from .problem import ITEM_BYTES, Matrix
from .rung import CPP_TYPES, ceil_div, result_constants

_PAIR = 8
"""Bytes of the two numbers between which an element must be."""
_REPORT = np.dtype([("wrong", "<u4"), ("first", "<u4"), ("found", "<f4"), ("low", "<f4"), ("high", "<f4")])
"""What a block of compare.cuh leaves."""
EXPECTED = Helper(
    "expected", 256, 1, lambda p: {"use_c": p.use_c, "out_type": CPP_TYPES[p.out_dtype]}, lambda p: p.m * p.n,
    range_headers,
)  # fmt: skip
COMPARE = Helper(
    "compare", 256, 4, lambda p: {"out_unit": result_constants(p)["out_unit"], "out_type": CPP_TYPES[p.out_dtype]},
    lambda p: p.m * p.n,
)  # fmt: skip


@contextmanager
def verified(recipe: Recipe, bases: dict[str, int], device: Device) -> Iterator[None]:
    """Around the launches of `recipe` with its operands at `bases`: their result is checked.

    Raises WrongResult with the row or the element that is off; where the sums are, before the result is made.
    """
    if recipe.plan is None:
        yield
        return
    call = recipe.call
    made_by = f"It was made by {recipe.plan.rung}, config {recipe.plan.config}. Do not use it; name another rung, and "
    made_by += "report this."
    if by_elements(call):
        elements = _Elements(recipe, bases, device, made_by)
        yield
        elements.check()
        return
    yield
    rows = RowCheck(recipe.problem, device)
    done = 0
    for count, at, _ in recipe.parts(bases):
        rows(count, at, recipe.alpha, call.beta, done, made_by)
        done += count


def by_elements(call: Call) -> bool:
    """Whether a call's result is checked element by element, and not by Freivalds' product alone."""
    return call.fusion is not None or (call.c is not None and same_view(call.c, call.out))


class _Elements:
    """What each element of a result may be, from sums that were checked."""

    def __init__(self, recipe: Recipe, bases: dict[str, int], device: Device, made_by: str) -> None:
        assert recipe.plan is not None
        problem = recipe.problem
        m, n = problem.m, problem.n
        self._recipe, self._bases, self._device, self._made_by = recipe, bases, device, made_by
        pitch = ceil_div(n, 4) * 4
        sums = Matrix(pitch, 1, m * pitch)
        bare = replace(problem, out=sums, out_dtype="f32", c=None, epilogue=None)
        program = program_for(bare, recipe.plan)
        pairs = Matrix(n, 1, m * n)
        order = (Place("sums"), Place("sums"), Place("c"), Place("pairs"))
        expected = Stage("expected", EXPECTED, replace(problem, a=sums, b=Matrix(0, 0), out=pairs), order, True)
        kernels = [stage.compile(device.gpu.arch) for stage in (*program.stages, expected)]
        rows = RowCheck(bare, device)
        work = device.hold(program.workspace_bytes) if program.workspace_bytes else 0
        place = device.hold(problem.batch * m * pitch * ITEM_BYTES["f32"])
        self._pairs = device.hold(sum(count for count, _ in recipe.call.product.launches()) * m * n * _PAIR)
        done = 0
        for count, at, _ in recipe.parts(bases):
            at_sums = at | {"out": place, "work": work}
            for stage, kernel in zip(program.stages, kernels, strict=False):
                device.run(kernel, stage.launch(count, at_sums, 1.0, 0.0)[0])
            rows(count, at_sums, 1.0, 0.0, done, f"These are its sums, ahead of what is fused. {made_by}")
            at_pairs = at | {"sums": place, "pairs": self._pairs + done * m * n * _PAIR}
            device.run(kernels[-1], expected.launch(count, at_pairs, recipe.alpha, recipe.call.beta)[0])
            done += count

    def check(self) -> None:
        """Compare the result. Raises WrongResult with the first element that is off."""
        problem, device = self._recipe.problem, self._device
        m, n = problem.m, problem.n
        order = (Place("pairs"), Place("reports"), Place("pairs"), Place("out"))
        lies = replace(problem, a=Matrix(n, 1, m * n), b=Matrix(0, 0), c=None, epilogue=None)
        compare = Stage("compare", COMPARE, lies, order, False)
        kernel = compare.compile(device.gpu.arch)
        blocks = ceil_div(m * n, COMPARE.threads * COMPARE.each)
        reports = device.hold(problem.batch * blocks * _REPORT.itemsize)
        done = 0
        for count, at, _ in self._recipe.parts(self._bases):
            at |= {"pairs": self._pairs + done * m * n * _PAIR, "reports": reports}
            device.run(kernel, compare.launch(count, at, 1.0, 0.0)[0])
            found = device.download(reports, count * blocks * _REPORT.itemsize).view(_REPORT)
            if found["wrong"].any():
                self._raise(found, blocks, done, count)
            done += count

    def _raise(self, found: np.ndarray, blocks: int, done: int, count: int) -> None:
        problem = self._recipe.problem
        block = int(np.flatnonzero(found["wrong"])[0])
        report = found[block]
        row, col = divmod(block % blocks * COMPARE.threads * COMPARE.each + int(report["first"]), problem.n)
        low, high = float(report["low"]), float(report["high"])
        right = "is NaN" if np.isnan(low) else f"lies from {low:.9g} to {high:.9g}"
        raise WrongResult(
            f"verify: element ({row}, {col}) of product {done + block // blocks} is {float(report['found']):.9g}; what "
            f"is fused, applied to its sum, {right}. {int(found['wrong'].sum())} of {count * problem.m * problem.n} "
            f"elements are off. {self._made_by}"
        )
