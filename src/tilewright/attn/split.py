"""Split attention: few queries on many keys, whose keys are shared by blocks and by warps of a block.

Two launches: "attention" makes a result, a maximum and a sum for each part of the keys, "merge" adds them in a fixed
order. With one part there is one launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..arrays.dtypes import ceil_div
from ..errors import ConfigRejected
from ..gpus import Arch
from ..jit import CompiledKernel, Launch
from ..jit.params import Address, Template, pack
from ..jit.source import Constant
from ..run.program import Workspace
from .config import D_HEADS, Tiles
from .problem import AttentionProblem
from .rung import AttentionAddresses, AttentionRung, compile_attention, problem_constants

_GRAMMAR = re.compile(
    r"\((\d+), ?(\d+), ?(\d+)\): (\d+)x(\d+) warps, (\d+) stages"
    r"(?:, (\d+) parts|, parts of (\d+) keys)?(, sliced q)?(?:\+(\d+)_blocks)?"
)
_ARGS = "<4Q6i"
"""What SplitArgs in cuda/attention/split_args.cuh adds to AttentionArgs; a test holds them equal."""
MERGE = "attention/merge.cuh"
_MERGE_LANES = 8
"""Threads of the merge that share the parts of a column. Fixed, as the order of sums follows from it."""


@dataclass(frozen=True)
class SplitConfig(Tiles):
    """The tiles of split attention: `(d_head, b_r, b_c): RxK warps, S stages[, N parts][, sliced q][+N_blocks]`.

    A block makes b_r rows: pairs of a query and a head of those that share a head of keys. Its warps are R along the
    rows and K along the keys; the R warps of a group share tiles of b_c keys in a ring of S stages. `parts`: blocks
    that share the keys of a tile of rows evenly, or `part_keys`: keys of a part, however many parts that are.
    `sliced_q`: Q is read from shared memory for each tile of keys instead of staying in registers.
    """

    d_head: int
    b_r: int
    b_c: int
    row_warps: int = 1
    key_warps: int = 4
    stages: int = 3
    parts: int = 1
    part_keys: int = 0
    sliced_q: bool = False
    min_blocks: int = 1

    @property
    def n_warps(self) -> int:
        return self.row_warps * self.key_warps

    @property
    def threads(self) -> int:
        return 32 * self.n_warps

    @property
    def whole_k(self) -> SplitConfig:
        """The same with the keys in one part."""
        return replace(self, parts=1, part_keys=0)

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, keys and columns of a block's step."""
        return self.b_r, self.b_c * self.key_warps, self.d_head

    @property
    def shared_bytes(self) -> int:
        """The bytes of a block: Q and the rings, or the results of the groups of keys, which take their place at the
        end."""
        ring = 4 * self.stages * self.key_warps * self.b_c * self.d_head
        results = 4 * self.key_warps * self.b_r * (self.d_head + 8 + 2)
        return max(2 * self.b_r * self.d_head + ring, results)

    @property
    def legend(self) -> str:
        """One line that says what the parts of the text mean."""
        told = ["(d_head, rows per block, keys per tile): warps along rows x along keys", "stages: tiles in flight"]
        told += ["parts: blocks that share a tile's keys"] if self.parts > 1 or self.part_keys else []
        told += ["sliced q: Q is read from shared memory as it is multiplied"] if self.sliced_q else []
        told += ["blocks: at least so many per SM"] if self.min_blocks != 1 else []
        return "; ".join(told)

    def __str__(self) -> str:
        text = f"({self.d_head}, {self.b_r}, {self.b_c}): {self.row_warps}x{self.key_warps} warps, {self.stages} stages"
        if self.part_keys:
            text += f", parts of {self.part_keys} keys"
        elif self.parts > 1:
            text += f", {self.parts} parts"
        text += ", sliced q" * self.sliced_q
        return text + (f"+{self.min_blocks}_blocks" if self.min_blocks != 1 else "")

    @staticmethod
    def parse(text: str) -> SplitConfig:
        """The config that str() wrote. Raises ConfigRejected for another text."""
        match = _GRAMMAR.fullmatch(text.strip())
        if match is None:
            raise ConfigRejected(
                f"{text!r} is not a config of split attention. One reads (d_head, b_r, b_c): RxK warps, S stages, and "
                "where wanted the parts: (128, 16, 32): 1x4 warps, 3 stages, 33 parts"
            )
        d_head, b_r, b_c, row_warps, key_warps, stages = map(int, match.groups()[:6])
        parts, part_keys, sliced, blocks = match.groups()[6:]
        return SplitConfig(
            d_head, b_r, b_c, row_warps, key_warps, stages, int(parts or 1), int(part_keys or 0), bool(sliced),
            int(blocks or 1),
        )  # fmt: skip

    def why_not(self) -> str | None:
        """Return None when kernels can be made with it, or the reason."""
        if self.d_head not in D_HEADS:
            return f"d_head={self.d_head} is not one of {', '.join(map(str, D_HEADS))}"
        if self.row_warps not in (1, 2, 4, 8) or self.key_warps not in (1, 2, 4, 8, 16) or self.n_warps > 16:
            return f"{self.row_warps}x{self.key_warps} warps must be powers of two: at most 8 along rows, 16 in all"
        if self.b_r == 0 or self.b_r % (16 * self.row_warps):
            return f"b_r={self.b_r} must be a multiple of {16 * self.row_warps}: 16 for each of {self.row_warps} warps"
        step = self.row_warps * (4 if self.d_head % 64 == 0 else 8)
        if self.b_c < 16 or self.b_c & (self.b_c - 1) or self.b_c % step:
            return f"b_c={self.b_c} must be a power of two, at least 16, and a multiple of {step}, a copy's rows"
        if self.stages < 2:
            return f"stages={self.stages} must be at least 2"
        if self.parts < 1 or self.part_keys < 0 or (self.part_keys and self.parts != 1):
            return f"parts={self.parts} and part_keys={self.part_keys}: one of them says how keys are shared"
        if self.part_keys % self.b_c:
            return f"part_keys={self.part_keys} must be a multiple of b_c={self.b_c}"
        if self.min_blocks < 1:
            return f"min_blocks={self.min_blocks} must be at least 1"
        return None


