"""What a backward rung is: data, why_not and the parameters of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch, find_arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_maps, pack_numbers
from ..jit.source import Constant
from ..jit.tensor_map import TensorMap
from .backward_config import ROW_RUN, BackwardConfig, Tile, Walk, slice_of, walks_of
from .backward_problem import BackwardProblem
from .hopper import LEAST_STRIDE, STRIDES_END, map_of
from .problem import AttentionProblem, BiasRows
from .rung import D_HEADS

SECTION_BYTES = 1 << 24
"""What the heads of a section read and add to, which is to stay in the L2 (head_of_block)."""
_TILES_LIMIT = 65535
_SHARED_ON_HOPPER = find_arch("sm_90a").shared_per_block
_LOG2_E = 1.4426950408889634
_SHORT = 2048
"""Rows up to which dV and dK of a causal mask are made by one walk rather than apart: tiles that it hides by half weigh
more there, and blocks of 64 keys have fewer of them. Measured at 512, 1024 (faster), 4096 (the same) and 16384."""


@dataclass(frozen=True)
class BackwardAddresses:
    """Device addresses, or places that a call fills in. Those that a problem has no use for are 0."""

    q: Address
    k: Address
    v: Address
    out: Address
    grad: Address
    lse: Address
    dq: Address
    dk: Address
    dv: Address
    stats: Address
    turns: Address = 0
    sums: Address = 0
    grad_lse: Address = 0
    bias: Address = 0
    starts_q: Address = 0
    starts_k: Address = 0
    numbers: tuple[float | Scalar, ...] = ()


_ARGS = "<13Q30q4q3Q6i4f2i"
"""BackwardArgs in cuda/attention/backward_args.cuh, after its numbers; a test holds them equal."""
_MODIFICATION = """#pragma once
constexpr bool fused_brief = false;  // scores are fp32, and become exponents
#include "tile/fused_math.cuh"

{}

struct Modification {{
  static __device__ float run(float value, int b, int h, int i, int j, const ScoreNumbers& args) {{
{}
    return value;
  }}
  static __device__ float slope(float value, int b, int h, int i, int j, const ScoreNumbers& args) {{
{}
    return value;
  }}
}};
"""
"""A call's function of a score, in place of cuda/attention/backward_modification.cuh."""


def pack_args(problem: BackwardProblem, at: BackwardAddresses) -> Template:
    """The parameters of every kernel of the gradients: BackwardArgs, which begins with the numbers of a score."""
    p = problem.forward
    if len(at.numbers) != len(p.numbers):
        raise ValueError(f"{len(at.numbers)} numbers for a function of a score that reads {len(p.numbers)}")
    rows = (p.q, p.k, p.v, p.out, problem.grad, problem.dq, problem.dk, problem.dv)
    strides = [s for one in rows for s in (one.batch_stride, one.head_stride, one.row_stride)]
    bias = p.bias or BiasRows(0, 0, 0, 0, p.dtype)
    return pack_numbers(at.numbers) + pack(
        _ARGS, at.q, at.k, at.v, at.out, at.grad, at.lse, at.grad_lse, at.dq, at.dk, at.dv, at.stats, at.turns, at.sums,
        *strides, *problem.lse, *(problem.grad_lse or (0, 0, 0)),
        bias.batch_stride, bias.head_stride, bias.row_stride, bias.col_stride, at.bias, at.starts_q, at.starts_k,
        p.batch, p.heads_q, p.heads_kv, p.group, *(p.totals or (p.seq_q, p.seq_k)), p.scale, p.scale * _LOG2_E,
        p.softcap, p.scale / p.softcap if p.softcap else 0.0, *p.window,
    )  # fmt: skip


def common_constants(problem: BackwardProblem, columns: int) -> dict[str, Constant]:
    """What all kernels of a problem are compiled for, whose tiles are so many columns wide."""
    p = problem.forward
    return {
        "in_type": CPP_TYPES[p.dtype],
        "d_head": columns,
        "d_there": p.d_head,
        "d_v": p.columns("v"),
        "varlen": p.totals is not None,
        "plain": problem.plain,
        "wide": problem.stat_floats == 4,
        "has_grad_lse": problem.grad_lse is not None,
    }


def score_constants(problem: BackwardProblem) -> dict[str, Constant]:
    """What a score and which pairs are seen depend on."""
    p = problem.forward
    return {
        "is_causal": p.is_causal,
        "has_left": p.window[0] >= 0,
        "has_right": p.window[1] >= 0 and not p.is_causal,
        "has_softcap": p.softcap > 0,
        "has_bias": p.bias is not None,
        "bias_type": CPP_TYPES[p.bias.dtype if p.bias else p.dtype],
        "modifies": bool(p.modify),
    }


