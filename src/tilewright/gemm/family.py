"""Products, as planning sees them (plan/family.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays.dtypes import ITEM_BYTES
from ..errors import ConfigRejected
from ..gpus import Arch, Gpu
from ..plan.choose import plan
from ..plan.demands import NONE, Demands
from ..plan.entries import Entry
from ..plan.estimate import Work
from ..plan.family import Preset
from ..plan.plan import Plan, Refusal
from .classes import Columns, ProblemClass, class_key, columns, distances, own_classes
from .config import ORDER, GemmConfig, SimtConfig, in_parts, of_fields
from .long_sums import with_shorter_sums
from .presets import halves_pay, presets_of, suits_tma
from .problem import GemmProblem
from .rung import Rung, reading
from .rungs import GEMM_RUNGS, find_rung, rungs_beside, rungs_for
from .rungs.rows import FEW_ELEMENTS, MOST_ROWS, ROW_DOTS, WIDE_SUMS, dots_pay, few_elements
from .rungs.tensor import ragged
from .space import packable_operands, splits, ways_to_pack
from .work import tiles_of, work_of

GemmEntry = Entry[ProblemClass, GemmConfig]
MOST = 1 << 16
"""No number of a config is larger."""
_REASONS = 3
"""How many an error tells."""


@lru_cache(maxsize=32)
def _rungs(dtype: str, precision: str, one_chain: bool) -> Mapping[str, Rung]:
    known = (*rungs_for(dtype, precision), *rungs_beside(dtype, precision))
    return {rung.id: rung for rung in known if not one_chain or rung.one_chain}


@dataclass(frozen=True, eq=False)
class Products:
    """The family of matrix products. See plan.family.Family."""

    name = "products"
    shape_extents = 4

    # --- what may run ---

    def rungs(self, problem: GemmProblem, demands: Demands) -> Mapping[str, Rung]:
        if demands.batch_invariant and problem.precision == "fp32x3":
            raise ConfigRejected(
                "batch_invariant=True cannot be had with precision='fp32x3': which tiny results are done again in fp32 "
                "depends on the magnitudes of their whole tile. Omit one of the two."
            )
        # "fast" allows other sums, and need not have them
        precision = "ieee" if demands.batch_invariant and problem.precision == "fast" else problem.precision
        return _rungs(problem.dtype, precision, demands.batch_invariant)

    def why_not(
        self, problem: GemmProblem, rung: Rung, config: GemmConfig, packs: tuple[str, ...], gpu: Gpu, demands: Demands
    ) -> str | None:
        if packs and not set(packs) <= set(packable_operands(problem, rung, config)):
            return f"{' and '.join(packs)} can be read as they lie: packing is for operands that wide accesses cannot"
        if demands.batch_invariant and (config.split_k > 1 or config.slices_k > 1):
            return f"{config} walks k in parts; batch_invariant asks for one chain"
        if demands.batch_invariant and isinstance(config, SimtConfig) and config.sums > 1:
            return f"{config} adds up stretches of k apart; batch_invariant asks for one chain"
        if demands.batch_invariant and rung.other_chain_on == gpu.arch.name:
            return f"it adds up otherwise than the higher rungs that batch_invariant takes on {gpu.arch}"
        if reason := _idle_turns(problem, rung, config, gpu):
            return reason
        if rung.halves and not halves_pay(problem):
            return f"{rung.id} was measured to pay from 512 rows and columns, 2^29 products and, of fp32x3, k = 512 on"
        if rung is ROW_DOTS and not dots_pay(problem):
            return f"{rung.id} is for at most {MOST_ROWS} rows, and lines along k that start at multiples of 16 bytes"
        if rung is WIDE_SUMS and not few_elements(problem):
            return f"{rung.id} is for single fp32 results of at most {FEW_ELEMENTS} elements, and some lengths of k"
        return rung.why_not(problem.packed(config.tile, packs), config, gpu.arch)

    def named(self, problem: GemmProblem, gpu: Gpu, rung: str | None, config: GemmConfig | None) -> Plan:
        def takes(rung: Rung, config: GemmConfig) -> bool:
            return rung.why_not(problem, config, gpu.arch) is None

        known = rungs_for(problem.dtype, problem.precision)
        chosen = find_rung(rung) if rung is not None else rung_for(config, known, gpu, takes)
        config = chosen.own(config) if config is not None else None
        if packs := _packed_first(problem, chosen, config or chosen.default, gpu):
            why = f"{chosen} was named in the call; it cannot read {' and '.join(packs)} as given: packed first"
            return Plan(chosen, config or chosen.default, "the caller", why, packs=packs)
        if reason := chosen.why_not(problem, config or chosen.default, gpu.arch):
            own = (preset for preset in presets_of(problem) if preset.rung is chosen)
            able = (one.config for one in own if chosen.why_not(problem, one.config, gpu.arch) is None)
            if config is None and (other := next(able, None)) is not None:
                why = f"{chosen} was named in the call; its default cannot run: {reason}"
                return Plan(chosen, other, "the rung's presets", why)
            raise ConfigRejected(f"{reason}. Omit rung and config to let the plan choose.")
        if config is not None:
            return Plan(chosen, config, "the caller", "the config was named in the call")
        return Plan(chosen, chosen.default, "the rung's default", f"{chosen} was named in the call")

    def presets(self, problem: GemmProblem, gpu: Gpu) -> Iterable[Preset]:
        return presets_of(problem)

    def is_modelled(self, problem: GemmProblem, gpu: Gpu) -> bool:
        return gpu.arch.name == "sm_90a" and suits_tma(problem)

    def last_resort(self, problem: GemmProblem, gpu: Gpu, refused: Sequence[Refusal]) -> Plan:
        told = list(refused)
        for rung in reversed(rungs_for(problem.dtype, problem.precision)):
            if reason := rung.why_not(problem, rung.default, gpu.arch):
                told.append(Refusal(rung.id, str(rung.default), reason))
            else:
                why = f"the highest rung for {problem.dtype} whose default config can run this problem"
                return Plan(rung, rung.default, "the rung's default", why, lambda: tuple(told))
        reasons = "; ".join(one.reason for one in told[:_REASONS])
        more = f"; and so {len(told) - _REASONS} more" if len(told) > _REASONS else ""
        raise ConfigRejected(f"no rung can run this {problem.kind} problem on {gpu.arch}: {reasons}{more}.")

    def relatives(
        self, problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu, several: bool
    ) -> Iterator[tuple[GemmConfig, tuple[str, ...]]]:
        # of fp32 tables exist whose neighbours say nothing of several launches: the model alone is no word on them
        if problem.dtype == "f32" and not several:
            yield config, ()
            return
        ways = ways_to_pack(rung, config, problem)
        for parts in splits(rung, config, problem, gpu):
            split = in_parts(config, parts)
            for packs in ways:
                yield split, packs

    def work(self, problem: GemmProblem, rung: Rung, config: GemmConfig, packs: tuple[str, ...]) -> Work:
        return work_of(problem, rung, config, packs)

    def works(self, problem: GemmProblem, rung: Rung, ways: Sequence[tuple[GemmConfig, tuple[str, ...]]]) -> list[Work]:
        if rung.parts_as_batch:  # its blocks depend on how long a part is
            return [self.work(problem, rung, config, packs) for config, packs in ways]
        known: dict[Any, Work] = {}  # parts of k do the same work, however many they are
        found = []
        for config, packs in ways:
            work = known.get(key := (packs, config.split_k > 1))
            if work is None:
                work = known[key] = self.work(problem, rung, config, packs)
            found.append(work if work.parts == config.split_k else work._replace(parts=config.split_k))
        return found

    def remark(self, problem: GemmProblem, plan: Plan, gpu: Gpu) -> str:
        config, tiles = plan.config, tiles_of(problem, plan.config)
        told = []
        if config.split_k > 1:
            told.append(f"k in {config.split_k} parts, since {tiles} tiles alone do not keep {gpu.sm_count} SMs busy")
        else:
            told.append(f"{tiles} tiles on {gpu.sm_count} SMs")
        for name in reading(plan.rung, config, problem).narrow:
            how = (
                "is packed first" if name in plan.packs else "is read element by element, which costs less than packing"
            )
            told.append(f"{name} {how}: {_narrow_reason(problem, name, config)}")
        return "; ".join(told)

    def settled(self, problem: GemmProblem, chosen: Plan, demands: Demands) -> Plan:
        found = chosen if demands.batch_invariant else with_shorter_sums(problem, chosen)
        told = [f"{name} is packed first: {_pack_reason(problem, name)}" for name in found.rung.must_pack(problem)]
        return replace(found, why="; ".join((found.why, *told))) if told else found

    # --- what tables hold ---

    def classes(self, problem: GemmProblem) -> Sequence[Sequence[ProblemClass]]:
        empty = 0 in (problem.m, problem.n, problem.k, problem.batch)
        return () if empty else own_classes(problem)

    def class_key(self, values: Mapping[str, Any]) -> str:
        return class_key(values)

    def columns(self, known: Sequence[Mapping[str, Any]]) -> Columns:
        return columns(known)

    def distances(self, wanted: ProblemClass, known: Columns) -> np.ndarray:
        found = distances(wanted, known)
        return found if wanted.fused else np.where(known.fused, np.inf, found)  # bare products ask bare ones alone

    def problem_of(self, entry: GemmEntry) -> GemmProblem:
        m, n, k, batch = entry.shape
        of = entry.klass
        return GemmProblem.dense(
            m, n, k, layout=of.layout.replace("s", "n"), batch=batch, dtype=of.dtype, out_dtype=of.out_dtype,
            use_c=of.use_c, precision=of.precision,
        )  # fmt: skip

    def words(self, entry: GemmEntry) -> str:
        m, n, k, batch = entry.shape
        return f"{m} x {n} x {k}" + (f" x{batch}" if batch != 1 else "")

    def measured_with(self, problem: GemmProblem, entry: GemmEntry) -> str:
        told = []
        if problem.epilogue is not None:
            told.append(f"with {entry.epilogue}" if entry.epilogue else "without an epilogue")
        if ITEM_BYTES[problem.out_dtype] != ITEM_BYTES[entry.klass.out_dtype]:
            told.append(f"results in {entry.klass.out_dtype}")
        return f" ({', '.join(told)})" if told else ""

    def owns(self, values: Mapping[str, Any]) -> bool:
        return "d_head" not in values

    def read_class(self, values: Mapping[str, Any]) -> ProblemClass:
        return ProblemClass.from_dict(dict(values))

    def read_config(self, rung: str, values: Mapping[str, Any]) -> GemmConfig | None:
        if "attention" in values:
            raise TypeError(f"{values} is not a config of a product")
        if not values.keys() <= set(ORDER):
            return None
        for name, value in values.items():
            if not (isinstance(value, str) if name == "cache" else type(value) is int and abs(value) <= MOST):
                raise ValueError(f"{name}={value!r} is not a value of a config")
        try:
            config = of_fields(values, family_of(rung))
        except TypeError:  # a field of another family: the rung of another version has it
            return None
        if reason := config.no_block:
            raise ValueError(f"not a config: {reason}")
        return config


@lru_cache(maxsize=256)
def family_of(rung: str) -> type[GemmConfig] | None:
    """Return the family of a rung's configs; None for a rung that this version does not know."""
    return next((type(known.default) for known in GEMM_RUNGS if known.id == rung), None)


