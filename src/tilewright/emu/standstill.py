"""Batches that do not come to an end, in words: where each thread is, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .hazards import lane_ranges
from .orders import NOWHERE
from .ptx import Instruction

if TYPE_CHECKING:
    from .schedule import Scheduler


def whereabouts(scheduler: Scheduler, cta: int, at: Instruction | None = None) -> list[str]:
    """One line for each warp of a block: which lanes wait where."""
    machine, out = scheduler.machine, []
    sources = machine.reporter.sources
    width = machine.warps_per_cta
    for warp in range(width):
        span = slice((cta * width + warp) * 32, (cta * width + warp + 1) * 32)
        places: dict[str, list[int]] = {}
        for lane in np.flatnonzero(scheduler.born[span]).tolist():
            k = span.start + lane
            if not scheduler.live[k]:
                where = "have exited"
            elif scheduler.barriers.at[k] >= 0 or scheduler.joining[k] >= 0 or scheduler.parked[k]:
                where = "wait at " + sources.where(machine.program.instructions[int(scheduler.parked_at[k])])
            elif at is not None:
                where = "wait at " + sources.where(at)
            elif scheduler.key[k] != NOWHERE:
                first = machine.program.blocks[int(scheduler.key[k])].start
                where = "run at " + sources.where(machine.program.instructions[first])
            else:
                where = "run"
            places.setdefault(where, []).append(lane)
        parts = [f"{lane_ranges(tuple(lanes))} {where}" for where, lanes in places.items()]
        out.append(f"warp {warp}: " + "; ".join(parts).replace(";;", ";"))  # PTX ends in one
    return out


def _waited_for(scheduler: Scheduler, cta: int) -> dict[str, list[str]]:
    """Return what the blocks of a cluster wait for besides barriers of a block, in words."""
    machine = scheduler.machine
    first = cta // machine.cluster_size * machine.cluster_size
    blocks = range(first, first + machine.cluster_size)
    lines = [line for block in blocks for line in machine.mbarriers.waited_for(block)]
    lines += [*machine.clusters.waited_for(first), *machine.registers.waited_for(blocks)]
    return {"what_is_waited_for": lines} if lines else {}


def report_deadlock(scheduler: Scheduler) -> None:
    """Nobody can run and some wait."""
    machine = scheduler.machine
    lanes = np.flatnonzero(scheduler.live)
    cta = int(machine.cta_of_lane[lanes[0]])
    first = lanes[machine.cta_of_lane[lanes] == cta]
    instruction = machine.program.instructions[int(scheduler.parked_at[first[0]])]
    if scheduler.barriers.uneven(cta, instruction):
        scheduler.abandon()
        return
    machine.report(
        "deadlock",
        "every thread that has not ended waits, and nothing can come to let it go",
        instruction, first[scheduler.parked_at[first] == instruction.index], None,
        {"where_each_waits": whereabouts(scheduler, cta), **_waited_for(scheduler, cta)},
    )  # fmt: skip
    scheduler.abandon()


def report_endless(scheduler: Scheduler, here: int, why: str) -> None:
    """The batch would run for ever, or longer than allowed."""
    machine = scheduler.machine
    if scheduler.uniform:  # from here on each lane's place can be shown
        scheduler.separate()
    lanes = np.flatnonzero(scheduler.active_mask() & scheduler.live)
    cta = int(machine.cta_of_lane[lanes[0]])
    machine.report(
        "endless_loop", why, machine.program.instructions[machine.program.blocks[here].start], lanes, None,
        {"where_each_is": whereabouts(scheduler, cta)},
    )  # fmt: skip
    scheduler.abandon()
