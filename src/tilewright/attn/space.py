"""Which attention kernels are worth compiling for a problem, by a model of registers, occupancy, waves and time.

The model's constants come from a sweep of a16 and a17 on an H200. It orders candidates and is never shown as a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..gemm.rung import ceil_div
from ..gemm.space import FAR_BEHIND, KEPT, MOST_SPILL, SHARE_OF_A_SHAPE, Space
from ..gpus import Gpu, Resources, occupancy
from ..plan.model import MMA_SHARE, Prediction
from .problem import AttentionProblem
from .rung import AttentionConfig, AttentionRung

_ARITHMETIC, _SOFTMAX, _TILE_READS, _Q_READS = 0.81, 31.0, 0.5, 0.07
"""Time of a product on a full SM, over what mma.sync at its best rate takes: all of it; of the softmax, over d_head;
of reading K and V, over the tiles of 16 rows that a warp multiplies with them; of reading Q anew, likewise."""
_HALF_HIDDEN = 0.31
"""Warps a scheduler at which half of the waits are hidden."""
_SLOWER = (("a01", 5.0), ("a07", 1.15), ("a16", 1.05))
"""Rungs up to the one named, over the last: a01's reads meet eight-way bank conflicts."""
_START_US = 3.0
"""A launch, a block's first tiles and its last stores."""


@dataclass(frozen=True)
class AttentionCandidate:
    """One kernel to try, and what the model says of it."""

    rung: AttentionRung
    config: AttentionConfig
    prediction: Prediction
    packs: tuple[str, ...] = ()
    """Always none: operands that must be copied are copied whatever the config."""

    @property
    def text(self) -> str:
        return str(self.config)

    def __str__(self) -> str:
        return f"{self.rung.id} {self.text}"


def registers_of(config: AttentionConfig) -> int:
    """Registers a thread, estimated: rows of out and of scores, Q where it is held, addresses and fragments."""
    out = config.b_r * config.d_head / config.threads
    scores = config.b_r * config.b_c / config.threads
    held = 0.0 if config.load_q else out / 2
    whole = 0.0 if config.load_k else 0.1 * config.b_c * config.d_head / 32
    return round(52 + 1.2 * out + 1.1 * scores + 0.8 * held + whole)


def predict_attention(problem: AttentionProblem, rung: AttentionRung, config: AttentionConfig, gpu: Gpu) -> Prediction:
    """The model's word on one candidate that why_not has let pass."""
    arch, registers = gpu.arch, registers_of(config)
    granted = max(min(registers, 65536 // (config.threads * config.min_blocks), arch.registers_per_thread), 1)
    room = occupancy(Resources(granted, 0, 0, 0, 0, 1), config.threads, rung.shared_bytes(config), arch)
    blocks = ceil_div(problem.seq_q, config.b_r) * problem.heads_q * problem.batch
    if room.blocks == 0:
        return Prediction(float("inf"), blocks, 0, 0.0, registers, "a block does not fit on an SM")
    busiest = max(1, ceil_div(blocks, gpu.sm_count))
    beside = min(busiest, room.blocks)
    most = ceil_div(max(problem.seq_k, 1), config.b_c) * config.b_c
    # a block walks the keys that any of its rows sees, in whole tiles
    keys = min(most, problem.visible_pairs / problem.seq_q + (config.b_r + config.b_c) / 2) if problem.seq_q else most
    warp_rows = config.b_r / config.n_warps / 16
    reads = _TILE_READS / warp_rows + (_Q_READS / warp_rows if config.load_q else 0.0)
    slower = next((factor for last, factor in _SLOWER if rung.id[:3] <= last), 1.0)
    spill = max(1.0, registers / granted) ** 1.5
    relative = (_ARITHMETIC + _SOFTMAX / config.d_head + reads) * slower * spill
    ahead = beside * config.n_warps / arch.warp_schedulers
    hidden = ahead / (ahead + _HALF_HIDDEN)
    share = MMA_SHARE.get(arch.compute_capability, 0.95)
    rate = gpu.assumed_tflops(problem.dtype) * share * 1e6 / gpu.sm_count  # FLOP a us on an SM
    key_us = 4 * config.b_r * config.d_head * relative / (rate * hidden)
    sm_us = max(busiest * keys, most) * key_us
    dram_us = problem.bytes / gpu.dram_gb_s * 1e-3
    limiter = "device memory" if dram_us > sm_us else "spills" if spill > 1 else "arithmetic"
    waves = blocks / (gpu.sm_count * room.blocks)
    return Prediction((max(sm_us, dram_us) + _START_US) * 1e-3, blocks, room.blocks, waves, registers, limiter)


def explore_attention(
    problem: AttentionProblem,
    gpu: Gpu,
    rungs: Sequence[AttentionRung],
    kept: int = KEPT,
    also: Iterable[tuple[AttentionRung, AttentionConfig]] = (),
) -> Space[AttentionCandidate]:
    """The candidates worth compiling: of every rung its space and its defaults. `also`: some kept in any case."""
    pruned: Counter[str] = Counter()
    fits: dict[tuple[str, AttentionConfig], AttentionCandidate] = {}
    always = list(also)
    wanted = {(rung.id, config) for rung, config in always}
    everything = [*always]
    for rung in rungs:
        own = tuple(config for config in rung.defaults if config.d_head == problem.d_head)
        everything += [(rung, config) for config in (*own, *rung.space(problem.d_head))]
    everything = list(dict.fromkeys(everything))
    for rung, config in everything:
        if rung.why_not(problem, config, gpu.arch) is not None:
            pruned["cannot run it (why_not)"] += 1
            continue
        prediction = predict_attention(problem, rung, config, gpu)
        granted = min(65536 // (config.threads * config.min_blocks), gpu.arch.registers_per_thread)
        if prediction.resident == 0:
            pruned["do not fit on an SM"] += 1
        elif prediction.registers > MOST_SPILL * granted and (rung.id, config) not in wanted:
            pruned["would spill registers"] += 1
        else:
            fits[rung.id, config] = AttentionCandidate(rung, config, prediction)
    ordered = sorted(fits.values(), key=_order)
    chosen = [candidate for candidate in ordered if (candidate.rung.id, candidate.config) in wanted][:kept]
    near = [c for c in ordered if c.prediction.ms <= FAR_BEHIND * ordered[0].prediction.ms]
    far = sum(candidate not in chosen for candidate in ordered[len(near) :])
    tiles: Counter[tuple[int, ...]] = Counter()
    for first_choice in (True, False):
        for candidate in near:
            tile = (candidate.config.b_r, candidate.config.b_c, candidate.config.n_warps)
            if len(chosen) >= kept or candidate in chosen or (first_choice and tiles[tile] >= SHARE_OF_A_SHAPE):
                continue
            tiles[tile] += 1
            chosen.append(candidate)
    pruned[f"more than {FAR_BEHIND:g} times the best modelled time"] = far
    pruned[f"not among the best {kept} by the model"] = len(ordered) - far - len(chosen)
    return Space(tuple(sorted(chosen, key=_order)), dict(pruned), len(everything))


def _order(candidate: AttentionCandidate) -> tuple[float, int, str]:
    """By modelled time; of equals the higher rung first, so that a space is always the same."""
    return candidate.prediction.ms, -int(candidate.rung.id[1:3]), candidate.text
