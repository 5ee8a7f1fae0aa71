"""Clusters of blocks: the barrier that all their threads share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigRejected, InvalidOperand
from .ptx import Function, Instruction
from .task import Triple

if TYPE_CHECKING:
    from ..gpus import Gpu
    from .machine import Machine


MOST = 16
"""Blocks of a cluster; more than 8 take an attribute of the kernel on a GPU."""


def check_cluster(entry: Function, grid: Triple, given: Triple | None, gpu: Gpu) -> Triple | None:
    """The cluster of a launch, by the launch or by the kernel; None without. Raises where it cannot be launched."""
    text = entry.directives.get("reqnctapercluster")
    fixed = None
    if text:
        x, y, z = (*(int(n) for n in text.split(",")), 1, 1)[:3]
        fixed = (x, y, z)
    if fixed and given and fixed != given:
        raise ConfigRejected(f"a cluster of {given}, but {entry.name} was compiled for {fixed} (its __cluster_dims__)")
    cluster = fixed or given
    if cluster is None:
        return None
    if gpu.arch.compute_capability < (9, 0):
        raise ConfigRejected(f"a cluster of {cluster}: {gpu.name} ({gpu.arch.name}) has none; GPUs from sm_90 on do.")
    if min(cluster) < 1 or cluster[0] * cluster[1] * cluster[2] > MOST:
        raise InvalidOperand(f"a cluster of {cluster}: 1 to {MOST} blocks are allowed")
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise ConfigRejected(f"a grid of {grid} is not made of whole clusters of {cluster}")
    return cluster


class Clusters:
    """barrier.cluster in each cluster of one batch: threads arrive, later wait for all that have not ended."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cluster_of_lane = machine.cta_of_lane // machine.cluster_size
        self.arrived = np.zeros(machine.lanes, bool)
        """Lanes that have arrived in the current phase."""
        self.owed = np.full(machine.lanes, -1, np.int64)
        """Phase that a lane arrived in and has not waited for; -1: none."""
        self.phase = np.zeros(machine.ctas // machine.cluster_size, np.int64)
        self.begun = np.zeros(machine.ctas, bool)
        """Blocks that know of all the others of their cluster that they have begun: a lane has passed the barrier."""
        self.waiting = np.zeros(machine.lanes, bool)
        self.acquires = np.zeros(machine.lanes, bool)

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.arrived[:] = self.waiting[:] = False
        self.owed[:] = -1
        self.phase[:] = 0
        self.begun[:] = False

    def arrive(self, instruction: Instruction, lanes: np.ndarray, releases: bool) -> None:
        """Lanes arrive."""
        twice = self.owed[lanes] >= 0
        if twice.any():
            self.machine.report(
                "cluster_barrier", "a thread arrives again without a wait in between", instruction, lanes[twice], None
            )
        self.machine.shadow.cluster_released(lanes, relaxed=not releases)
        self.arrived[lanes] = True
        self.owed[lanes] = self.phase[self.cluster_of_lane[lanes]]
        self._settle(np.unique(self.cluster_of_lane[lanes]))

    def wait(self, instruction: Instruction, lanes: np.ndarray, acquires: bool) -> np.ndarray:
        """Lanes ask for the phase they arrived in; those of them that have to wait."""
        never = self.owed[lanes] < 0
        if never.any():
            self.machine.report(
                "cluster_barrier", "a thread waits that has not arrived", instruction, lanes[never], None
            )
        self.acquires[lanes] = acquires
        ready = self.owed[lanes] < self.phase[self.cluster_of_lane[lanes]]
        self._pass(lanes[ready])
        return lanes[~ready]

    def park(self, lanes: np.ndarray) -> None:
        """Lanes wait, the scheduler has set them aside."""
        self.waiting[lanes] = True

    def _pass(self, lanes: np.ndarray) -> None:
        self.owed[lanes] = -1
        self.begun[self.machine.cta_of_lane[lanes]] = True
        knowing = lanes[self.acquires[lanes]]
        if len(knowing):
            self.machine.shadow.cluster_acquired(knowing)

    def _settle(self, clusters: np.ndarray) -> None:
        """End the phases that are complete."""
        live = self.machine.scheduler.live
        for cluster in clusters.tolist():
            own = self.cluster_of_lane == cluster
            if not (own & self.arrived).any() or (own & live & ~self.arrived).any():
                continue
            self.phase[cluster] += 1
            self.arrived[own] = False
            self.machine.shadow.cluster_completed(cluster)
            lanes = np.flatnonzero(own & self.waiting)
            if len(lanes):
                self.waiting[lanes] = False
                self._pass(lanes)
                self.machine.scheduler.wake(lanes)

    def leave(self, leaving: np.ndarray) -> None:
        """Lanes (a mask) ended: nobody waits for them any more."""
        self.arrived[leaving] = False
        if (self.owed >= 0).any():
            self._settle(np.unique(self.cluster_of_lane[leaving]))

    def waited_for(self, first_cta: int) -> list[str]:
        """Return what the barrier of a cluster waits for, in words, if anybody waits at it."""
        machine = self.machine
        own = self.cluster_of_lane == first_cta // machine.cluster_size
        if not (own & self.waiting).any():
            return []
        late = own & machine.scheduler.live & ~self.arrived
        blocks = np.unique(machine.cta_of_lane[late]).tolist()
        names = ", ".join(str(machine.coordinates(block)) for block in blocks)
        return [f"barrier.cluster: {int(late.sum())} threads of block {names} have not arrived"]
