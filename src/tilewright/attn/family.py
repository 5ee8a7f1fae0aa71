"""Attention, as planning sees it (plan/family.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import ConfigRejected
from ..gpus import GPUS, Arch, Gpu
from ..plan.choose import plan
from ..plan.demands import NONE, Demands
from ..plan.entries import Entry
from ..plan.estimate import AnyWork
from ..plan.family import Preset
from ..plan.plan import Plan, Refusal
from ..plan.tables import generation_now
from .classes import AttentionClass, attention_class_of, attention_columns, attention_distances, attention_key
from .config import AttentionConfig
from .hopper import HOPPER_RUNGS, ONLY_ON, HopperConfig
from .problem import AttentionProblem
from .rung import AttentionRung
from .rungs import ATTENTION_RUNGS, EVERY_RUNG, find_attention_rung, parse_config
from .split import SPLIT_RUNGS, SplitConfig, SplitRung
from .split_plan import (
    FEW_QUERIES_SLOWER,
    best_split,
    few_on_many,
    invariant_split,
    split_plan,
    split_words,
    tilings_of,
    ways_of,
)
from .work import work_of

AttentionEntry = Entry[AttentionClass, AttentionConfig]
SPLIT_GAIN = 1.2
"""How much faster than one launch the model must find split attention, for it to be chosen."""
PREFERRED = 1.1
"""How much faster than its default the model must find another config of the last rung, for it to be chosen."""
HOPPER_SPEED = 1.2
"""How much faster than modelled Hopper's rung counts beside a17, which took up to 1.6 of its own modelled time where
both were measured."""
ALONE_SPEED = 1.08
"""The same for a block of 64 rows."""
PACKED_SPEED = 1.1
"""How much more so with packed lengths, of which the average hides the longest."""
ALONE_SLOWER = 1.25
"""How much longer than modelled such blocks take on many keys: 1.2 to 1.5 where they were measured."""
NEXT_Q_SPEED = {128: 1.18, 64: 1.16}
"""The same as HOPPER_SPEED with room for the next Q, by the keys of a tile. Those of 64 keys are ahead up to 512 causal
rows, and behind from 1024 on."""
HOPPER_PRESETS = tuple(
    HopperConfig(*tile)
    for tile in (
        (64, 192, 96, 2, "products"), (64, 128, 128, 3, "products", 2), (64, 128, 64, 4, "products", 2), (64, 64, 128),
        (96, 128, 128, 2, "products"),
        (128, 128, 128, 2, "products"), (128, 64, 128), (192, 128, 64, 2, "products"),
        (256, 128, 64), (256, 64, 64),
    )
)  # fmt: skip
"""The best of sweeps on an H200, which had no case of d_head 32."""
SHORT_PACKED, SHORT_PACKED_ROWS = Preset(HOPPER_RUNGS[-1], HopperConfig(64, 192, 64, 3, "", 2), 1.9), 512
"""Besides them, where packed entries have so few rows on average: it took 0.8 to 1.05 of the others' time."""
SHORT_PRESETS = (
    (range(1025), range(0), Preset(HOPPER_RUNGS[-1], HopperConfig(64, 192, 64, 3, "products", 2), 1.13)),
    (range(0), range(3073), Preset(HOPPER_RUNGS[-1], HopperConfig(64, 192, 64, 3, "products", 2), 1.19)),
    (range(1025), range(1025), Preset(HOPPER_RUNGS[-1], HopperConfig(128, 128, 64, 3, "products", 2), 1.11)),
    (range(0), range(257, 3073), Preset(HOPPER_RUNGS[-1], HopperConfig(128, 192, 64, 3, "", 2), 1.13)),
)
"""And where self-attention has so many rows without a mask, or so many causal ones. Tiles of 192 rows took 0.88
to 0.99 of the others' time from 320 causal rows to 2048, and without a mask 0.8 to 1 where they leave no rows over.
Tiles of 128 rows and 64 keys took 0.9 to 1 at d_head 128 up to 256 rows."""
FEW_ROWS, FEW_ROWS_SPEED, MANY_TILES = 128, 0.5, 512
"""Up to so few rows in so many tiles mma.sync took 1.2 to 1.4 of the time of Hopper's rungs."""
WINDOWED = Preset(HOPPER_RUNGS[-1], HopperConfig(64, 192, 64, 3, "products", 2), 1.35)
"""And where a window bounds the keys to the left: it took 0.95 of the others' time with windows of 1024, and 0.79 with
windows of 128."""
_RUNGS = {rung.id: rung for rung in EVERY_RUNG}
_LAST = {HopperConfig: HOPPER_RUNGS[-1], SplitConfig: SPLIT_RUNGS[-1]}
"""The last rung that takes a kind of config, where that is not the last of ATTENTION_RUNGS."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The family of attention problems. See plan.family.Family."""

    name = "attention"
    shape_extents = 5

    # --- what may run ---

    def rungs(self, problem: AttentionProblem, demands: Demands) -> Mapping[str, AttentionRung]:
        return _RUNGS

    def why_not(
        self, problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig, packs: tuple[str, ...], gpu: Gpu,
        demands: Demands,
    ) -> str | None:  # fmt: skip
        return rung.why_not(problem, config, gpu.arch)

    def named(self, problem: AttentionProblem, gpu: Gpu, rung: str | None, config: Any) -> Plan:
        chosen = find_attention_rung(rung) if rung is not None else _LAST.get(type(config), ATTENTION_RUNGS[-1])
        if config is not None:
            if reason := chosen.why_not(problem, config, gpu.arch):
                raise ConfigRejected(f"{reason}. Omit rung and config to let the plan choose.")
            return Plan(chosen, config, "the caller", "the config was named in the call")
        if isinstance(chosen, SplitRung):
            return split_plan(
                problem, gpu, "the rung's default", f"{chosen} was named in the call", best_split(problem, gpu).config
            )
        default = chosen.default(problem, gpu.arch)
        return Plan(chosen, default, "the rung's default", f"{chosen} was named in the call")

    def presets(self, problem: AttentionProblem, gpu: Gpu) -> Iterable[Preset]:
        """Hopper's best measured for the d_head; those of the last rung that runs everywhere, and one of few rows. Of
        few queries on many keys those that share keys too."""
        if not few_on_many(problem):
            yield from _of_many(problem, gpu)
            return
        for rung, config, speed in _of_many(problem, gpu):
            slower = FEW_QUERIES_SLOWER if problem.seq_q < config.b_r else 1.0
            if isinstance(config, HopperConfig) and config.groups == 1:
                slower *= ALONE_SLOWER
            yield Preset(rung, config, speed / slower)
        if not problem.d_v:
            speed = (HOPPER_SPEED if gpu.arch.name == ONLY_ON else PREFERRED) / SPLIT_GAIN
            for tiling in tilings_of(problem, gpu):
                yield Preset(SPLIT_RUNGS[-1], tiling, speed)

    def is_modelled(self, problem: AttentionProblem, gpu: Gpu) -> bool:
        return False

    def last_resort(self, problem: AttentionProblem, gpu: Gpu, refused: Sequence[Refusal]) -> Plan:
        reasons = "; ".join(dict.fromkeys(one.reason for one in refused))
        raise ConfigRejected(f"no attention rung can run this problem on {gpu.arch}: {reasons}.")

    def relatives(
        self, problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig, gpu: Gpu, several: bool
    ) -> Iterator[tuple[AttentionConfig, tuple[str, ...]]]:
        if not isinstance(config, SplitConfig):
            yield config, ()
            return
        for way in dict.fromkeys((config, *ways_of(problem, config.whole_k, gpu))):
            yield way, ()

    def work(
        self, problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig, packs: tuple[str, ...]
    ) -> AnyWork:
        return work_of(problem, rung, config)

    def works(
        self, problem: AttentionProblem, rung: AttentionRung, ways: Sequence[tuple[AttentionConfig, tuple[str, ...]]]
    ) -> Sequence[AnyWork]:
        return [work_of(problem, rung, config) for config, _ in ways]

    def remark(self, problem: AttentionProblem, plan: Plan, gpu: Gpu) -> str:
        if isinstance(plan.config, SplitConfig):
            return split_words(problem, plan.config, gpu)
        blocks = -(-problem.seq_q // plan.config.b_r) * problem.heads_q * problem.batch
        what = "tiles" if getattr(plan.rung, "stays", False) else "blocks"
        return f"{blocks} {what} of {plan.config.b_r} queries on {gpu.sm_count} SMs"

    def settled(self, problem: AttentionProblem, chosen: Plan, demands: Demands) -> Plan:
        return chosen

    # --- what tables hold ---

    def classes(self, problem: AttentionProblem) -> Sequence[Sequence[AttentionClass]]:
        own = attention_class_of(problem)
        return [[own, replace(own, dtype={"bf16": "f16", "f16": "bf16"}[own.dtype])]] if problem.seq_k else ()

    def class_key(self, values: Mapping[str, Any]) -> str:
        return attention_key(values)

    def columns(self, known: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        return attention_columns(known)

    def distances(self, wanted: AttentionClass, known: dict[str, np.ndarray]) -> np.ndarray:
        return attention_distances(wanted, known)

    def problem_of(self, entry: AttentionEntry) -> AttentionProblem:
        batch, heads, heads_kv, queries, keys = entry.shape
        seen = min(keys, entry.klass.keys)  # a window leaves about so many to every query
        return AttentionProblem.dense(
            batch, heads, queries, seen, entry.klass.d_head, heads_kv=heads_kv, dtype=entry.klass.dtype,
            is_causal=entry.klass.is_causal,
        )  # fmt: skip

    def words(self, entry: AttentionEntry) -> str:
        batch, heads, _, queries, keys = entry.shape
        return f"{batch} x {heads} heads, {queries} x {keys}{', causal' if entry.klass.is_causal else ''}"

    def measured_with(self, problem: AttentionProblem, entry: AttentionEntry) -> str:
        return ""

    def owns(self, values: Mapping[str, Any]) -> bool:
        return "d_head" in values

    def read_class(self, values: Mapping[str, Any]) -> AttentionClass:
        return AttentionClass.from_dict(dict(values))

    def read_config(self, rung: str, values: Mapping[str, Any]) -> AttentionConfig | HopperConfig | SplitConfig | None:
        if "attention" not in values:
            raise TypeError(f"{values} is not a config of attention")
        try:
            config = parse_config(str(values["attention"]))
        except ConfigRejected:  # another version's grammar
            return None
        if reason := config.why_not():
            raise ValueError(f"not a config: {reason}")
        return config


def _of_many(problem: AttentionProblem, gpu: Gpu) -> Iterator[Preset]:
    """The presets that take all keys in one launch."""
    if problem.totals and problem.seq_q <= SHORT_PACKED_ROWS and (problem.d_head, problem.d_v) == (64, 0):
        yield SHORT_PACKED
    if problem.window[0] >= 0 and (problem.d_head, problem.d_v) == (64, 0):
        yield WINDOWED
    if problem.totals is None and problem.seq_q == problem.seq_k and problem.window[0] < 0:
        for full, causal, one in SHORT_PRESETS:
            rows = causal if problem.right == 0 else full
            if problem.seq_q in rows and (one.config.d_head, 0) == (problem.d_head, problem.d_v):
                yield one
    for hopper in HOPPER_RUNGS[-1].defaults_for(problem) if problem.d_v else HOPPER_PRESETS:
        if hopper.d_head == problem.d_head:
            speed = HOPPER_SPEED if hopper.groups > 1 else ALONE_SPEED
            if hopper.q_buffers > 1:
                speed = NEXT_Q_SPEED[hopper.b_c]
            yield Preset(HOPPER_RUNGS[-1], hopper, speed * (PACKED_SPEED if problem.totals else 1.0))
    if problem.d_v:
        return  # no other rung takes such
    top, d = ATTENTION_RUNGS[-1], problem.d_head
    own = tuple(config for config in top.defaults if config.d_head == d)
    small = AttentionConfig(d, 64, 64 if d <= 128 else 32, 4, 2, 2, 2)
    short = gpu.arch.name == ONLY_ON and problem.totals is None and problem.seq_q <= FEW_ROWS and d >= 64
    slow = FEW_ROWS_SPEED if short and problem.batch * problem.heads_q >= MANY_TILES else 1.0
    for config in dict.fromkeys((*own, small)):
        yield Preset(top, config, slow * (PREFERRED if config in own else 1.0))


ATTENTION = Attention()


def plan_own_columns(
    problem: AttentionProblem, gpu: Gpu, rung: str | None, config: Any, demands: Demands
) -> Plan | None:
    """The plan for values of another width than keys where a kernel takes them as they are and is fast; else None, and
    the call pads them. Few queries on many keys are padded for split attention."""
    named = rung is not None or config is not None
    if gpu.arch.name != ONLY_ON or (not named and few_on_many(problem)):
        return None
    try:
        return plan_attention(problem, gpu, rung, config, demands=demands)
    except ConfigRejected:
        return None


def plan_attention(
    problem: AttentionProblem, on: Gpu | Arch, rung: str | None = None, config: Any = None, *,
    demands: Demands = NONE,
) -> Plan:  # fmt: skip
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    A `config`, or its text, without a rung is one of the last rung. Raises ConfigRejected, with the numbers, when what
    is named cannot run the problem, or nothing can.
    """
    if isinstance(config, str):
        config = parse_config(config)
    if config is not None and not isinstance(config, (AttentionConfig, *_LAST)):
        raise ConfigRejected(f"config is {config!r}; pass a tilewright.ladder.AttentionConfig, its text, or none.")
    if rung is not None and not isinstance(rung, str):
        raise ConfigRejected(f"rung is {rung!r}; pass the name of one, such as 'a16', or none.")
    gpu = on if isinstance(on, Gpu) else next(gpu for gpu in GPUS.values() if gpu.arch == on)
    if rung is not None or config is not None:
        return plan(ATTENTION, problem, gpu, rung, config)
    return _unnamed(problem, gpu, demands, generation_now())


@lru_cache(maxsize=4096)
def _unnamed(problem: AttentionProblem, gpu: Gpu, demands: Demands, generation: int) -> Plan:
    """`generation`: of the tables; plans of an older one are never asked for again."""
    if demands.batch_invariant:
        fixed = invariant_split(problem, gpu)
        return (
            plan(ATTENTION, replace(problem, batch=1), gpu)
            if fixed is None
            else split_plan(problem, gpu, "batch_invariant", "the same for any batch", fixed)
        )
    if problem.seqused or problem.pages:
        return split_plan(
            problem, gpu, "cost model", "only split attention reads caches", best_split(problem, gpu).config
        )
    return plan(ATTENTION, problem, gpu)
