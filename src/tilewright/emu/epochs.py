"""Races on shared memory, and asynchronous copies used before their wait.

Between two barriers of a block (an epoch) nothing orders its warps. So the verdict on an epoch is a pure function of
what was accessed in it: two warps that touch one byte, one of them writing, race, in whatever order they ran. Accesses
are therefore only noted as they happen and judged at the barrier; epochs equal to one already judged clean are not
judged again, and loops are made of equal epochs.

An asynchronous copy counts as a write of the warp that issued it in every epoch from its issue to its landing; within
that time any other access to its bytes, by any thread, is reported as `async_copy_not_waited`.

Lanes of one warp that touch the same byte are lane_races.py's, races on global memory global_races.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from .compiled import address
from .lane_races import LaneRaces, Meeting
from .shadow import Landing, Shadow
from .shared_memory import SharedPattern
from .uses import one_value

if TYPE_CHECKING:
    from .hazards import Reporter
    from .machine import Machine
    from .mbarriers import Mbarrier
    from .product_hazards import ProductJudge

REMEMBERED_EPOCHS = 4096
SEVERAL = 255
"""The owner of a granule to which several warps have stored or added; above every warp of a block."""
KINDS = {"read": 0, "write": 1, "atomic": 2, "copy": 3, "tensor": 4}
PENDING, HAPPENS, LANDS = range(3)
CLEAN, LANES, PERHAPS = range(3)
"""As native/epochs.c numbers them."""
LONGEST_EPOCH = 4096
"""Accesses noted before repeated ones are dropped. An epoch with more different ones is judged in pieces of as many:
a race between two pieces is then missed."""


class _Suspected(Exception):
    """Something would have been reported."""


class _Probe:
    """Stands in for the reporter where it is only asked whether anything is wrong."""

    def __init__(self, reporter: Reporter) -> None:
        self.sources = reporter.sources

    def report(self, *_: Any, **__: Any) -> None:
        raise _Suspected


class EpochShadow(Shadow):
    """For programs whose barriers are those of the whole block."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.log: list[Any] = []
        """Patterns and landings, in order."""
        self.start = np.zeros(machine.ctas, np.int64)
        """Where each block's epoch starts in the log."""
        self.done = np.zeros(machine.ctas, bool)
        self.pending: list[tuple[Any, ...]] = []
        """What was in flight at that start, for each block."""
        self.clean: set[tuple[Any, ...]] = set()
        granules = len(machine.shared.initialised)
        self.owner = np.zeros(granules, np.uint8)
        self.atomic = np.zeros(granules, np.uint8)
        self.flying = np.zeros(granules, bool)
        self.table = np.zeros(granules if machine.compiled else 0, np.uint64)
        """What the compiled loops note of each granule while they judge."""
        self.products: ProductJudge | None = None
        """Judges what wgmma reads, in programs that have it."""
        self.lane_races = LaneRaces(self)
        self.first_block = np.arange(machine.ctas) == 0
        self.epochs = np.zeros(machine.lanes // 32, np.int32)
        """Epoch of each warp of the batch."""
        self.reset()

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.log.clear()
        self.start[:] = 0
        self.done[:] = False
        self.pending = [()] * self.machine.ctas
        self.epochs = np.zeros_like(self.epochs)

    def stamps(self) -> np.ndarray:
        """The epoch of each warp."""
        return self.epochs

    def view(self, warp: int) -> np.ndarray:
        """All of earlier epochs, and its own of this one."""
        known = np.full(self.machine.warps_per_cta, self.epochs[warp] - 1, np.int32)
        known[warp % self.machine.warps_per_cta] += 1
        return known

    def unordered(self, lanes: np.ndarray, others: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Return whether the lanes' epoch is still the one of `stamps`."""
        return np.asarray(self.epochs[lanes // 32] == stamps)

    def record(self, pattern: SharedPattern) -> None:
        """Note an access."""
        self.log.append(pattern)
        if len(self.log) >= LONGEST_EPOCH:
            self._shorten()

    def meet(self, members: np.ndarray | None, firmly: bool = True) -> None:
        """Note that the active lanes of each warp came together."""
        meeting = self.lane_races.meeting(members, firmly)
        if self.log and self.log[-1] is not meeting:
            self.log.append(meeting)

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None, barrier: Mbarrier | None = None) -> None:
        """Note that a copy landed, for its lanes `rows` or for all (None)."""
        if rows is not None:
            self.log.append(Landing(pattern, rows))
            return
        landing = None if pattern.landing is None else pattern.landing()
        if landing is None:
            landing = Landing(pattern, None)
            pattern.landing = ref(landing)
        self.log.append(landing)

    def barrier(self, ctas: np.ndarray | None) -> None:
        """A barrier of whole blocks completed: of those marked in `ctas`, or of all (None). Judges their epoch."""
        self._close(ctas)
        chosen = np.ones(self.machine.ctas, bool) if ctas is None else ctas
        warps = np.repeat(chosen, self.machine.warps_per_cta)
        self.epochs = self.epochs + warps
        self.machine.meetings.whole(warps)

    def _close(self, ctas: np.ndarray | None) -> None:
        now = self.machine.copies.snapshot()
        if self.machine.products:
            now += self.machine.products.snapshot()
        if not (self.log or now or any(self.pending)):
            return
        chosen, starts = ~self.done if ctas is None else ctas & ~self.done, self.start.tolist()
        groups: dict[tuple[int, int], list[int]] = {}
        for k in np.flatnonzero(chosen).tolist():
            groups.setdefault((starts[k], id(self.pending[k])), []).append(k)
        for (start, _), members in groups.items():
            self._judge_once(members, self.log[start:] if start else self.log, self.pending[members[0]])
            for k in members:
                self.pending[k] = now
        self.start[chosen] = len(self.log)
        self._trim()

    def finish(self, ctas: np.ndarray | None = None) -> None:
        """Blocks ended (those marked, or all): judge what is left of them."""
        self._close(ctas)
        self.done |= True if ctas is None else ctas
        self._trim()

    def _trim(self) -> None:
        oldest = int(self.start[~self.done].min(initial=len(self.log)))
        if oldest:
            del self.log[:oldest]
            self.start -= oldest

    def _judge_once(self, members: list[int], events: list[Any], pending: tuple[Any, ...]) -> None:
        whole = len(members) == self.machine.ctas
        key = (*events, None, *pending, None, *(() if whole else members))
        if key in self.clean:
            return
        ctas = None
        if not whole:
            ctas = np.zeros(self.machine.ctas, bool)
            ctas[members] = True
        clean = (whole and self._first_is_clean(events, pending)) or self._judge(ctas, events, pending)
        if clean and len(self.clean) < REMEMBERED_EPOCHS:
            self.clean.add(key)

    def _first_is_clean(self, events: list[Any], pending: tuple[Any, ...]) -> bool:
        """Return whether all blocks do the same and the first does nothing wrong: then none does."""
        machine = self.machine
        if machine.ctas == 1 or not all(map(self._alike, events)) or not all(map(self._alike, pending)):
            return False
        reporter, machine.reporter = machine.reporter, _Probe(machine.reporter)  # type: ignore[assignment]
        try:
            return self._judge(self.first_block, events, pending)
        except _Suspected:  # all blocks are judged, so that the report is the one of all
            return False
        finally:
            machine.reporter = reporter

    def _alike(self, event: Any) -> bool:
        """Return whether each block does the same by an event."""
        if isinstance(event, Meeting):
            return event.members is None and event.warps is None
        if isinstance(event, Landing):
            if event.rows is not None:
                return False
            event = event.pattern
        pattern: SharedPattern = event
        if pattern.alike is None:
            blocks, shared = self.machine.ctas, self.machine.shared
            pattern.alike = pattern.peers is None and len(pattern.granules) % blocks == 0
            if pattern.alike:
                apart = self.machine.warps_per_cta * 32, shared.stride // shared.granule
                parts = (pattern.granules,) if pattern.lanes is None else (pattern.granules, pattern.lanes)
                for part, step in zip(parts, (apart[1], apart[0]), strict=False):
                    pattern.alike &= self._repeats(part, blocks, step)
        return pattern.alike

    def _repeats(self, numbers: np.ndarray, blocks: int, step: int) -> bool:
        """Return whether each block's part of some numbers is the first one's, its place times `step` further."""
        compiled = self.machine.compiled
        if compiled is not None and numbers.dtype == np.int64 and numbers.flags.c_contiguous:
            return bool(compiled.alike(address(numbers), blocks, numbers.size // blocks, step))
        own = numbers.reshape(blocks, -1) - np.arange(blocks)[:, None] * step
        return bool((own == own[0]).all())

    def _shorten(self) -> None:
        """A very long epoch: drop repeated accesses, or, where that does not help, judge it piece by piece."""
        events = [event for event in self.log if not isinstance(event, Meeting)]
        plain = all(isinstance(event, SharedPattern) and event.kind not in ("copy", "tensor") for event in events)
        if plain and not self.start[~self.done].any() and not any(self.pending):
            unique = list(dict.fromkeys(events))
            if len(unique) < LONGEST_EPOCH // 2:
                self.lane_races.judge(None, self.log)
                self.log[:] = unique
                return
        self._close(None)

    def rows(self, event: Any, ctas: np.ndarray | None) -> tuple[SharedPattern, np.ndarray, np.ndarray]:
        """(pattern, granules [rows, k], warps [rows]) of an event, for the lanes of the blocks asked for."""
        pattern = event.pattern if isinstance(event, Landing) else event
        granules, warps = pattern.granules, pattern.warps
        lanes = pattern.lanes
        if ctas is self.first_block:
            count = len(granules) // len(ctas)
            return pattern, granules[:count], warps[:count]
        if isinstance(event, Landing) and event.rows is not None:
            granules, warps = granules[event.rows], warps[event.rows]
            lanes = event.rows if lanes is None else lanes[event.rows]
        if ctas is not None:
            member = self.machine.cta_of_lane if lanes is None else self.machine.cta_of_lane[lanes]
            keep = ctas[member]
            granules, warps = granules[keep], warps[keep]
        return pattern, granules, warps

    def _judge(self, ctas: np.ndarray | None, events: list[Any], pending: tuple[Any, ...]) -> bool:
        """Look for hazards among the events; whether there were none."""
        everything = events
        if (known := self._by_loops(ctas, events, pending)) != PERHAPS:
            return known == CLEAN or self.lane_races.judge(ctas, everything)
        events = [event for event in events if not isinstance(event, Meeting)]
        writes = [e for e in events if isinstance(e, SharedPattern) and e.kind in ("write", "copy")]
        atomics = [e for e in events if isinstance(e, SharedPattern) and e.kind == "atomic"]
        copies = bool(pending) or any(isinstance(e, Landing) or e.kind == "copy" for e in events)
        if not (writes or atomics or pending):
            return True
        clean = self._judge_copies(ctas, events, pending) if copies else True
        if self.products:
            clean &= self.products.judge(ctas, events, pending)
            pending = tuple(event for event in pending if self.rows(event, None)[0].kind == "copy")
        writes = [*pending, *dict.fromkeys(writes)]
        touched = []
        owner, atomic = self.owner, self.atomic
        try:
            for event in writes:
                _, granules, warps = self.rows(event, ctas)
                mine = warps[:, None]
                touched.append(granules)
                found = owner[granules]
                owner[granules] = np.broadcast_to(mine, granules.shape)
                bad = ((found != 0) & (found != mine)) | (owner[granules] != mine)
                if bad.any():
                    others = [one for one in writes if not self._one_value(event, one)]
                    if self._clash(event, bad.any(axis=1), ctas, others, "write"):
                        clean = False
                    else:
                        self._race(event, bad.any(axis=1), ctas, writes, "write", name="flag_race")
                        owner[granules[bad]] = SEVERAL
            for event in dict.fromkeys(atomics):
                _, granules, warps = self.rows(event, ctas)
                mine = warps[:, None]
                touched.append(granules)
                found = owner[granules]
                bad = (found != 0) & (found != mine)
                if bad.any():
                    clean = False
                    self._race(event, bad.any(axis=1), ctas, writes, "atomic")
                before = atomic[granules]
                atomic[granules] = np.broadcast_to(mine, granules.shape)
                several = ((before != 0) & (before != mine)) | (atomic[granules] != mine)
                atomic[granules[several]] = SEVERAL
            for event in dict.fromkeys(e for e in events if isinstance(e, SharedPattern) and e.kind == "read"):
                _, granules, warps = self.rows(event, ctas)
                found = owner[granules]
                if atomics and not self.lane_races.table.guess[event.instruction.index]:
                    mixed = atomic[granules]
                    found = np.where(found == 0, mixed, found)
                if found.any():
                    bad = (found != 0) & (found != warps[:, None])
                    if bad.any():
                        clean = False
                        self._race(event, bad.any(axis=1), ctas, [*writes, *atomics], "read")
        finally:
            for granules in touched:
                owner[granules] = 0
                atomic[granules] = 0
        return clean and self.lane_races.judge(ctas, everything)

    def _by_loops(self, ctas: np.ndarray | None, events: list[Any], pending: tuple[Any, ...]) -> int:
        """Return what the compiled loops say of the events, where there are any: mostly that nothing can be wrong."""
        library = self.machine.compiled
        blocks = self.machine.ctas if ctas is self.first_block else 1
        if library is None or (ctas is not None and blocks == 1):
            return PERHAPS
        numbers: dict[SharedPattern, int] = {}
        happened = []
        for what, some in ((PENDING, pending), (HAPPENS, events)):
            for event in some:
                now, pattern = what, event
                if isinstance(event, Landing):
                    if event.rows is not None or what == PENDING:
                        return PERHAPS
                    now, pattern = LANDS, event.pattern
                elif isinstance(event, Meeting):
                    continue
                happened.append(numbers.setdefault(pattern, len(numbers)) << 2 | now)
        told = [pattern.told or self._tell(pattern) for pattern in numbers]
        if not all(told):
            return PERHAPS
        if not told:
            return CLEAN
        accessed, times, seen = np.array(told, np.int64), np.array(happened, np.int64), np.zeros(len(told), np.uint8)
        accessed[:, 3] //= blocks
        where = address(accessed), len(told), address(times), len(times), address(self.table), address(seen)
        return int(library.epoch(*where))

    @staticmethod
    def _tell(pattern: SharedPattern) -> tuple[int, ...]:
        """Return what the compiled loops are told of an access; nothing where they cannot take it."""
        granules, warps = pattern.granules, pattern.warps
        if granules.dtype != np.int64 or not (granules.flags.c_contiguous and warps.flags.c_contiguous):
            return ()
        pattern.told = KINDS[pattern.kind], address(granules), address(warps), *granules.shape
        return pattern.told

    def _judge_copies(self, ctas: np.ndarray | None, events: list[Any], pending: tuple[Any, ...]) -> bool:
        """Walk through the epoch in order, with what is in flight."""
        flying = self.flying
        touched, clean = [], True
        issued: list[Any] = []
        try:
            for event in pending:
                pattern, granules, _ = self.rows(event, ctas)
                if pattern.kind == "tensor":
                    continue
                flying[granules] = True
                touched.append(granules)
                issued.append(event)
            for event in events:
                pattern, granules, _ = self.rows(event, ctas)
                if isinstance(event, Landing):
                    if pattern.kind == "copy":
                        flying[granules] = False
                    continue
                bad = flying[granules].any(axis=1)
                if bad.any():
                    clean = False
                    self._not_waited(pattern, bad, ctas, issued, granules[bad])
                if pattern.kind == "copy":
                    flying[granules] = True
                    touched.append(granules)
                    issued.append(pattern)
        finally:
            for granules in touched:
                flying[granules] = False
        return clean

    def lanes_of(self, event: Any, ctas: np.ndarray | None) -> np.ndarray:
        """Lanes of the batch, one for each of the rows of an event."""
        pattern = event.pattern if isinstance(event, Landing) else event
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        if isinstance(event, Landing) and event.rows is not None:
            lanes = lanes[event.rows]
        return lanes if ctas is None else lanes[ctas[self.machine.cta_of_lane[lanes]]]

    def _chosen(self, event: Any, rows: np.ndarray, ctas: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(lanes of the batch, shared addresses) of the chosen rows of an event."""
        pattern = event.pattern if isinstance(event, Landing) else event
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        addresses = np.broadcast_to(pattern.addresses, lanes.shape)
        if isinstance(event, Landing) and event.rows is not None:
            lanes, addresses = lanes[event.rows], addresses[event.rows]
        if ctas is not None:
            keep = ctas[self.machine.cta_of_lane[lanes]]
            lanes, addresses = lanes[keep], addresses[keep]
        return lanes[rows], addresses[rows]

    def _one_value(self, event: Any, other: Any) -> bool:
        """Return whether two events store one value, whichever threads run them."""
        patterns = (part.pattern if isinstance(part, Landing) else part for part in (event, other))
        values = [one_value(self.machine.program, pattern.instruction.index) for pattern in patterns]
        return values[0] is not None and values[0] == values[1]

    def _race(
        self, event: Any, rows: np.ndarray, ctas: np.ndarray | None, others: list[Any], verb: str,
        name: str = "shared_race",
    ) -> None:  # fmt: skip
        """Name both sides of a race, of which the other one is among `others`."""
        if not self._clash(event, rows, ctas, others, verb, name):
            raise AssertionError("a race whose other side is not in the epoch")

    def _clash(
        self, event: Any, rows: np.ndarray, ctas: np.ndarray | None, others: list[Any], verb: str,
        name: str = "shared_race",
    ) -> bool:  # fmt: skip
        """Name both sides of a race; whether the other one is among `others`."""
        pattern, granules, warps = self.rows(event, ctas)
        lanes, addresses = self._chosen(event, rows, ctas)
        for row in np.flatnonzero(rows).tolist():
            mine = int(warps[row])
            for other in others:
                other_pattern, other_granules, other_warps = self.rows(other, ctas)
                hit = np.isin(other_granules, granules[row]).any(axis=1) & (other_warps != mine)
                if hit.any():
                    k = int(np.flatnonzero(hit)[0])
                    self.report_race(
                        pattern, lanes, int(addresses[0]), verb, other_pattern.instruction, other_pattern.kind,
                        int(other_warps[k]) - 1, name=name,
                    )  # fmt: skip
                    return True
        return False

    def _not_waited(
        self, pattern: SharedPattern, rows: np.ndarray, ctas: np.ndarray | None, issued: list[Any], granules: np.ndarray
    ) -> None:
        lanes, addresses = self._chosen(pattern, rows, ctas)
        source = next(e for e in reversed(issued) if np.isin(self.rows(e, ctas)[1], granules).any())
        self.report_not_waited(pattern, lanes, addresses, source.pattern if isinstance(source, Landing) else source)
