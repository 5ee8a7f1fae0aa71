"""A backward rung: data and why_not."""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays.dtypes import ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch, find_arch
from .backward_config import ROW_RUN, BackwardConfig, Walk, walks_of
from .backward_problem import BackwardProblem
from .config import D_HEADS
from .hopper import LEAST_STRIDE, STRIDES_END
from .problem import AttentionProblem

TILES_LIMIT = 65535
SMS = 132
"""Of the GPUs on which choices that depend on the number of blocks were measured."""
_COLUMNS_OF_BOTH = 320
"""Of dK and dV together, that the registers of a walk hold next to a tile of scores."""
_SHARED_ON_HOPPER = find_arch("sm_90a").shared_per_block
_SHORT = 2048
"""Rows up to which dV and dK of a causal mask are made by one walk rather than apart: tiles that it hides by half weigh
more there, and blocks of 64 keys have fewer of them. Measured at 512, 1024 (faster), 4096 (the same) and 16384."""


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
        shares = rung.apart and tile is config.keys and not config.apart and tile.along == 2
        if (tile.along != 1 and not shares) or (rung.apart and tile.cols != 64):
            columns = " by 64 columns" if rung.apart else ""
            return f"tile {tile}: each of two warpgroups multiplies rows of its own{columns}"
    if config.ordered and not rung.writes:
        return "additions in order are made by the warpgroup that copies"
    return None


def _not_both(problem: BackwardProblem, config: BackwardConfig) -> str | None:
    """Why one walk cannot make dK and dV of the problem; None if it can."""
    p = problem.forward
    if p.softcap or p.modify:
        return "scores have slopes of their own, which take the registers of a gradient"
    if config.keys.along == 2:
        return "packed lengths are for walks apart, or of both gradients" if p.totals is not None else None
    columns = p.d_head + p.columns("v")
    if columns > _COLUMNS_OF_BOTH:
        return f"registers hold {_COLUMNS_OF_BOTH} columns of dK and dV; these are {columns}"
    return None


