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

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..arrays.dtypes import CPP_TYPES, FP8, ITEM_BYTES, ceil_div
from ..arrays.extents import same_view
from ..errors import WrongResult
from ..gpus import Arch
from ..jit.gpu_executor import executor_for
from ..jit.params import WORK, Place
from ..plan.plan import Plan
from ..run.program import Program, Stage
from ..run.ready import moved, ready
from ..run.runner import Ran, Site
from ..run.warm import Remembered, remembered
from .config import GemmConfig, WgmmaConfig
from .freivalds import RowCheck, judge_rows, launch_stages, verification
from .params import SEED, compare_params, expected_params
from .problem import GemmProblem, Matrix
from .ranges import range_headers
from .rung import Rung, result_constants
from .stages import Helper, parts_of

if TYPE_CHECKING:
    from .call import Call

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
def verified(call: Call, program: Program, bases: Mapping[str, int], site: Site) -> Iterator[None]:
    """Around the launches of `program` with its operands at `bases`: their result is checked.

    Raises WrongResult with the row or the element that is off; where the sums are, before the result is made.
    """
    plan = call.plan(site.gpu)
    made_by = _made_by(plan)
    if by_elements(call):
        elements = _Elements(call, plan, program, bases, site, made_by)
        yield
        elements.check()
        return
    yield
    rows = RowCheck(_largest(call, program), site, _kind(call.product.problem, plan))
    done = 0
    for run in program.each_run():
        rows(run.count, moved(bases, run.offsets), call.scalars, done, made_by)
        done += run.count


def _made_by(plan: Plan) -> str:
    return f"It was made by {plan.rung}, config {plan.config}. Do not use it; name another rung, and report this."


@dataclass(frozen=True)
class WarmCheck:
    """Freivalds' check of a remembered product: its launches take the bases a, b, c, out, WORK; alpha, beta, SEED."""

    launches: Remembered
    multiples: int
    """Where its answers lie in its memory: `count` float64."""
    count: int
    rows: int
    made_by: str

    def judge(self, work: int, stream: int) -> None:
        """Wait for the launches, whose memory is at `work`, and raise WrongResult as `verified` does."""
        executor = executor_for(self.launches.ordinal, stream)
        found = executor.download(work + self.multiples, 8 * self.count).view(np.float64)
        judge_rows(found, self.rows, 0, self.made_by)


def warm_check(call: Call, ran: Ran) -> WarmCheck | None:
    """The check of calls like one that was verified just now, on its GPU; None where it is another kind of check."""
    runs = ran.ready.program.each_run()
    if by_elements(call) or len(runs) != 1 or call.product.problem.scaled_blocks:
        return None
    gpu = executor_for(ran.ordinal).gpu
    plan, problem = call.plan(gpu), _largest(call, ran.ready.program)
    program, place = verification(problem, _kind(call.product.problem, plan))
    launches = remembered(
        ready(program, gpu.arch), ran.ordinal, ("a", "b", "c", "out", WORK), ("alpha", "beta", SEED.name)
    )
    return WarmCheck(launches, place.offset, problem.batch * problem.m, problem.m, _made_by(plan))


def by_elements(call: Call) -> bool:
    """Return whether a call's result is checked element by element, and not by Freivalds' product alone."""
    narrow = call.out.dtype in FP8  # what is too large becomes the largest number, whatever was right
    return narrow or call.fusion is not None or (call.c is not None and same_view(call.c, call.out))


def _kind(problem: GemmProblem, plan: Plan) -> str:
    """Whose rounding the sums have: of fp8 on mma.sync that of fp16."""
    return "f16" if problem.dtype in FP8 and not plan.rung.warpgroups else problem.kind


def _largest(call: Call, program: Program) -> GemmProblem:
    """The problem of the call's largest launch."""
    return replace(call.product.problem, batch=max(run.count for run in program.each_run()))