@dataclass(frozen=True)
class SplitRung(AttentionRung):
    """Attention in parts."""

    fused: bool = True
    takes_caches: bool = True

    @property
    def include(self) -> str:
        return "attention/split.cuh"

    def why_not(self, problem: AttentionProblem, config: Any, arch: Arch) -> str | None:
        if not isinstance(config, SplitConfig):
            return f"{self.id} takes configs of split attention, (d_head, b_r, b_c): RxK warps ...; {config} is not one"
        if reason := super().why_not(problem, config, arch):
            return reason
        if problem.seq_q * problem.group >= 2**31:
            return f"{problem.seq_q} queries of {problem.group} heads for each head of keys; {2**31 - 1} rows fit"
        if problem.totals is not None and max(problem.totals[0] * problem.group, sum(problem.totals)) >= 2**31:
            return f"{problem.totals} rows and keys of all entries; a grid holds {2**31 - 1} blocks"
        if problem.totals is not None and config.parts > 1:
            return f"{config} shares keys by their number; of packed entries the host does not know it: give part_keys"
        if problem.pages and problem.pages[0] % config.b_c:
            return f"{config} takes tiles of {config.b_c} keys; pages of {problem.pages[0]} do not hold whole ones"
        if (blocks := blocks_of(problem, config)) >= 2**31:
            return f"{blocks} blocks; a grid holds {2**31 - 1}"
        return None

    def constants(self, problem: AttentionProblem, config: Any) -> dict[str, Constant]:
        values: dict[str, Constant] = {
            "b_c": config.b_c,
            "row_warps": config.row_warps,
            "key_warps": config.key_warps,
            "stages": config.stages,
            "load_q": 2 if config.sliced_q else 0,
            "threads": config.threads,
            "min_blocks": config.min_blocks,
            "edge_q": problem.totals is not None or problem.seq_q * problem.group % config.b_r != 0,
            "edge_k": problem.seqused or problem.totals is not None or problem.seq_k % config.b_c != 0,
        }
        return values | split_constants(problem, config, self)

    def shape(self, problem: AttentionProblem, config: Any) -> Launch:
        grid = (blocks_of(problem, config), problem.heads_kv, 1)
        return Launch(grid, (config.threads, 1, 1), b"", config.shared_bytes)

    def params(self, problem: AttentionProblem, config: Any, at: AttentionAddresses) -> Template:
        """SplitArgs, of attention and of its merge. Raises ValueError for parts without room."""
        if is_merged(problem, config) and at.parts == (0, 0):
            raise ValueError(f"{config}: its parts need room, and a second launch adds them; at.parts is none")
        return super().params(problem, config, at) + pack(
            _ARGS, *at.parts, at.used, at.pages, parts_of(problem, config), _entry_tiles(problem, config),
            part_rows(problem, config), config.part_keys, *(problem.pages or (0, 0, 0))[1:],
        )  # fmt: skip