def compile_part(
    problem: BackwardProblem, columns: int, file: str, entry: str, constants: Mapping[str, Constant], arch: Arch
) -> CompiledKernel:
    """A kernel of cuda/attention with a problem's constants and its own. Raises CompileError with the log."""
    p = problem.forward
    generated = {}
    if p.modify:
        count = len(p.numbers)
        numbers = (
            f"struct alignas(8) ScoreNumbers {{\n  float number[{count}];\n}};" if count else "struct ScoreNumbers {};"
        )
        generated["attention/backward_modification.cuh"] = _MODIFICATION.format(numbers, p.modify, problem.slope)
    return compile_rung(
        f"attention/{file}", {**common_constants(problem, columns), **constants}, entry, arch.name, generated=generated
    )


def grid_of(problem: BackwardProblem, of_q: bool, rows: int) -> tuple[int, int, int]:
    """The blocks of `rows` rows (RowPlace in cuda/attention/backward_args.cuh)."""
    p = problem.forward
    heads = p.heads_q if of_q else p.heads_kv
    if p.totals is None:
        return heads * p.batch, ceil_div(p.seq_q if of_q else p.seq_k, rows), 1
    return heads, p.batch + ceil_div(p.totals[0] if of_q else p.totals[1], rows), 1


def _not_by_groups(config: BackwardConfig, whole: bool) -> str | None:
    """Why warpgroups of 64 rows cannot take the config; None if they can. `whole`: whether each has all columns."""
    if config.columns % 64:
        return f"panels of wgmma are 64 columns wide; {config.columns} is not a multiple of 64"
    for tile in (config.keys, *([config.queries] if config.queries is not None else [])):
        groups = tile.warps // tile.along
        if tile.rows != 16 * groups or groups % 4:
            return f"{tile.rows} rows are not 64 for each warpgroup of {tile.warps} warps by {tile.along}"
        if tile.cols % 64 or (config.columns // (1 if whole else tile.along)) % 64:
            return f"{tile.cols} columns, or {config.columns} by {tile.along}, are not whole panels of 64"
    if config.sums and config.sums != config.keys.cols // 16:
        return (
            f"sums {config.sums}: warpgroups have 64 of {config.keys.cols} queries each, {config.keys.cols // 16} warps"
        )
    return None


def _not_produced(config: BackwardConfig, rung: BackwardRung) -> str | None:
    """Why a warpgroup of its own cannot copy for the config; None if it can."""
    if not rung.apart and config.apart:
        return "its walk makes all gradients"
    for tile in (config.keys, *([config.queries] if config.queries is not None else [])):
        if tile.warps != 8:
            return f"tile {tile}: two warpgroups multiply"
        along = 2 if rung.apart and tile is config.keys and not config.apart else 1
        if tile.along != along or (rung.apart and tile.cols != 64):
            columns = " by 64 columns" if rung.apart else ""
            return f"tile {tile}: {along} of two warpgroups multiplies the same rows{columns}"
    if config.ordered and not rung.writes:
        return "additions in order are made by the warpgroup that copies"
    return None


@dataclass(frozen=True)
class BackwardRung:
    """One rung of the backward ladder."""

    id: str
    teaches: str
    """One line: what is new against the rung below, and what should move because of it."""
    sums: bool | None
    """Whether its walks by keys make dQ too; None: as a config says."""
    defaults: tuple[BackwardConfig, ...]
    """For each d_head, the best first; the first that fits the GPU is taken."""
    least_capability: tuple[int, int] = (8, 0)
    wgmma: bool = False
    """Whether its walks multiply by Hopper's wgmma (attention/backward_groups.cuh)."""
    produced: bool = False
    """Whether a warpgroup more only copies, by TMA (attention/backward_producer.cuh)."""
    writes: bool = False
    """Whether it also adds dQ to its sums, by bulk copies."""
    apart: bool = False
    """Whether each gradient has a walk of its own (attention/backward_apart.cuh)."""
    planned: tuple[int, ...] = D_HEADS
    """The d_heads at which a plan takes it by itself: those at which it was measured to be the fastest."""
    planned_full: tuple[int, ...] = ()
    """Those at which it was so only where no mask bounds a query's last key, or lengths are packed."""
    planned_same: tuple[int, ...] | None = None
    """Those for gradients of the same bits at every run; None: as `planned`."""

    def __str__(self) -> str:
        return self.id

    def is_planned(self, problem: BackwardProblem, deterministic: bool) -> bool:
        """Whether a plan takes it for the problem where it can."""
        p = problem.forward
        if deterministic and self.planned_same is not None:
            return p.d_head in self.planned_same
        if p.d_v:  # only walks apart take them; the others, whose products are fewer, take them padded
            return self.apart and max(p.d_head, p.d_v) in self.planned
        full = p.totals is not None or not (p.is_causal or p.window[1] >= 0)
        return p.d_head in self.planned or (full and p.d_head in self.planned_full)

    def shared_bytes(self, problem: BackwardProblem, walk: Walk) -> int:
        """Dynamic shared memory of a block; barriers (Signals in attention/backward_producer.cuh) included."""
        if self.apart:
            return self._apart_bytes(problem, walk, self.second_stages(problem, walk))
        own = 80 + 32 * walk.tile.stages if self.produced else 0
        own += walk.shared_bytes(problem)
        return own + self.writers(problem, walk) * walk.sums_bytes

    def writers(self, problem: BackwardProblem, walk: Walk) -> int:
        """Threads that add dQ by bulk copies, each with a tile of it: two, or one where shared memory has no room."""
        if not self.writes:
            return 0
        rest = walk.shared_bytes(problem) + 80 + 32 * walk.tile.stages
        return 2 if rest + 2 * walk.sums_bytes <= _SHARED_ON_HOPPER else 1

    @property
    def turned(self) -> bool:
        """Whether a bound to the right has blocks run from the last rows to the first: in order the next keys add
        before, and by queries the last have the most keys."""
        return self.writes or self.apart

    @staticmethod
    def _apart_bytes(problem: BackwardProblem, walk: Walk, stages_2: int) -> int:
        """ApartWalk::shared_bytes in cuda/attention/backward_apart.cuh."""
        tile, row_bytes, v_bytes = walk.tile, 2 * walk.columns, 2 * (problem.forward.d_v or walk.columns)
        if walk.makes_1 and walk.makes_2:  # HalvesWalk::shared_bytes in cuda/attention/backward_halves.cuh
            return row_bytes * (2 * tile.rows + 4 * tile.cols) + 8 * problem.stat_floats * tile.cols + 16384 + 112
        stats = 2 * 4 * problem.stat_floats * tile.cols if walk.by_keys else 0
        first, second = tile.rows + 2 * tile.cols, tile.rows * walk.makes_1 + stages_2 * tile.cols
        return row_bytes * first + v_bytes * second + stats + 8 * (2 + 2 * (2 + stages_2))

    def second_stages(self, problem: BackwardProblem, walk: Walk) -> int:
        """Tiles of the second operand that passes: two, or the one that shared memory has room for."""
        return 2 if self._apart_bytes(problem, walk, 2) <= _SHARED_ON_HOPPER else 1

    @property
    def files(self) -> tuple[str, ...]:
        """Where its walks' kernels stand, in cuda/attention."""
        return tuple(sorted({self.file(walk) for config in self.defaults for walk in walks_of(config)}))

    def file(self, walk: Walk) -> str:
        """Where a walk's kernel stands."""
        if self.apart:
            return "backward_halves.cuh" if walk.makes_1 and walk.makes_2 else "backward_apart.cuh"
        if self.produced:
            return "backward_producer.cuh"
        return "backward_hopper.cuh" if self.wgmma else "backward.cuh"

    def default(self, problem: BackwardProblem, arch: Arch, deterministic: bool = False) -> BackwardConfig:
        """The best config that can run the problem on the architecture.

        Raises ConfigRejected with every candidate's reason when there is none.
        """
        reasons = []
        p = problem.forward
        short = self.apart and p.is_causal and max(p.seq_q, p.seq_k) <= _SHORT
        for config in sorted(self.defaults, key=lambda one: short and one.apart):
            if config.d_head == problem.forward.d_head and (config.deterministic or not deterministic):
                if (reason := self.why_not(problem, config, arch)) is None:
                    return config
                reasons.append(reason)
        told = "; ".join(dict.fromkeys(reasons)) or "it has no config for that"
        how = f"d_head={problem.forward.d_head}{', deterministic,' if deterministic else ''}"
        raise ConfigRejected(f"{self.id} cannot run {how} on {arch}: {told}.")

    def why_not(self, problem: BackwardProblem, config: BackwardConfig, arch: Arch) -> str | None:
        """None when the config can run the problem on the architecture; else the reason, with the numbers."""
        p = problem.forward
        if arch.compute_capability < self.least_capability:
            need, have = ("{}.{}".format(*cc) for cc in (self.least_capability, arch.compute_capability))
            return f"{self.id} needs compute capability {need}; {arch} has {have}"
        if self.wgmma and arch.name != "sm_90a":
            return f"{self.id} multiplies by wgmma, which only sm_90a has; this is {arch}"
        reason = config.why_not() or (_not_by_groups(config, self.apart) if self.wgmma else None)
        if reason := reason or (_not_produced(config, self) if self.produced else None):
            return f"{self.id} cannot take {config}: {reason}"
        if self.sums is not None and self.sums != bool(config.sums):
            return f"{self.id} cannot take {config}: it makes dQ {'in the walk by keys' if self.sums else 'by queries'}"
        if self.apart and not config.apart and (p.totals is not None or p.softcap or p.modify):
            return f"{config} is for batches of one length, whose scores have one slope"
        if config.d_head != p.d_head:
            return f"{config} is for d_head={config.d_head}; the operands have {p.d_head}"
        if p.d_v and not (self.apart and config.apart and not config.wider and p.d_v % 64 == 0):
            return f"{config} of {self.id} takes values of {p.d_head} columns; these have {p.d_v}"
        for walk in walks_of(config):
            need_bytes = self.shared_bytes(problem, walk)
            if need_bytes > arch.shared_per_block:
                return (
                    f"{config} needs {need_bytes} B of shared memory per block for {walk.name}; {arch} allows "
                    f"{arch.shared_per_block}"
                )
            tiles = grid_of(problem, not walk.by_keys, walk.tile.rows)[1]
            if tiles > _TILES_LIMIT:
                return f"{walk.name} takes {tiles} tiles of {walk.tile.rows} rows; a grid holds {_TILES_LIMIT}"
        if (tiles := grid_of(problem, True, ROW_RUN)[1]) > _TILES_LIMIT:
            return f"{tiles} runs of {ROW_RUN} queries; a grid holds {_TILES_LIMIT}"
        operands = {"q": p.q, "k": p.k, "v": p.v, "out": p.out, "grad": problem.grad}
        operands |= {"dq": problem.dq, "dk": problem.dk, "dv": problem.dv}
        for name, rows in operands.items():
            strides = (rows.batch_stride, rows.head_stride, rows.row_stride)
            if self.produced and name in ("q", "k", "v", "grad"):
                for stride in strides:
                    if not LEAST_STRIDE <= 2 * stride < STRIDES_END:
                        return f"a stride of {name} is {2 * stride} bytes; TMA takes {LEAST_STRIDE} to 2^40 - 1"
            if rows.vector_bytes < 16:
                return (
                    f"rows of {name} must start at multiples of 16 bytes; base and strides ({rows.batch_stride}, "
                    f"{rows.head_stride}, {rows.row_stride} elements) allow {rows.vector_bytes}"
                )
        return None


def threads_of(rung: BackwardRung, tile: Tile) -> int:
    """Threads of a block of a walk."""
    return 32 * tile.warps + (128 if rung.produced else 0)


def section_of(problem: BackwardProblem, walk: Walk, heads: int) -> int:
    """How many of `heads` heads run together, a divisor."""
    p = problem.forward
    rows_q, rows_k = p.totals or (p.seq_q, p.seq_k)
    passing = rows_q * p.group * (4 if walk.sums else 2) if walk.by_keys else rows_k * 2
    most = max(SECTION_BYTES // max(passing * (p.d_head + p.columns("v")), 1), -(-heads // _TILES_LIMIT), 1)
    return max(one for one in range(1, min(heads, most) + 1) if heads % one == 0)


def constants_of(problem: BackwardProblem, rung: BackwardRung, walk: Walk) -> dict[str, Constant]:
    """What a walk's kernel is compiled for: its tile, and what of the problem selects a path."""
    p, tile = problem.forward, walk.tile
    rows_q, rows_k = (tile.cols, tile.rows) if walk.by_keys else (tile.rows, tile.cols)
    varlen = p.totals is not None
    return {
        "by_keys": walk.by_keys,
        "rows": tile.rows,
        "cols": tile.cols,
        "n_warps": tile.warps,
        "along": tile.along,
        "slice": 64 if rung.wgmma else slice_of(walk.columns, tile.along),
        "threads": threads_of(rung, tile),
        "min_blocks": tile.min_blocks,
        "stages": tile.stages,
        "buffer": tile.buffer,
        "makes_1": walk.makes_1,
        "makes_2": walk.makes_2,
        "sums": bool(walk.sums),
        "ordered": walk.ordered,
        "backwards": (not walk.by_keys or walk.ordered) and rung.turned and (p.is_causal or p.window[1] >= 0),
        "writes": rung.writers(problem, walk),
        "stages_2": rung.second_stages(problem, walk) if rung.apart else 0,
        "sums_rows": tile.cols,
        "sums_along": walk.sums or 1,
        "edge_q": varlen or p.seq_q % rows_q != 0,
        "edge_k": varlen or p.seq_k % rows_k != 0,
        **score_constants(problem),
    }


def workspace_rows(problem: BackwardProblem) -> int:
    """Rows of statistics and sums of all heads."""
    p = problem.forward
    if p.totals is None:
        return p.batch * p.heads_q * ceil_div(p.seq_q, ROW_RUN) * ROW_RUN
    return p.heads_q * ((p.totals[0] + p.batch * ROW_RUN) // ROW_RUN * ROW_RUN)


def _padded_map(problem: AttentionProblem, name: str, box_rows: int) -> TensorMap:
    """As map_of, for panels of 64 columns of which the last is not whole: a box is one panel of a tile."""
    whole = map_of(problem, name, box_rows)
    _, length, _, heads, batch = whole.shape
    return replace(
        whole, shape=(problem.d_head, length, 1, heads, batch), box=(64, box_rows, 1, 1, 1), swizzle=128,
    )  # fmt: skip


@dataclass(frozen=True)
class WalkKernel:
    """A walk as a kernel of a program."""

    rung: BackwardRung
    config: BackwardConfig
    walk: Walk

    def compile(self, problem: BackwardProblem, arch: Arch) -> CompiledKernel:
        """Raises ConfigRejected with the reason, CompileError with the log."""
        if reason := self.rung.why_not(problem, self.config, arch):
            raise ConfigRejected(f"{reason}.")
        constants = constants_of(problem, self.rung, self.walk)
        return compile_part(problem, self.walk.columns, self.rung.file(self.walk), "backward", constants, arch)

    def shape(self, problem: BackwardProblem) -> Launch:
        tile = self.walk.tile
        heads, tiles, _ = grid_of(problem, not self.walk.by_keys, tile.rows)
        section = section_of(problem, self.walk, heads)
        grid, block = (section, tiles, heads // section), (threads_of(self.rung, tile), 1, 1)
        return Launch(grid, block, b"", self.rung.shared_bytes(problem, self.walk))

    def params(self, problem: BackwardProblem, at: BackwardAddresses) -> Template:
        """BackwardArgs; before them, where a warpgroup copies, tensor maps of Q, K, V and grad."""
        if not self.rung.produced:
            return pack_args(problem, at)
        tile, p = self.walk.tile, problem.forward
        of_q, of_k = (tile.cols, tile.rows) if self.walk.by_keys else (tile.rows, tile.cols)
        one = map_of if p.d_head == self.walk.columns else _padded_map
        maps = [
            (one(p, "q", of_q), at.q), (one(p, "k", of_k), at.k), (one(p, "v", of_k), at.v),
            (one(replace(p, out=problem.grad), "out", of_q), at.grad),
        ]  # fmt: skip
        return pack_maps(maps) + pack_args(problem, at)


@dataclass(frozen=True)
class RowsKernel:
    """What the gradients need of each query, and what begins as 0."""

    clears: bool
    """Whether sums of dQ begin as 0."""
    turns: bool
    """Whether those who add take turns."""
    columns: int

    def compile(self, problem: BackwardProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {"clears": self.clears, "turns": self.turns}
        if problem.stat_floats == 4:
            constants |= {"edge_q": False, "edge_k": False, **score_constants(problem)}
        return compile_part(problem, self.columns, "backward_rows.cuh", "backward_rows", constants, arch)

    def shape(self, problem: BackwardProblem) -> Launch:
        return Launch(grid_of(problem, True, ROW_RUN), (256, 1, 1), b"")


@dataclass(frozen=True)
class FinishKernel:
    """dQ from its sums."""

    config: BackwardConfig
    stored: bool
    """Whether the first who adds to a sum stores, and none began as 0."""

    def compile(self, problem: BackwardProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        tile = self.config.keys
        constants: dict[str, Constant] = {
            "n_warps": tile.warps, "threads": 32 * tile.warps, "sums_rows": tile.cols, "sums_along": self.config.sums,
            "stored": self.stored,
        }  # fmt: skip
        return compile_part(problem, self.config.columns, "backward_finish.cuh", "backward_finish", constants, arch)

    def shape(self, problem: BackwardProblem) -> Launch:
        tile = self.config.keys
        shared = 2 * tile.cols * self.config.columns
        return Launch(grid_of(problem, True, tile.cols), (32 * tile.warps, 1, 1), b"", shared)