def config_of_sums(
    rung: Rung, config: GemmConfig, bare: GemmProblem, packs: tuple[str, ...], arch: Arch
) -> GemmConfig:  # fmt: skip
    """Return the config by which a rung makes the bare sums of what it made by `config`.

    That itself; where buffers of fp32 results do not fit beside its tiles, one with fewer. How many there are changes
    no bit of a sum.
    """
    packed = bare.packed(config.tile, packs)
    if not isinstance(config, WgmmaConfig):
        return config
    fewer = (
        replace(config, stages=stages, staged=staged)
        for stages in range(config.stages, 1, -1)
        for staged in range(config.staged, 0, -1)
    )
    return next((one for one in (config, *fewer) if rung.why_not(packed, one, arch) is None), config)


class _Elements:
    """The bounds of each element of a result, from sums that were checked."""

    def __init__(
        self, call: Call, plan: Plan, program: Program, bases: Mapping[str, int], site: Site, made_by: str
    ) -> None:
        self._problem = problem = _largest(call, program)
        m, n = problem.m, problem.n
        self._runs, self._bases, self._site, self._made_by = program.each_run(), bases, site, made_by
        pitch = ceil_div(n, 4) * 4
        sums = Matrix(pitch, 1, m * pitch)
        bare = replace(problem.bare, out=sums, out_dtype="f32", c=None)
        plan = replace(plan, config=config_of_sums(plan.rung, plan.config, bare, plan.packs, site.gpu.arch))
        product, copies = parts_of(bare, plan)
        pairs = Matrix(n, 1, m * n)
        c = Place("c") if problem.c is not None else 0
        wanted = replace(problem, a=sums, b=Matrix(0, 0), out=pairs)
        params = expected_params(wanted, Place("sums"), c, Place("pairs"))
        expected = Program((Stage("expected", EXPECTED, wanted, EXPECTED.shape(wanted), params),))
        kernels = [stage.compile(site.gpu.arch) for stage in product.stages]
        last = [stage.compile(site.gpu.arch) for stage in expected.stages]
        rows = RowCheck(bare, site, _kind(problem, plan))
        work = site.hold(product.workspace_bytes) if product.workspace_bytes else 0
        place = site.hold(problem.batch * m * pitch * ITEM_BYTES["f32"])
        self._pairs = site.hold(sum(run.count for run in self._runs) * m * n * _PAIR)
        plain, done = {"alpha": 1.0, "beta": 0.0}, 0
        for run in self._runs:
            at = dict(moved(bases, run.offsets))
            at_sums = at | {"out": place, WORK: work}
            launch_stages(site, product, kernels, run.count, at_sums, plain, copies)
            rows(run.count, at_sums, plain, done, f"These are its sums, ahead of what is fused. {made_by}")
            at_pairs = at | {"sums": place, "pairs": self._pairs + done * m * n * _PAIR}
            launch_stages(site, expected, last, run.count, at_pairs, call.scalars)
            done += run.count

    def check(self) -> None:
        """Compare the result. Raises WrongResult with the first element that is off."""
        problem, site = self._problem, self._site
        m, n = problem.m, problem.n
        bare = replace(problem, c=None, epilogue=None)
        params = compare_params(bare, Place("out"), Place("pairs"), Place("reports"))
        compare = Program((Stage("compare", COMPARE, bare, COMPARE.shape(bare), params),))
        kernels = [stage.compile(site.gpu.arch) for stage in compare.stages]
        blocks = ceil_div(m * n, COMPARE.threads * COMPARE.each)
        reports = site.hold(problem.batch * blocks * _REPORT.itemsize)
        done = 0
        for run in self._runs:
            at = dict(moved(self._bases, run.offsets))
            at |= {"pairs": self._pairs + done * m * n * _PAIR, "reports": reports}
            launch_stages(site, compare, kernels, run.count, at, {})
            found = site.download(reports, run.count * blocks * _REPORT.itemsize).view(_REPORT)
            if found["wrong"].any():
                self._raise(found, blocks, done, run.count)
            done += run.count

    def _raise(self, found: np.ndarray, blocks: int, done: int, count: int) -> None:
        problem = self._problem
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