PRODUCTS = Products()


def plan_for(
    problem: GemmProblem, on: Gpu | Arch, rung: str | None = None, config: GemmConfig | None = None, *,
    demands: Demands = NONE,
) -> Plan:  # fmt: skip
    """The plan for a problem on a GPU (or on the first listed GPU of an architecture). Deterministic.

    A `config` without a rung is one of the highest that takes it. `demands` narrow what the plan may choose by itself.
    Raises ConfigRejected, with the numbers, when the rung or config named cannot run the problem, or no rung can.
    """
    check_names(rung, config, "f12")
    return plan(PRODUCTS, problem, on, rung, config, demands)


def check_names(rung: Any, config: Any, example: str) -> None:
    """Raise ConfigRejected for what is neither None nor a rung's name, or a config. `example`: such a name."""
    if config is not None and not isinstance(config, GemmConfig):
        raise ConfigRejected(f"config is {config!r}; pass a tilewright.ladder.GemmConfig, or none.")
    if rung is not None and not isinstance(rung, str):
        raise ConfigRejected(f"rung is {rung!r}; pass the name of one, such as {example!r}, or none.")


def _idle_turns(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu) -> str | None:
    """Why sets of warpgroups that take turns have none to take, or None: products of a batch that are not walked."""
    if problem.batch == 1 or config.turns == 1 or rung.walks is None or rung.walks(config, problem) > 1:
        return None
    tiles = tiles_of(problem, config) // problem.batch
    if tiles > gpu.sm_count:
        return None
    return f"each block has one of the {tiles} tiles of a product: its {config.turns} sets have no turns to take"


