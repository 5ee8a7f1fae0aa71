"""The stages of attention's gradients: copies of what kernels cannot read, statistics, walks, results' way back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ..arrays.dtypes import ITEM_BYTES
from ..jit.params import Address, Place, Scalar, number_names
from ..run.program import Program, Stage, Workspace
from .backward_config import BackwardConfig, walks_of
from .backward_kernels import (
    BackwardAddresses,
    FinishKernel,
    PartsKernel,
    RowsKernel,
    WalkKernel,
    pack_args,
    parts_of,
    workspace_rows,
)
from .backward_problem import BackwardProblem
from .backward_rung import BackwardRung
from .stages import COPY_ROWS, Lies

RESULTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class BackwardPlan:
    """The kernels that make the gradients, and why."""

    rung: BackwardRung
    config: BackwardConfig
    why: str


@lru_cache(maxsize=4096)
def backward_program(problem: BackwardProblem, plan: BackwardPlan, copied: tuple[Lies, ...] = ()) -> Program:
    """The launches that `plan` means for `problem`, whose operands named in `copied` are dense copies. Pure."""
    p, config = problem.forward, plan.config
    workspace = Workspace()
    before: list[Stage] = []
    after: list[Stage] = []
    names = ("q", "k", "v", "out", "grad", *RESULTS)
    places: dict[str, Address] = {name: Place(name) for name in names}
    for lies in copied:
        columns = p.columns("v" if lies.name in ("grad", "dv") else lies.name)
        made = workspace.room(ITEM_BYTES[p.dtype] * prod(lies.shape[:3]) * columns)
        own, places[lies.name] = Place(lies.name), made
        back = lies.name in RESULTS
        copy = lies.copy(columns, back)
        params = copy.params(made, own) if back else copy.params(own, made)
        (after if back else before).append(Stage(f"copy {lies.name}", COPY_ROWS, copy, COPY_ROWS.shape(copy), params))
    rows, alone = workspace_rows(problem), plan.rung.alone
    adds = config.sums and not alone
    stats: Address = 0 if alone else workspace.room(4 * problem.stat_floats * rows)
    sums: Address = workspace.room(4 * rows * config.columns) if adds else 0
    turns: Address = workspace.room(rows // 8) if adds else 0
    parts = parts_of(problem, plan.rung, next(walk for walk in walks_of(config) if walk.by_keys))
    room: tuple[Address, Address] = (0, 0)
    if parts > 1:
        keys = p.totals[1] if p.totals is not None else p.batch * p.seq_k
        of_dk, of_dv = (workspace.room(4 * parts * p.heads_kv * keys * p.columns(name)) for name in "kv")
        room = of_dk, of_dv
    starts: tuple[Address, Address] = (0, 0)
    if p.totals is not None:
        starts = Place("starts_q"), Place("starts_k")
    at = BackwardAddresses(
        places["q"], places["k"], places["v"], places["out"], places["grad"], Place("lse"), places["dq"], places["dk"],
        places["dv"], stats, turns, sums, Place("grad_lse") if problem.grad_lse is not None else 0,
        Place("bias") if p.bias is not None else 0, *starts,
        tuple(Scalar(name) for name in number_names(len(p.numbers))), room,
    )  # fmt: skip
    params = pack_args(problem, at)

    def stage(name: str, kernel: RowsKernel | WalkKernel | PartsKernel | FinishKernel) -> Stage:
        own = kernel.params(problem, at) if isinstance(kernel, WalkKernel) else params
        return Stage(name, kernel, problem, kernel.shape(problem), own)

    if alone:
        (walk,) = walks_of(config)
        whole = stage("dQ dK dV", WalkKernel(plan.rung, config, walk))
        return Program((*before, whole, *after), workspace.bytes, len(before))
    walks = [stage(walk.name, WalkKernel(plan.rung, config, walk)) for walk in walks_of(config)]
    stored = plan.rung.writes and config.ordered
    main = [stage("rows", RowsKernel(bool(config.sums) and not stored, config.ordered, config.columns)), *walks]
    if parts > 1:
        main.append(stage("parts of dK dV", PartsKernel(parts)))
    if config.sums:
        main.append(stage("dQ", FinishKernel(config, stored)))
    return Program((*before, *main, *after), workspace.bytes, len(before) + 1)
