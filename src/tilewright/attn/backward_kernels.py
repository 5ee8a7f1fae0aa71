"""The kernels of attention's gradients: their constants, their grids and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..arrays.dtypes import CPP_TYPES, ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Address, Scalar, Template, pack, pack_maps, pack_numbers
from ..jit.source import Constant
from ..jit.tensor_map import TensorMap
from .backward_config import ROW_RUN, BackwardConfig, Tile, Walk
from .backward_problem import BackwardProblem
from .backward_rung import SMS, TILES_LIMIT, BackwardRung, grid_of
from .config import slice_of
from .hopper import map_of
from .problem import AttentionProblem, BiasRows
from .rung import LOG2_E, modification, score_constants

SECTION_BYTES = 1 << 24
"""What the heads of a section read and add to, which is to stay in the L2 (head_of_block)."""
_MOST_PARTS, _LEAST_TURNS, _HEADS_TOGETHER = 8, 8, 32
"""So many blocks share queries at most, each with at least so many turns; heads that are begun together where their
first tiles have most to do."""


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
    parts: tuple[Address, Address] = (0, 0)
    """Of dK and of dV, where blocks share what passes."""


_ARGS = "<15Q30q4q3Q6i4f2i"
"""BackwardArgs in cuda/attention/backward_args.cuh, after its numbers; a test holds them equal."""


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
        *at.parts, *strides, *problem.lse, *(problem.grad_lse or (0, 0, 0)),
        bias.batch_stride, bias.head_stride, bias.row_stride, bias.col_stride, at.bias, at.starts_q, at.starts_k,
        p.batch, p.heads_q, p.heads_kv, p.group, *(p.totals or (p.seq_q, p.seq_k)), p.scale, p.scale * LOG2_E,
        p.softcap, p.scale / p.softcap if p.softcap else 0.0, *p.window,
    )  # fmt: skip


def common_constants(problem: BackwardProblem, columns: int) -> dict[str, Constant]:
    """Return what all kernels of a problem are compiled for, whose tiles are so many columns wide."""
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


def compile_part(
    problem: BackwardProblem, columns: int, file: str, entry: str, constants: Mapping[str, Constant], arch: Arch
) -> CompiledKernel:
    """A kernel of cuda/attention with a problem's constants and its own. Raises CompileError with the log."""
    p = problem.forward
    generated = {}
    if p.modify:
        functions = modification(len(p.numbers), run=p.modify, slope=problem.slope)
        generated["attention/backward_modification.cuh"] = functions
    return compile_rung(
        f"attention/{file}", {**common_constants(problem, columns), **constants}, entry, arch.name, generated=generated
    )


def threads_of(rung: BackwardRung, tile: Tile) -> int:
    """Threads of a block of a walk."""
    return 32 * tile.warps + (128 if rung.produced else 0)


def parts_of(problem: BackwardProblem, rung: BackwardRung, walk: Walk) -> int:
    """Blocks that share the queries that pass by a tile of keys: several where a GPU's SMs would get less than a block
    each, or less than two of which the first keys' have most to do."""
    if not (rung.produced and walk.by_keys) or (rung.apart and walk.tile.along == 2):
        return 1
    heads, tiles, _ = grid_of(problem, False, walk.tile.rows)
    turns = ceil_div(problem.forward.seq_q, walk.tile.cols) * problem.forward.group
    wanted = SMS * (2 if _is_uneven(problem) else 1)
    parts = 1
    while parts < _MOST_PARTS and heads * tiles * parts < 0.95 * wanted and turns >= 2 * parts * _LEAST_TURNS:
        parts *= 2
    return parts


def _is_uneven(problem: BackwardProblem) -> bool:
    """Return whether the first keys are seen by more queries than the last."""
    p = problem.forward
    return p.is_causal or p.window[1] >= 0