def split_constants(problem: AttentionProblem, config: SplitConfig, rung: SplitRung) -> dict[str, Constant]:
    """Return what both kernels are compiled for."""
    values: dict[str, Constant] = {
        "b_r": config.b_r,
        "split": is_merged(problem, config),
        "packed": problem.group,
        "seqused": problem.seqused,
        "page": problem.pages[0] if problem.pages else 0,
    }
    for name in ("k", "v"):
        stride = getattr(problem, name).row_stride
        values[f"{name}_stride"] = stride if 0 < stride < 2**31 else 0
    return values | problem_constants(problem, rung.scale_first(problem))


def is_merged(problem: AttentionProblem, config: SplitConfig) -> bool:
    """Return whether parts of the keys are added by a launch of their own."""
    return config.part_keys > 0 if problem.totals is not None else parts_of(problem, config) > 1


def parts_of(problem: AttentionProblem, config: SplitConfig) -> int:
    """Blocks that share the keys of a tile of rows, where the host knows: not of packed entries."""
    if config.part_keys:
        return max(ceil_div(problem.seq_k, config.part_keys), 1)
    return config.parts


def tiles_of(problem: AttentionProblem, config: SplitConfig) -> int:
    """Tiles of rows of all entries, of one head of keys. Each packed entry may end in a tile of its own."""
    if problem.totals is not None:
        return problem.totals[0] * problem.group // config.b_r + problem.batch
    return problem.batch * _entry_tiles(problem, config)


def _entry_tiles(problem: AttentionProblem, config: SplitConfig) -> int:
    return ceil_div(problem.seq_q * problem.group, config.b_r)


def blocks_of(problem: AttentionProblem, config: SplitConfig) -> int:
    """The blocks of one head of keys; of packed entries at most (SplitTile in cuda/attention/split_args.cuh)."""
    if problem.totals is not None:
        return tiles_of(problem, config) + (problem.totals[1] // config.part_keys if config.part_keys else 0)
    return tiles_of(problem, config) * parts_of(problem, config)


def part_rows(problem: AttentionProblem, config: SplitConfig) -> int:
    return config.b_r if problem.totals is not None else min(config.b_r, problem.seq_q * problem.group)


@dataclass(frozen=True)
class Merge:
    """The parts' results added."""

    rung: SplitRung
    config: SplitConfig

    def compile(self, problem: AttentionProblem, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants = split_constants(problem, self.config, self.rung) | {"threads": self._threads}
        return compile_attention(MERGE, constants, "merge", problem, arch)

    @property
    def _threads(self) -> int:
        return self.config.d_head // 4 * _MERGE_LANES

    def shape(self, problem: AttentionProblem) -> Launch:
        grid = (tiles_of(problem, self.config), problem.heads_kv, part_rows(problem, self.config))
        return Launch(grid, (self._threads, 1, 1), b"", overlaps=True)


def parts_room(problem: AttentionProblem, config: SplitConfig, workspace: Workspace) -> tuple[Address, Address]:
    """Return where results of parts lie, and their maxima and sums; nowhere where there is one part."""
    if not is_merged(problem, config):
        return 0, 0
    rows = blocks_of(problem, config) * problem.heads_kv * part_rows(problem, config)
    return workspace.room(4 * rows * problem.d_head), workspace.room(8 * rows)


def _configs(d_head: int) -> tuple[SplitConfig, ...]:
    return (
        SplitConfig(d_head, 16, 32 if d_head <= 128 else 16),
        SplitConfig(d_head, 16, 16, stages=2),
        SplitConfig(d_head, 16, 16, key_warps=2, stages=2),
    )


def _space(d_head: int) -> tuple[SplitConfig, ...]:
    return tuple(
        config
        for b_r, b_c, (row_warps, key_warps), stages in product(
            (16, 32, 64, 128), (16, 32, 64), ((1, 4), (1, 8), (2, 4), (4, 1), (4, 2)), (2, 3, 4)
        )
        if (config := SplitConfig(d_head, b_r, b_c, row_warps, key_warps, stages)).why_not() is None
    )


def _any(config: SplitConfig) -> str | None:
    return None


SPLIT_RUNGS = (
    SplitRung("d01_split", "keys shared by blocks and by warps, heads that share keys packed into a tile's rows",
              tuple(config for d_head in D_HEADS for config in _configs(d_head)), _space, _any),
)  # fmt: skip