def rung_for(
    config: GemmConfig | None, known: tuple[Rung, ...], gpu: Gpu, takes: Callable[[Rung, GemmConfig], bool]
) -> Rung:
    """The highest rung that can take a config; if none can, the highest of its family on the GPU: it says why not."""
    here = [rung for rung in reversed(known) if rung.only_on in ("", gpu.arch.name)]
    able = (rung for rung in here if config and takes(rung, rung.own(config)))
    of_family = (rung for rung in here if isinstance(config, type(rung.default)))
    return next(able, next(of_family, here[0]))


def _packed_first(problem: GemmProblem, rung: Rung, config: GemmConfig, gpu: Gpu) -> tuple[str, ...]:
    """The operands without whose copies a rung cannot take a config; () where it can, or copies do not help."""
    if rung.why_not(problem, config, gpu.arch) is None or config.no_block:
        return ()
    ways = (("a",), ("b",), ("a", "b"))
    helps = (packs for packs in ways if rung.why_not(problem.packed(config.tile, packs), config, gpu.arch) is None)
    return next(helps, ())


def _pack_reason(problem: GemmProblem, name: str) -> str:
    """Why a rung of fp8 cannot read an operand as it lies."""
    matrix = problem.side(name).matrix
    k_stride = matrix.col_stride if name == "a" else matrix.row_stride
    if k_stride != 1:
        return f"its elements along k are {k_stride} B apart, and tensor cores read fp8 along k"
    if problem.k % 2:
        return f"k={problem.k} is odd"
    return "its lines do not start at multiples of 16 B"


def _narrow_reason(problem: GemmProblem, name: str, config: GemmConfig) -> str:
    """Why the rung cannot read an operand by wide accesses."""
    matrix, rows, cols = problem.side(name)
    tile_m, tile_n, tile_k = config.tile
    tiles = (tile_m, tile_k) if name == "a" else (tile_k, tile_n)
    if matrix.unit(rows, cols) == "none":
        return f"no contiguous lines (strides {matrix.row_stride} and {matrix.col_stride} elements)"
    if problem.dtype == "f32" and ragged(matrix, (rows, cols), tiles):
        return f"{rows} x {cols} are not whole tiles of {tiles[0]} x {tiles[1]}"
    width = matrix.vector_bytes(rows, cols, ITEM_BYTES[problem.dtype])
    return f"its lines start at multiples of {width} B"
