"""The knowledge that warps have of one another's steps, as vector clocks.

A warp knows, of each warp of its cluster, the newest step that it is ordered after; of each mbarrier, how many phases
it knows to be complete. What synchronises hands on knowledge: a barrier joins that of those that arrived into those
that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .shadow import Shadow

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Mbarrier

COLUMNS = 32
"""mbarriers of a cluster for which there is room at first."""


def _newer(before: np.ndarray | None, news: np.ndarray) -> np.ndarray:
    """Return news, by now of what is known by either; they have as many columns or more."""
    if before is not None:
        np.maximum(news[: len(before)], before, out=news[: len(before)])
    return news


class Knowledge(Shadow):
    """A table of who knows what; clocks.py adds what accesses need to know."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.warps = machine.cluster_size * machine.warps_per_cta
        """Warps of a cluster."""
        self.clusters = machine.ctas // machine.cluster_size
        self.columns = np.zeros(self.clusters, np.int64)
        """mbarriers of each cluster so far."""
        self.make_room(COLUMNS)
        self.arrived: dict[tuple[int, int], np.ndarray] = {}
        self._own: np.ndarray | None = None

    def know_nothing(self) -> None:
        """A new batch of blocks starts."""
        self.known[:] = 0
        self.known[:, range(self.warps), range(self.warps)] = 1
        self.columns[:] = 0
        self.arrived.clear()
        self._own = None

    def make_room(self, columns: int) -> None:
        """Room for so many mbarriers."""
        old = getattr(self, "known", None)
        self.known = np.zeros((self.clusters, self.warps, self.warps + columns), np.int32)
        if old is not None:
            self.known[:, :, : old.shape[2]] = old
        self.order = self.known[:, :, : self.warps]
        """What warps know of warps."""
        self.by_cta = self.known.reshape(self.machine.ctas, self.machine.warps_per_cta, -1)

    def place(self, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(cluster, warp within the cluster) of lanes of the batch."""
        cta, size = self.machine.cta_of_lane[lanes], self.machine.cluster_size
        return cta // size, cta % size * self.machine.warps_per_cta + self.machine.warp_of_lane[lanes]

    def _warps_of(self, lanes: np.ndarray) -> np.ndarray:
        """The warps of the batch that lanes are of, each once, in order."""
        if len(lanes) == 1:
            return lanes // 32
        there = np.zeros(self.machine.lanes // 32, bool)
        there[lanes // 32] = True
        return np.flatnonzero(there)

    def _join(self, lanes: np.ndarray, before: np.ndarray | None) -> np.ndarray:
        """Return what the warps of lanes of one cluster know together, and what is in `before`; the warps then step
        on."""
        cluster, warp = divmod(int(lanes[0]) // 32, self.warps)
        if len(lanes) == 1:
            done = self.known[cluster, warp].copy()
            self.known[cluster, warp, warp] += 1
        else:
            warps = self._warps_of(lanes) % self.warps
            done = self.known[cluster, warps].max(axis=0)
            self.known[cluster, warps, warps] += 1
        self._own = None
        return _newer(before, done)

    def _learn(self, warps: np.ndarray, news: np.ndarray | None) -> None:
        """Warps of the batch, in order, take over knowledge."""
        if news is None:
            return
        first, last, table = int(warps[0]), int(warps[-1]), self.known.reshape(-1, self.known.shape[2])
        if last - first + 1 == len(warps):  # next to one another, as those of a block mostly are
            part = table[first : last + 1, : len(news)]
            np.maximum(part, news, out=part)
        else:
            table[warps, : len(news)] = np.maximum(table[warps, : len(news)], news)

    def knows_block(self, lanes: np.ndarray, ctas: np.ndarray) -> np.ndarray:
        """See Shadow."""
        (cluster, warps), size = self.place(lanes), self.machine.cluster_size
        known = self.order[cluster, warps].reshape(len(lanes), size, -1).max(axis=2)
        return np.asarray(known[np.arange(len(lanes)), ctas % size] > 0)

    def step_on(self, cluster: int, warp: int) -> None:
        """Step a warp's clock on: what it does from now on is not what it has handed on."""
        self.known[cluster, warp, warp] += 1
        self._own = None

    def stamps(self) -> np.ndarray:
        """The clock of each warp of the batch."""
        if self._own is None:
            every = np.arange(self.warps)
            self._own = self.order[:, every, every].reshape(-1)
        return self._own

    def clocks_of(self, cta: int, warps: np.ndarray) -> np.ndarray:
        """Return how far warps of a block have come, for `come_after`."""
        first = cta % self.machine.cluster_size * self.machine.warps_per_cta
        return np.asarray(self.by_cta[cta, warps, first + warps])

    def come_after(self, cta: int, warps: np.ndarray, clocks: np.ndarray) -> np.ndarray:
        """Return which warps of a block do what they do next after any of these was at its clock."""
        first = cta % self.machine.cluster_size * self.machine.warps_per_cta
        return np.asarray((self.by_cta[cta][:, first + warps] >= clocks).any(axis=1))

    def view(self, warp: int) -> np.ndarray:
        """Return what a warp knows of warps, now."""
        return np.array(self.order[warp // self.warps, warp % self.warps])

    def unordered(self, lanes: np.ndarray, others: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Return whether the lanes' warps do not know of the others' steps."""
        cluster, warps = self.place(lanes)
        return np.asarray(self.order[cluster, warps, self.place(others)[1]] < stamps)

    # Barriers of a block

    def barrier(self, ctas: np.ndarray | None) -> None:
        """All warps of a block know all that was done before."""
        chosen = np.ones(self.machine.ctas, bool) if ctas is None else ctas
        joined = self.by_cta[chosen].max(axis=1)
        self.by_cta[chosen] = joined[:, None, :]
        self._tick(np.flatnonzero(chosen), np.ones(self.machine.warps_per_cta, bool))
        self.machine.meetings.whole(np.repeat(chosen, self.machine.warps_per_cta))

    def _tick(self, ctas: np.ndarray, warps: np.ndarray) -> None:
        self._own = None
        first = ctas % self.machine.cluster_size * self.machine.warps_per_cta
        for w in np.flatnonzero(warps):
            self.by_cta[ctas, w, first + w] += 1

    def arrive(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """Hand to the barrier what the arriving warps have done so far."""
        if not warps.any():
            return
        done = self.by_cta[cta][warps].max(axis=0)
        before = self.arrived.get((cta, ident))
        if before is not None:
            done[: len(before)] = np.maximum(done[: len(before)], before)
        self.arrived[(cta, ident)] = done
        self._tick(np.array([cta]), warps)

    def release(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """Let those that waited take over what was handed to the barrier."""
        done = self.arrived.pop((cta, ident), None)
        if done is not None and warps.any():
            self.by_cta[cta, warps, : len(done)] = np.maximum(self.by_cta[cta, warps, : len(done)], done)
            self.machine.meetings.whole(cta * self.machine.warps_per_cta + np.flatnonzero(warps))

    # mbarriers

    def fenced_by(self, lanes: np.ndarray, near: bool) -> np.ndarray | None:
        """Return what warps of one cluster knew at their last fences, where that is kept. `near`: of any scope."""
        return None

    def _hand_on_fenced(self, barrier: Mbarrier, lanes: np.ndarray) -> None:
        """Lanes of the cluster of an mbarrier arrive there and say no more than what their fences came after."""
        far, near = self.fenced_by(lanes, near=False), self.fenced_by(lanes, near=True)
        if far is not None and near is not None:
            own = bool((self.machine.cta_of_lane[lanes] == barrier.cta).all())
            if self.machine.cluster_size > 1:
                barrier.near = _newer(barrier.near, near if own else far.copy())
            barrier.handed = _newer(barrier.handed, far)

    def released(self, barrier: Mbarrier, lanes: np.ndarray, narrow: bool = False, relaxed: bool = False) -> None:
        """Lanes hand on what they know. `narrow`: to their own block, in so many words."""
        size = self.machine.cluster_size
        if size == 1 and not relaxed:  # all are of the object's block
            self.told_by(lanes)
            barrier.handed = self._join(lanes, barrier.handed)
            return
        for some in self._by_cluster(lanes):
            if self.place(some[:1])[0][0] != barrier.cta // size:
                continue
            if relaxed:
                self._hand_on_fenced(barrier, some)
                continue
            own = some[self.machine.cta_of_lane[some] == barrier.cta]
            if len(own):
                self.told_by(own)
                done = self._join(own, None)
                barrier.near = _newer(barrier.near, done.copy())
                barrier.handed = _newer(barrier.handed, done)
            if len(own) < len(some) and not narrow:
                others = some[self.machine.cta_of_lane[some] != barrier.cta]
                self.told_by(others)
                barrier.handed = self._join(others, barrier.handed)

    def comes_too(self, barrier: Mbarrier, other: Mbarrier) -> None:
        """Who sees the phase of an mbarrier complete knows of the copies of another one's."""
        done = np.zeros(self.known.shape[2], np.int32)
        done[other.column] = other.completed + 1
        if self.machine.cluster_size > 1:
            barrier.near = _newer(barrier.near, done.copy())
        barrier.handed = _newer(barrier.handed, done)

    def told_by(self, lanes: np.ndarray) -> None:
        """Lanes hand on what their warps have done: clocks.py keeps for whom they cannot speak."""

    def _by_cluster(self, lanes: np.ndarray) -> list[np.ndarray]:
        if len(lanes) == 1:
            return [lanes]
        cluster, _ = self.place(lanes)
        if (cluster == cluster[0]).all():
            return [lanes]
        return [lanes[cluster == number] for number in np.unique(cluster)]

    def completed(self, barrier: Mbarrier) -> None:
        """A phase of an mbarrier is complete."""
        done = np.zeros(self.known.shape[2], np.int32)
        done[barrier.column] = barrier.completed
        if self.machine.cluster_size > 1:
            barrier.near = barrier.published_near = _newer(barrier.near, done.copy())
        barrier.handed = barrier.published = _newer(barrier.handed, done)

    def acquired(self, barrier: Mbarrier, lanes: np.ndarray, narrow: bool = False) -> None:
        """Lanes have seen that a phase is complete. `narrow`: they listen to their own block, in so many words."""
        warps = self._warps_of(lanes)
        self._learn(warps, barrier.published_near if narrow and self.machine.cluster_size > 1 else barrier.published)
        self.machine.meetings.whole(warps)

    # Clusters

    def cluster_released(self, lanes: np.ndarray, relaxed: bool = False) -> None:
        """Lanes arrive at the barrier of their cluster."""
        for some in self._by_cluster(lanes):
            key = (-1 - int(self.place(some[:1])[0][0]), 0)
            before = self.arrived.get(key)
            if not relaxed:
                self.arrived[key] = self._join(some, before)
            elif (done := self.fenced_by(some, near=False)) is not None:
                self.arrived[key] = _newer(before, done)

    def cluster_completed(self, cluster: int) -> None:
        """All have arrived."""
        done = self.arrived.pop((-1 - cluster, 0), None)
        if done is not None:
            self.arrived[(-1 - cluster, 1)] = done

    def cluster_acquired(self, lanes: np.ndarray) -> None:
        """Lanes go on from the barrier of their cluster."""
        for some in self._by_cluster(lanes):
            self._learn(self._warps_of(some), self.arrived.get((-1 - int(self.place(some[:1])[0][0]), 1)))
        self.machine.meetings.whole(self._warps_of(lanes))
