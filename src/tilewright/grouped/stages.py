"""The launches of a grouped product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..arrays.dtypes import CPP_TYPES, FP8, ceil_div
from ..errors import ConfigRejected
from ..gemm.config import GemmConfig, WgmmaConfig
from ..gemm.fused import fused_headers
from ..gemm.params import ALPHA, addresses_of
from ..gemm.problem import GemmProblem, Matrix
from ..gemm.rung import Addresses, Rung
from ..gemm.rungs.fp8 import scale_bytes
from ..gemm.rungs.tensor import HALVES
from ..gemm.rungs.tma_tensors import k_inner, out_map, staged_of
from ..gemm.stages import pack_stage, widen_stage
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Place, Template, pack
from ..jit.source import Constant
from ..jit.tensor_map import TensorMap
from ..run.program import Program, Stage, Workspace
from ..run.start import START
from .problem import AXES, GroupedProblem
from .rungs import TURNED

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


def as_run(problem: GroupedProblem, rung: Rung) -> GroupedProblem:
    """The problem as the rung's kernel meets it."""
    return problem.turned if rung.id == TURNED else problem


def as_cut(problem: GroupedProblem, rung: Rung, config: GemmConfig) -> GemmConfig:
    """The config with the tiles that groups of the average size get: the turned rung shares out a group's columns."""
    if rung.id != TURNED:
        return config
    size = max(problem.product.m, 1)
    wide = ceil_div(ceil_div(size, ceil_div(size, config.tile_n)), 16) * 16
    return replace(config, tile_n=wide, warp_n=wide)


def why_not(problem: GroupedProblem, rung: Rung, config: GemmConfig, arch: Arch) -> str | None:
    """Return None where the config can run the problem; else the reason, with the numbers."""
    if rung.id == TURNED:
        if reason := _why_not_turned(problem):
            return f"{rung.id} {reason}"
        problem = as_run(problem, rung)
    if config.staged and problem.axis == "n":
        return f"{config} stores whole runs of columns by TMA, which would run over a group's end; it can have staged=0"
    if reason := rung.why_not(problem.product, config, arch):
        return reason
    tiles = most_tiles(problem, config)
    return f"{config} makes up to {tiles} tiles; 2147483647 can be counted" if tiles >= 2**31 else None


def _why_not_turned(problem: GroupedProblem) -> str | None:
    """Refuse the problem before it is turned."""
    product, out = problem.product, problem.product.out
    if problem.axis != "m":
        return f"multiplies groups of rows; these are cut along {problem.axis}"
    if product.dtype not in HALVES or product.out_dtype not in HALVES or product.epilogue is not None:
        return f"gives 16-bit results of 16-bit operands; these are {product.dtype} to {product.out_dtype}"
    if out.col_stride != 1 or product.n % 8 or not out.readable(product.m, product.n, 2, 16):
        return "stores 16 bytes of rows that lie contiguous and start at multiples of them"
    if not k_inner("a", product):
        return "reads rows of A along k"
    return None


TURNED_BOX = 32
"""Columns of a TMA box of B where the product is turned (turned_box in cuda/grouped/turned_tiles.cuh)."""


def cut_box(extent: int) -> int:
    """Rows of a TMA box of A where groups cut them (box_of in cuda/grouped/tma_groups.cuh)."""
    return next((box for box in (64, 32) if extent % box == 0), extent)


def _staged_rows(axis: str, config: GemmConfig, whole: GemmProblem) -> tuple[WgmmaConfig, GemmProblem] | None:
    """The config and the product whose rows are those of all groups, as TMA stores them; None where it stores none."""
    if axis == "m" and isinstance(config, WgmmaConfig) and config.staged:
        return config, replace(whole, batch=1)
    return None


def _in_boxes(rung: Rung, axis: str) -> Rung:
    """The rung as groups cut rows: its boxes of A are smaller, since a group's last tile may have few of them, and its
    result is one matrix.

    Where A's lines run along m, boxes are panels of them already.
    """
    if not rung.loaders or (axis != "m" and rung.id != TURNED):
        return rung

    def maps(config: GemmConfig, problem: GemmProblem) -> dict[str, TensorMap | None]:
        found = dict(rung.maps(config, problem))
        if rung.id == TURNED:
            if (b := found["b"]) is not None:
                found["b"] = replace(b, box=(b.box[0], TURNED_BOX, *b.box[2:]))
        elif (a := found["a"]) is not None and k_inner("a", problem):
            found["a"] = replace(a, box=(a.box[0], cut_box(config.tile_m), *a.box[2:]))
        if (rows := _staged_rows(axis, config, problem)) is not None:
            found["out"] = out_map(*rows)
        return found

    return replace(rung, maps=maps)


