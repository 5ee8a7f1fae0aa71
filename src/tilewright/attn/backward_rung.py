"""What a backward rung is: data, why_not, its walks and the parameters of their kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch, find_arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_maps, pack_numbers
from ..jit.source import Constant
from ..jit.tensor_map import TensorMap
from .backward_problem import BackwardProblem
from .hopper import LEAST_STRIDE, STRIDES_END, map_of
from .problem import AttentionProblem, BiasRows
from .rung import D_HEADS

SECTION_BYTES = 1 << 24
"""What the heads of a section read and add to, which is to stay in the L2 (head_of_block)."""
ROW_RUN = 128
"""row_run in cuda/attention/backward_args.cuh: statistics of an entry's queries fill whole runs."""
_TILES_LIMIT = 65535
_SHARED_ON_HOPPER = find_arch("sm_90a").shared_per_block
_TILE = r"(\d+)x(\d+)/(\d+)(?:x(\d+))?(\+buffer)?(?:\+(\d+)_blocks)?(?:\+(\d+)_stages)?"
_GRAMMAR = re.compile(rf"d(\d+)(?: in (\d+))?: (apart )?keys {_TILE}(?:, queries {_TILE}|, sums (\d+)( in order)?)")
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Tile:
    """A block of `warps` warps keeps `rows` rows of two operands; tiles of `cols` rows of two others pass."""

    rows: int
    cols: int
    warps: int
    along: int = 1
    """Warps that share rows: each makes a part of their scores, and then sums for a part of their d_head columns."""
    buffer: bool = False
    """Whether two sets of fragments take turns: one is loaded while the other is multiplied."""
    min_blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""
    stages: int = 2
    """Tiles of what passes that shared memory holds."""

    def __str__(self) -> str:
        shared = f"x{self.along}" if self.along > 1 else ""
        text = f"{self.rows}x{self.cols}/{self.warps // self.along}{shared}" + "+buffer" * self.buffer
        text += f"+{self.min_blocks}_blocks" if self.min_blocks > 1 else ""
        return text + (f"+{self.stages}_stages" if self.stages != 2 else "")

    @staticmethod
    def read(
        rows: str, cols: str, warps: str, along: str | None, buffer: str | None, blocks: str | None, stages: str | None
    ) -> Tile:
        """The tile of _TILE's groups."""
        shared = int(along or 1)
        return Tile(int(rows), int(cols), int(warps) * shared, shared, bool(buffer), int(blocks or 1), int(stages or 2))

    def why_not(self) -> str | None:
        """None when a kernel can be made with it, or the reason."""
        if self.warps not in (1, 2, 4, 8, 16):
            return f"{self.warps} warps must be a power of two up to 16"
        if self.along not in (1, 2, 4) or self.warps % self.along:
            return f"{self.warps} warps cannot share rows by {self.along}"
        apart = self.warps // self.along
        if self.rows < 1 or self.rows % (16 * apart):
            return f"{self.rows} rows must be a multiple of {16 * apart}: 16 for each of {apart} warps"
        if self.cols not in (16, 32, 64, 128):
            return f"{self.cols} columns must be 16, 32, 64 or 128"
        if self.cols % (16 * self.along) or (self.along > 1 and self.cols < 32):
            return f"{self.cols} columns are not whole pieces of 16 for {self.along} warps"
        return None


def slice_of(d_head: int, along: int = 1) -> int:
    """The columns of a slice of a tile (tile/head_tile.cuh), such that `along` warps share whole ones."""
    part = d_head // along
    return 64 if d_head % 64 == 0 and (part % 64 == 0 or part in (16, 32)) else 32


def _shares_columns(d_head: int, by: int, columns: int | None = None) -> bool:
    """Whether `by` warps take d_head columns in pieces that lie whole in slices, or in parts of one."""
    columns = columns or slice_of(d_head, by)
    part = d_head // by
    return d_head % (16 * by) == 0 and (by == 1 or part % columns == 0 or columns % part == 0)