def section_of(problem: BackwardProblem, walk: Walk, heads: int) -> int:
    """Return how many of `heads` heads run together, a divisor. Where tiles are few and the first of a head have most
    to do, those of many heads are begun before the others of any: the last to end is then a short one."""
    p = problem.forward
    rows_q, rows_k = p.totals or (p.seq_q, p.seq_k)
    passing = rows_q * p.group * (4 if walk.sums else 2) if walk.by_keys else rows_k * 2
    most = max(SECTION_BYTES // max(passing * (p.d_head + p.columns("v")), 1), -(-heads // TILES_LIMIT), 1)
    if walk.by_keys and _is_uneven(problem) and heads * grid_of(problem, False, walk.tile.rows)[1] <= 8 * SMS:
        most = max(most, _HEADS_TOGETHER)
    return max(one for one in range(1, min(heads, most) + 1) if heads % one == 0)


def constants_of(problem: BackwardProblem, rung: BackwardRung, walk: Walk) -> dict[str, Constant]:
    """Return what a walk's kernel is compiled for: its tile, and what of the problem selects a path."""
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
        "ordered": walk.ordered and not rung.alone,  # nobody else adds
        "alone": rung.alone,
        "parts": parts_of(problem, rung, walk),
        "backwards": (not walk.by_keys or walk.ordered) and rung.turned and (p.is_causal or p.window[1] >= 0),
        "writes": rung.writers(problem, walk),
        "stages_2": rung.second_stages(problem, walk) if rung.apart else 0,
        "sums_rows": tile.cols,
        "sums_along": walk.sums or 1,
        "edge_q": varlen or p.seq_q % rows_q != 0,
        "edge_k": varlen or p.seq_k % rows_k != 0,
        **score_constants(problem.forward),
    }


def workspace_rows(problem: BackwardProblem) -> int:
    """Rows of statistics and sums of all heads."""
    p = problem.forward
    if p.totals is None:
        return p.batch * p.heads_q * ceil_div(p.seq_q, ROW_RUN) * ROW_RUN
    return p.heads_q * ((p.totals[0] + p.batch * ROW_RUN) // ROW_RUN * ROW_RUN)


def _padded_map(problem: AttentionProblem, name: str, box_rows: int) -> TensorMap:
    """Do as map_of, for panels of 64 columns of which the last is not whole: a box is one panel of a tile."""
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
        parts = parts_of(problem, self.rung, self.walk)
        grid, block = (section * parts, tiles, heads // section), (threads_of(self.rung, tile), 1, 1)
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
    """The kernel that makes what gradients need of each query, and the zeros they begin with."""

    clears: bool
    """Whether sums of dQ begin as 0."""
    turns: bool
    """Whether those who add take turns."""
    columns: int

    def compile(self, problem: BackwardProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {"clears": self.clears, "turns": self.turns}
        if problem.stat_floats == 4:
            constants |= {"edge_q": False, "edge_k": False, **score_constants(problem.forward)}
        return compile_part(problem, self.columns, "backward_rows.cuh", "backward_rows", constants, arch)

    def shape(self, problem: BackwardProblem) -> Launch:
        return Launch(grid_of(problem, True, ROW_RUN), (256, 1, 1), b"")


@dataclass(frozen=True)
class PartsKernel:
    """dK and dV from the parts of blocks that shared what passed."""

    parts: int

    def compile(self, problem: BackwardProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {"parts": self.parts, "threads": 256}
        columns = problem.forward.d_head
        return compile_part(problem, columns, "backward_parts.cuh", "backward_parts", constants, arch)

    def shape(self, problem: BackwardProblem) -> Launch:
        p = problem.forward
        keys, heads = (p.totals[1], p.heads_kv) if p.totals else (p.seq_k, p.heads_kv * p.batch)
        columns = max(p.d_head, p.columns("v"))
        return Launch((ceil_div(keys * columns // 8, 256), heads, 2), (256, 1, 1), b"")


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
