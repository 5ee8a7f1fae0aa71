"""The kernels worth compiling for a problem: every config of every rung, less what cannot be the best.

Pruned before anything is compiled, each candidate with its reason: why_not's refusals, configs that spill or do not
fit on an SM by the resource model, and those whose modelled time is far above the best. Of the rest the best few are
kept, no tile shape crowding out all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..arrays.dtypes import ceil_div
from ..gpus import Gpu
from ..plan.estimate import predict
from ..plan.space import KEPT, Candidate, Space, select, why_pruned
from .classes import shows
from .config import GemmConfig
from .problem import GemmProblem
from .rung import Rung, reading
from .work import work_of

SHARE_BESIDE = 0.5
"""With an epilogue: of the candidates, at most so many are of blocks that share an SM."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
"""In how many parts k may be walked."""
GROUPS = (4, 16)
"""Tile rows that are walked together, besides the 8 of the spaces,"""
REGROUPED = 2
"""tried with the model's first choices of so many tiles."""


def other_groups(candidate: Candidate, problem: GemmProblem) -> Iterator[GemmConfig]:
    """The config with its tiles walked in other orders, where there are enough of them for that to matter."""
    config = candidate.config
    if config.group_m > 1 and ceil_div(problem.m, config.tile_m) > config.group_m:
        for group in GROUPS:
            yield replace(config, group_m=group)


def splits(rung: Rung, config: GemmConfig, problem: GemmProblem, gpu: Gpu) -> Iterator[int]:
    """The numbers of parts of k that may pay: 1, and more where the tiles alone leave SMs idle."""
    yield 1
    if config.slices_k > 1 or "split_k" not in rung.levels:
        return
    tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n) * problem.batch
    steps = ceil_div(problem.k, max(config.tile_k, 1))
    for parts in SPLITS[1:]:
        # not fewer than two tiles of k a part, and no more blocks than fill the SMs a few times
        if 2 * parts > steps or (parts - 1) * tiles >= 2 * gpu.sm_count:
            return
        yield parts


def packable_operands(problem: GemmProblem, rung: Rung, config: GemmConfig) -> tuple[str, ...]:
    """The operands ("a", "b") that the rung copies element by element as they lie, and those of 16 bits whose lines do
    not start at sectors: a product that reads them often is faster with a copy whose lines do."""
    narrow, halved, _ = reading(rung, config, problem)
    return tuple([name for name in "ab" if name in narrow or name in halved]) if halved else narrow


def ways_to_pack(rung: Rung, config: GemmConfig, problem: GemmProblem) -> list[tuple[str, ...]]:
    """Nothing; and what the rung copies element by element, or sector by half sector, as it lies.

    What TMA reads stays as it lies: on an H200 clusters of six products of such lines were 3 to 13% faster without the
    copy's launch than with it.
    """
    names = reading(rung, config, problem).narrow if rung.loaders else packable_operands(problem, rung, config)
    return sorted({(), names, *((name,) for name in names)}) if names else [()]


def explore(
    problem: GemmProblem,
    gpu: Gpu,
    rungs: Sequence[Rung],
    kept: int = KEPT,
    also: Iterable[tuple[Rung, GemmConfig, tuple[str, ...]]] = (),
) -> Space[Candidate]:
    """The candidates worth compiling. `also`: some that are kept whatever the model says, if they can run."""
    pruned: Counter[str] = Counter()
    fits: dict[tuple[str, GemmConfig, tuple[str, ...]], Candidate] = {}
    wanted: list[Candidate] = []
    considered = 0

    def consider(rung: Rung, config: GemmConfig, packs: tuple[str, ...], always: bool) -> None:
        nonlocal considered
        if (rung.id, config, packs) in fits:
            return
        considered += 1
        if rung.why_not(problem.packed(config.tile, packs), config, gpu.arch) is not None:
            pruned["cannot run it (why_not)"] += 1
            return
        candidate = Candidate(rung, config, predict(work_of(problem, rung, config, packs), gpu), packs)
        if rung.stays and candidate.prediction.blocks <= gpu.sm_count * config.min_blocks and not always:
            pruned["stay for one tile"] += 1
            return
        reason = why_pruned(candidate, gpu)
        if reason is not None and (candidate.prediction.resident == 0 or not always):
            pruned[reason] += 1
            return
        fits[rung.id, config, packs] = candidate
        if always:
            wanted.append(candidate)

    for rung, config, packs in also:
        consider(rung, config, packs, True)
    for rung in rungs:
        for config in rung.space():
            ways = ways_to_pack(rung, config, problem)
            for parts in splits(rung, config, problem, gpu):
                for packs in ways:
                    consider(rung, config if parts == 1 else replace(config, split_k=parts), packs, False)
    firsts: dict[tuple[int, int], Candidate] = {}  # the model's first choice of each tile
    for candidate in sorted(fits.values(), key=_order):
        firsts.setdefault((candidate.config.tile_m, candidate.config.tile_n), candidate)
    for first in list(firsts.values())[:REGROUPED]:
        for config in other_groups(first, problem):
            consider(first.rung, config, first.packs, True)

    def favoured(near: Sequence[Candidate]) -> Sequence[Candidate]:
        return _beside(near, rungs)[: int(SHARE_BESIDE * kept)] if shows(problem) else ()

    chosen = select(fits.values(), wanted, kept, pruned, _shape, _order, favoured)
    return Space(chosen, dict(pruned), considered)


def _shape(candidate: Candidate) -> tuple[object, ...]:
    config = candidate.config
    return config.tile_m, config.tile_n, config.split_k, len(candidate.packs)


def _beside(near: Sequence[Candidate], rungs: Sequence[Rung]) -> list[Candidate]:
    """Return what an epilogue may favour and the model does not tell: blocks of the fast rungs of which an SM holds two
    or more, so that one computes products while another ends. Of each tile the two depths of its pipeline that are
    most, in the model's order of tiles."""
    able = {candidate.rung.id for candidate in near}
    fast = {rung.id for rung in [rung for rung in rungs if rung.id in able][-1:]}
    fast |= {rung.id for rung in rungs if rung.warpgroups}
    tiles: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in near:
        c = candidate.config
        if candidate.rung.id in fast and candidate.prediction.resident > 1:
            tile = (
                candidate.rung.id,
                c.tile_m,
                c.tile_n,
                c.tile_k,
                c.warp_m,
                c.warp_n,
                c.split_k,
                c.slices_k,
                candidate.packs,
            )
            tiles.setdefault(tile, []).append(candidate)
    found = []
    for same in tiles.values():
        depths = {candidate.config.stages: candidate for candidate in sorted(same, key=_order, reverse=True)}
        found += [depths[stages] for stages in sorted(depths, reverse=True)[:2]]
    return found


def _order(candidate: Candidate) -> tuple[float, str, str]:
    """The order by modelled time; equals come in the order of their names, so that a space is always the same."""
    return candidate.prediction.ms, candidate.rung.id, f"{candidate.config!r}{candidate.packs}"