@dataclass(frozen=True)
class BackwardConfig:
    """The tiles of a backward pass: `dD: [apart ]keys ROWSxCOLS/WARPS, queries ROWSxCOLS/WARPS` or `..., sums N`.

    dD in W: rows of D elements lie in tiles W columns wide, whose others are zeros.
    keys: a block keeps ROWS keys, and tiles of COLS queries pass. queries: the walk that makes dQ; `sums N` stands for
    dQ made in the walk by keys, by warps of which N share its rows, `sums N in order` for that with additions in a
    fixed order. apart: dV and dK are made by a walk each, since their accumulators do not fit registers together.
    """

    d_head: int
    keys: Tile
    queries: Tile | None = None
    sums: int = 0
    apart: bool = False
    ordered: bool = False
    """Whether blocks of keys add to dQ in their order, each waiting for the one before."""
    wider: int = 0
    """The columns of a tile where they are more than d_head."""

    @property
    def columns(self) -> int:
        """Of a tile in shared memory."""
        return self.wider or self.d_head

    def __str__(self) -> str:
        text = f"d{self.d_head}{f' in {self.wider}' * bool(self.wider)}: {'apart ' * self.apart}keys {self.keys}"
        return text + (
            f", queries {self.queries}"
            if self.queries is not None
            else f", sums {self.sums}{' in order' * self.ordered}"
        )

    @staticmethod
    def parse(text: str) -> BackwardConfig:
        """The config that str() wrote. Raises ConfigRejected for another text."""
        match = _GRAMMAR.fullmatch(text.strip())
        if match is None:
            raise ConfigRejected(
                f"{text!r} is not a backward config. One reads d128: keys 128x64/8, queries 128x64/8 or "
                "d128: keys 128x64/8, sums 4"
            )
        d, wider, apart, *rest = match.groups()
        queries = Tile.read(*rest[7:14]) if rest[7] else None
        order = bool(apart), bool(rest[15]), int(wider or 0)
        return BackwardConfig(int(d), Tile.read(*rest[:7]), queries, int(rest[14] or 0), *order)

    @property
    def deterministic(self) -> bool:
        """Whether gradients are the same bits at every run: blocks share no sum, or add to it in a fixed order."""
        return not self.sums or self.ordered

    def to_dict(self) -> dict[str, Any]:
        return {"attention_backward": str(self)}

    def why_not(self) -> str | None:
        """None when kernels can be made with it, or the reason."""
        if self.d_head not in D_HEADS:
            return f"d_head={self.d_head} is not one of {', '.join(map(str, D_HEADS))}"
        if self.wider and self.wider <= self.d_head:
            return f"tiles {self.wider} columns wide are for rows of fewer; d_head={self.d_head}"
        for tile in (self.keys, *([self.queries] if self.queries is not None else [])):
            if reason := tile.why_not():
                return reason
            if not _shares_columns(self.columns, tile.along):
                return f"{self.columns} columns are not shared evenly by {tile.along} warps"
        if self.queries is not None:
            if ROW_RUN % self.queries.rows:
                return f"{self.queries.rows} queries must divide {ROW_RUN}"
            return "sums are for dQ made in the walk by keys: omit queries" if self.sums or self.ordered else None
        tile, along = self.keys, self.sums
        if along not in (1, 2, 4, 8) or tile.warps % along or tile.cols % (16 * along):
            return f"sums {along}: {tile.cols} queries are not whole pieces of 16 for {along} of {tile.warps} warps"
        if not _shares_columns(self.columns, tile.warps // along, slice_of(self.columns, tile.along)):
            return f"sums {along}: {self.columns} columns are not shared evenly by {tile.warps // along} warps"
        if tile.cols < 32:
            return f"{tile.cols} columns; dS needs 32 or more a row in shared memory"
        return None


@dataclass(frozen=True)
class Walk:
    """One launch of a config: which rows are kept, and which gradients it makes."""

    by_keys: bool
    tile: Tile
    columns: int
    """Of a tile in shared memory."""
    makes_1: bool = True
    """dK by keys, dQ by queries."""
    makes_2: bool = False
    """dV."""
    sums: int = 0
    ordered: bool = False

    @property
    def name(self) -> str:
        made = [*(["dK"] if self.makes_1 else []), *(["dV"] if self.makes_2 else [])] if self.by_keys else ["dQ"]
        return " ".join([*made, *(["dQ sums"] if self.sums else [])])

    @property
    def sums_bytes(self) -> int:
        """A tile of dQ in fp32."""
        return 4 * self.tile.cols * self.columns

    def shared_bytes(self, problem: BackwardProblem) -> int:
        """Dynamic shared memory of a block (Walk::shared_bytes in cuda/attention/backward_walk.cuh)."""
        tile = self.tile
        stats = 4 * problem.stat_floats * tile.cols if self.by_keys else 0
        scores = 4 * tile.rows * tile.cols if self.sums or tile.along > 1 else 0
        return 4 * self.columns * (tile.rows + tile.stages * tile.cols) + tile.stages * stats + scores


def walks_of(config: BackwardConfig) -> tuple[Walk, ...]:
    """The launches of a config that make gradients, in order."""
    keys, columns = config.keys, config.columns
    if config.apart:
        walks = [Walk(True, keys, columns, makes_1=False, makes_2=True)]
        walks += [Walk(True, keys, columns, sums=config.sums, ordered=config.ordered)]
    else:
        walks = [Walk(True, keys, columns, True, True, config.sums, config.ordered)]
    if config.queries is not None:
        walks.append(Walk(False, config.queries, columns))
    return tuple(walks)


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
    planned_same: tuple[int, ...] | None = None
    """The same for gradients of the same bits at every run; None: as `planned`."""

    def __str__(self) -> str:
        return self.id

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
        tile, row_bytes = walk.tile, 2 * walk.columns
        if walk.makes_1 and walk.makes_2:  # HalvesWalk::shared_bytes in cuda/attention/backward_halves.cuh
            return row_bytes * (2 * tile.rows + 4 * tile.cols) + 8 * problem.stat_floats * tile.cols + 16384 + 112
        stats = 2 * 4 * problem.stat_floats * tile.cols if walk.by_keys else 0
        kept = tile.rows * (2 if walk.makes_1 else 1)
        return row_bytes * (kept + (2 + stages_2) * tile.cols) + stats + 8 * (2 + 2 * (2 + stages_2))

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
        for config in self.defaults:
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
        for walk in walks_of(config):
            need_bytes = self.shared_bytes(problem, walk)
            if need_bytes > arch.shared_per_block:
                return (
                    f"{config} needs {need_bytes} B of shared memory a block for {walk.name}; {arch} allows "
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
    passing = rows_q * p.group * (8 if walk.sums else 4) if walk.by_keys else rows_k * 4
    most = max(SECTION_BYTES // max(passing * p.d_head, 1), -(-heads // _TILES_LIMIT), 1)
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
            (one(replace(p, q=problem.grad), "q", of_q), at.grad),
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