def params(problem: GroupedProblem, plan: Plan, at: Addresses, ends: Address, drawn: Address = 0) -> Template:
    """The rung's tensor maps, if it takes any, then GroupedArgs. Of fp8 operands alpha is the scales that are
    numbers."""
    problem = as_run(problem, plan.rung)
    alpha = ALPHA if problem.widened or problem.product.dtype in FP8 else 1.0
    return _in_boxes(plan.rung, problem.axis).params(problem.whole, plan.config, at, alpha, 0.0) + pack(
        ENDS, ends, problem.groups, drawn
    )


def _of_elements(product: GemmProblem, config: GemmConfig) -> dict[str, Constant]:
    """Return what strides of operands count, and the scales: those of A's blocks start anywhere, with their group."""
    scaled, operands = product.scaled_blocks, product.epilogue.operands if product.epilogue else ()
    found: dict[str, Constant] = {
        "scales": len(operands), "a_blocks": scaled.get("a", -1), "b_blocks": scaled.get("b", -1),
        "scale_bytes": config.stages * scale_bytes(config, product) if scaled else 0,
    }  # fmt: skip
    if product.dtype in FP8:
        return found | {"element": "unsigned short"}  # two neighbours along k (gemm/rung.py, in_pairs)
    return found | {"element": CPP_TYPES[product.dtype], "in_type": CPP_TYPES[product.dtype]}


@dataclass(frozen=True)
class Tiled:
    """A rung with its config."""

    rung: Rung
    config: GemmConfig

    def compile(self, problem: GroupedProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        if reason := why_not(problem, self.rung, self.config, arch):
            raise ConfigRejected(f"{reason}.")
        problem = as_run(problem, self.rung)
        product = problem.product
        constants = self.rung.constants(product, self.config)
        constants |= {"axis": AXES.index(problem.axis), "fills": problem.fills} | _of_elements(product, self.config)
        if (rows := _staged_rows(problem.axis, self.config, problem.whole)) is not None:
            constants |= {"staged": staged_of(*rows), "out_batched": False}
        include = self.rung.include
        # fp8 that is cut along k comes as fp16, whose rungs know no fp8 results by themselves
        includes = ("ptx/number8.cuh", include) if problem.widened and product.out_dtype in FP8 else include
        return compile_rung(includes, constants, self.rung.entry, arch.name, generated=fused_headers(product))

    def shape(self, problem: GroupedProblem) -> Launch:
        """The grid, block and shared memory; as many blocks as tiles may be, of which those start that SMs hold."""
        config, problem = self.config, as_run(problem, self.rung)
        return Launch(
            (max(most_tiles(problem, config), 1), 1, 1), (self.rung.threads(config), 1, 1), b"",
            self.rung.shared_bytes(config, problem.product), self.rung.overlaps, config.min_blocks,
        )  # fmt: skip


@lru_cache(maxsize=4096)
def program_of(problem: GroupedProblem, plan: Plan) -> Program:
    """The launches that `plan` means for `problem`. Pure."""
    workspace = Workspace()
    before: list[Stage] = []
    places: dict[str, Address] = {name: Place(name) for name in ("a", "b", "out")}
    whole = problem.whole
    if (given := problem.widened) is not None:
        for name, dtype, source, length in (
            ("a", given.dtypes[0], Matrix(given.a.col_stride, given.a.row_stride), whole.m),
            ("b", given.dtypes[1], given.b, whole.n),
        ):  # fmt: skip
            widened, places[name] = widen_stage(name, dtype, source, whole.k, length, workspace)
            before.append(widened)
    for name in plan.rung.packs(whole):
        packed, lies, places[name] = pack_stage(name, whole, plan.config, workspace)
        before.append(packed)
        problem = problem.with_operand(name, replace(lies, padded=False))  # tiles start where groups do, not at its own
    drawn: Address = 0
    if plan.rung.loaders:  # the rungs whose blocks draw their tiles
        drawn = workspace.room(4)
        before.append(Stage("start", START, problem, START.shape(problem), pack("<Q", drawn)))
    tiled = Tiled(plan.rung, plan.config)
    first, second = "ba" if plan.rung.id == TURNED else "ab"
    at = addresses_of(problem.product, places[first], places[second], 0, places["out"])
    main = Stage(
        "grouped product", tiled, problem, tiled.shape(problem), params(problem, plan, at, Place("ends"), drawn)
    )
    return Program((*before, main), workspace.bytes, len(before))
