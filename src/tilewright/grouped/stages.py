"""The launches of a grouped product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import ConfigRejected
from ..gemm.config import GemmConfig
from ..gemm.problem import GemmProblem
from ..gemm.rung import Addresses, Rung
from ..gemm.rungs.tma import k_inner
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Place, Template, pack
from ..jit.tensor_map import TensorMap
from ..run.program import Program, Stage, Workspace
from ..run.start import START
from .problem import AXES, GroupedProblem

if TYPE_CHECKING:
    from ..plan.plan import Plan

ENDS = "<Qi4xQ"
"""What GroupedArgs in cuda/grouped/groups.cuh has after the product's GemmArgs; a test holds them equal."""


def most_tiles(problem: GroupedProblem, config: GemmConfig) -> int:
    """The most tiles that groups of any sizes may make."""
    whole = problem.whole
    if problem.axis == "k":
        return problem.groups * ceil_div(whole.m, config.tile_m) * ceil_div(whole.n, config.tile_n)
    along, across = (
        (config.tile_m, ceil_div(whole.n, config.tile_n)) if problem.axis == "m"
        else (config.tile_n, ceil_div(whole.m, config.tile_m))
    )  # fmt: skip
    return (problem.total // along + min(problem.groups + 1, problem.total)) * across


def why_not(problem: GroupedProblem, rung: Rung, config: GemmConfig, arch: Arch) -> str | None:
    """None where the config can run the problem; else the reason, with the numbers."""
    if config.staged and problem.axis != "k":
        return f"{config} stores rows of whole tiles by TMA, which would run over a group's end; it can have staged=0"
    if reason := rung.why_not(problem.product, config, arch):
        return reason
    tiles = most_tiles(problem, config)
    return f"{config} makes up to {tiles} tiles; 2147483647 can be counted" if tiles >= 2**31 else None


def cut_box(extent: int) -> int:
    """Rows of a TMA box of A where groups cut them (box_of in cuda/grouped/tma_groups.cuh)."""
    return next((box for box in (64, 32) if extent % box == 0), extent)


def _in_boxes(rung: Rung, axis: str) -> Rung:
    """The rung with smaller boxes of A where groups cut its rows, since a group's last tile may have few of them.

    Where A's lines run along m, boxes are panels of them already.
    """
    if axis != "m" or not rung.loaders:
        return rung

    def maps(config: GemmConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
        found = dict(rung.maps(config, problem))
        if (a := found["a"]) is not None and k_inner("a", problem):
            found["a"] = replace(a, box=(a.box[0], cut_box(config.tile_m), *a.box[2:]))
        return found

    return replace(rung, maps=maps)


def params(problem: GroupedProblem, plan: Plan, at: Addresses, ends: Address, drawn: Address = 0) -> Template:
    """The rung's tensor maps, if it takes any, then GroupedArgs."""
    return _in_boxes(plan.rung, problem.axis).params(problem.whole, plan.config, at, 1.0, 0.0) + pack(
        ENDS, ends, problem.groups, drawn
    )


@dataclass(frozen=True)
class Tiled:
    """A rung with its config."""

    rung: Rung
    config: GemmConfig

    def compile(self, problem: GroupedProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        if reason := why_not(problem, self.rung, self.config, arch):
            raise ConfigRejected(f"{reason}.")
        constants = self.rung.constants(problem.product, self.config)
        constants |= {
            "in_type": CPP_TYPES[problem.product.dtype],
            "axis": AXES.index(problem.axis),
            "fills": problem.fills,
        }
        return compile_rung(self.rung.include, constants, self.rung.entry, arch.name)

    def shape(self, problem: GroupedProblem) -> Launch:
        """The grid, block and shared memory; as many blocks as tiles may be, of which those start that SMs hold."""
        config = self.config
        return Launch(
            (max(most_tiles(problem, config), 1), 1, 1), (self.rung.threads(config), 1, 1), b"",
            self.rung.shared_bytes(config, problem.product), self.rung.overlaps, config.min_blocks,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def program_of(problem: GroupedProblem, plan: Plan) -> Program:
    """The launches that `plan` means for `problem`. Pure."""
    tiled, at = Tiled(plan.rung, plan.config), Addresses(Place("a"), Place("b"), Place("out"))
    workspace = Workspace()
    before: tuple[Stage, ...] = ()
    drawn: Address = 0
    if plan.rung.loaders:  # the rungs whose blocks draw their tiles
        drawn = workspace.room(4)
        before = (Stage("start", START, problem, START.shape(problem), pack("<Q", drawn)),)
    main = Stage(
        "grouped product", tiled, problem, tiled.shape(problem), params(problem, plan, at, Place("ends"), drawn)
    )
    return Program((*before, main), workspace.bytes, len(before))