def _alone_pays(p: AttentionProblem) -> bool:
    """Return whether one block for each head of keys was measured to be faster than walks of several.

    On an H200, compared with b04: up to 64 keys 1.4 to 6 times as fast with 64 queries of each head of keys, from 8
    heads to 6144, and 1.0 to 2.6 with 128; with 256 only d_head 32 is. Up to 128 keys, which take an SM's registers,
    1.0 to 1.8 up to two blocks per SM, then 0.8 to 1.0, but at d_head 32.
    """
    narrow = p.d_head == 32
    if p.seq_q * p.group > (256 if narrow else 128):
        return False
    return narrow or p.seq_k <= 64 or p.batch * p.heads_kv <= 2 * SMS


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
    alone: bool = False
    """Whether a block has all keys of its head, so that its walk makes everything, and all queries' statistics."""
    planned: tuple[int, ...] = D_HEADS
    """The d_heads at which a plan takes it by itself: those at which it was measured to be the fastest."""
    planned_full: tuple[int, ...] = ()
    """Those at which it was so only where no mask bounds a query's last key, or lengths are packed."""
    planned_same: tuple[int, ...] | None = None
    """Those for gradients of the same bits at every run; None: as `planned`."""

    def __str__(self) -> str:
        return self.id

    def is_planned(self, problem: BackwardProblem, deterministic: bool) -> bool:
        """Return whether a plan takes it for the problem where it can."""
        p = problem.forward
        if self.alone and not _alone_pays(p):
            return False
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
        """Return whether a bound to the right has blocks run from the last rows to the first: in order the next keys
        add before, and by queries the last have the most keys."""
        return self.writes or self.apart

    @staticmethod
    def _apart_bytes(problem: BackwardProblem, walk: Walk, stages_2: int) -> int:
        """ApartWalk::shared_bytes in cuda/attention/backward_apart.cuh."""
        tile, row_bytes, v_bytes = walk.tile, 2 * walk.columns, 2 * (problem.forward.d_v or walk.columns)
        if tile.along == 2:  # HalvesWalk::shared_bytes in cuda/attention/backward_halves.cuh
            tiles = 2 * row_bytes * (tile.rows + tile.cols) + 2 * v_bytes * tile.cols
            return tiles + 8 * problem.stat_floats * tile.cols + 16384 + 112
        stats = tile.stages * 4 * problem.stat_floats * tile.cols if walk.by_keys else 0
        first, second = tile.rows + tile.stages * tile.cols, tile.rows * walk.makes_1 + stages_2 * tile.cols
        return row_bytes * first + v_bytes * second + stats + 8 * (2 + 2 * (tile.stages + stages_2))

    def second_stages(self, problem: BackwardProblem, walk: Walk) -> int:
        """Tiles of the second operand that passes: two, or the one that shared memory has room for."""
        return 2 if self._apart_bytes(problem, walk, 2) <= _SHARED_ON_HOPPER else 1

    @property
    def files(self) -> tuple[str, ...]:
        """Return where its walks' kernels stand, in cuda/attention."""
        return tuple(sorted({self.file(walk) for config in self.defaults for walk in walks_of(config)}))

    def file(self, walk: Walk) -> str:
        """Return where a walk's kernel stands."""
        if self.apart:
            return "backward_halves.cuh" if walk.tile.along == 2 else "backward_apart.cuh"
        if self.produced:
            return "backward_producer.cuh"
        return "backward_hopper.cuh" if self.wgmma else "backward.cuh"

    def default(self, problem: BackwardProblem, arch: Arch, deterministic: bool = False) -> BackwardConfig:
        """The best config that can run the problem on the architecture.

        Raises ConfigRejected with every candidate's reason when there is none.
        """
        reasons = []
        p = problem.forward
        short = self.apart and p.is_causal and max(p.seq_q, p.seq_k) <= _SHORT and not p.d_v
        packed = p.totals is not None  # walks of both gradients were measured for batches of one length
        for config in sorted(self.defaults, key=lambda one: one.apart if short else packed and not one.apart):
            if config.d_head == problem.forward.d_head and (config.deterministic or not deterministic):
                if (reason := self.why_not(problem, config, arch)) is None:
                    return config
                reasons.append(reason)
        told = "; ".join(dict.fromkeys(reasons)) or "it has no config for that"
        how = f"d_head={problem.forward.d_head}{', deterministic,' if deterministic else ''}"
        raise ConfigRejected(f"{self.id} cannot run {how} on {arch}: {told}.")

    def why_not(self, problem: BackwardProblem, config: BackwardConfig, arch: Arch) -> str | None:
        """Return None when the config can run the problem on the architecture; else the reason, with the numbers."""
        p = problem.forward
        if arch.compute_capability < self.least_capability:
            need, have = ("{}.{}".format(*cc) for cc in (self.least_capability, arch.compute_capability))
            return f"{self.id} needs compute capability {need}; {arch} has {have}"
        if self.wgmma and arch.name != "sm_90a":
            return f"{self.id} multiplies by wgmma, which only sm_90a has; this is {arch}"
        reason = config.why_not() or (_not_by_groups(config, self.apart) if self.wgmma else None)
        if reason := reason or (_not_produced(config, self) if self.produced else None):
            return f"{self.id} cannot take {config}: {reason}"
        if config.wider and not self.produced:
            return f"{self.id} cannot take {config}: TMA alone fills the columns after a row with zeros"
        if self.alone and config.apart:
            return f"{self.id} cannot take {config}: its walk makes all gradients"
        if self.sums is not None and self.sums != bool(config.sums):
            return f"{self.id} cannot take {config}: it makes dQ {'in the walk by keys' if self.sums else 'by queries'}"
        if self.apart and not config.apart and (reason := _not_both(problem, config)):
            return f"{self.id} cannot take {config}: {reason}"
        if config.d_head != p.d_head:
            return f"{config} is for d_head={config.d_head}; the operands have {p.d_head}"
        if self.alone and (p.totals is not None or p.seq_k > config.keys.rows):
            keys = "lengths are packed" if p.totals is not None else f"there are {p.seq_k}"
            return f"{config} of {self.id} has all keys in one tile; {keys}"
        narrower = config.apart or config.keys.along == 1 or p.d_v <= p.d_head
        takes = self.apart and not config.wider and p.d_v % 64 == 0 and narrower
        if p.d_v and not takes:
            return f"{config} of {self.id} takes values of {p.d_head} columns; these have {p.d_v}"
        for walk in walks_of(config):
            need_bytes = self.shared_bytes(problem, walk)
            if need_bytes > arch.shared_per_block:
                return (
                    f"{config} needs {need_bytes} B of shared memory per block for {walk.name}; {arch} allows "
                    f"{arch.shared_per_block}"
                )
            tiles = grid_of(problem, not walk.by_keys, walk.tile.rows)[1]
            if tiles > TILES_LIMIT:
                return f"{walk.name} takes {tiles} tiles of {walk.tile.rows} rows; a grid holds {TILES_LIMIT}"
        if (tiles := grid_of(problem, True, ROW_RUN)[1]) > TILES_LIMIT:
            return f"{tiles} runs of {ROW_RUN} queries; a grid holds {TILES_LIMIT}"
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
