"""Races between lanes of one warp on shared memory: one touches what another writes, and nothing brings them together.

meetings.py says when lanes come together. Judged by epochs in which no two warps race, in the order in which things
happened; beside vector clocks at each access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import address
from .global_words import guessing
from .meetings import Meetings
from .shadow import WORDS, Landing
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .epochs import EpochShadow
    from .machine import Machine
    from .messages import Messages

SEVERAL = -1
READS = ("read", "bulk_read")
_TOGETHER = ("ldmatrix", "stmatrix", "wmma")
"""Accesses that bring all lanes of a warp together."""


class Meeting:
    """The active lanes of a moment came together, those of each warp that their member masks name."""

    __slots__ = ("firm", "members", "warps")

    def __init__(self, mask: np.ndarray | None, members: np.ndarray | None, firm: bool) -> None:
        self.firm = firm
        """Whether that orders memory, which shuffles and votes do not."""
        self.warps = None if mask is None else mask.reshape(-1, 32).any(axis=1)
        """Which warps of the batch; None: all."""
        self.members = members
        """Member mask of each lane of the batch; None: all lanes of these warps."""

    def note(self, met: Meetings, live: np.ndarray) -> None:
        """Note it among others."""
        if self.members is None:
            met.whole(self.warps, firmly=self.firm)
        else:
            met.some(self.members, live, firmly=self.firm)


class LaneTable:
    """A table by granule of shared memory: the lanes of its warp that touched it last."""

    def __init__(self, machine: Machine, messages: Messages | None = None) -> None:
        self.machine, program = machine, machine.program
        self.atomic = program.opcodes_begin("atom", "red")
        self.together = program.opcodes_begin(*_TOGETHER)
        self.guess = guessing(program)
        """Loads that no atomic races with."""
        self.messages = messages
        """What lanes may tell one another by flags."""
        granules = len(machine.shared.initialised)
        self.writer, self.reader = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """1 + the lane of the batch that wrote or read last; SEVERAL for lanes of one step."""
        self.wrote_at, self.read_at = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """The time of that, by the meetings."""
        self.wrote, self.read = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """The instruction."""
        self.shared_out = self.atomic | program.opcodes_begin("stmatrix")
        """Instructions by which several lanes change a place in one step, and not by storing one value."""
        tables = self.writer, self.wrote_at, self.wrote, self.reader, self.read_at, self.read, self.shared_out
        self.told = np.array([*map(address, tables), address(machine.meetings.last)], np.int64)
        """What the compiled loops are told of these (native/clocks.c)."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.writer[:] = self.reader[:] = 0

    def touch(self, event: SharedPattern, granules: np.ndarray, lanes: np.ndarray, met: Meetings) -> bool:
        """Note an access, and report what meets another lane's since the two came together; whether nothing does."""
        ids = (lanes + 1).astype(np.int32)[:, None]
        if event.instruction.opcode.startswith(_TOGETHER):
            if event.kind in READS:  # that the lanes come together does not say that they see each other's stores
                self._against(event, granules, lanes, ids, met, "warp_synchronous")
            met.whole(np.unique(lanes // 32))
        clean = self._against(event, granules, lanes, ids, met)
        if clean and met.firm is not None and event.kind in READS:
            self._against(event, granules, lanes, ids, met.firm, "warp_synchronous")
        if event.kind == "copy":
            pass  # it writes when it lands
        elif event.kind in READS:
            self._put(self.reader, self.read_at, self.read, granules, lanes, event, met)
        else:
            self._put(self.writer, self.wrote_at, self.wrote, granules, lanes, event, met)
        return clean

    def overwritten(self, event: SharedPattern, lanes: np.ndarray, met: Meetings) -> None:
        """Report a bulk copy over what another lane of its warp has touched since the two came together."""
        self._against(event, event.granules, lanes, (lanes + 1).astype(np.int32)[:, None], met)

    def landed(self, event: SharedPattern, granules: np.ndarray, lanes: np.ndarray, met: Meetings) -> None:
        """Note what a cp.async has brought: a write of its lane, which has waited for it."""
        self._put(self.writer, self.wrote_at, self.wrote, granules, lanes, event, met)

    def note_read(self, event: SharedPattern, granules: np.ndarray, lanes: np.ndarray, met: Meetings) -> None:
        """Note a read that has been judged."""
        self._put(self.reader, self.read_at, self.read, granules, lanes, event, met)

    def _put(
        self, who: np.ndarray, at: np.ndarray, by: np.ndarray, granules: np.ndarray, lanes: np.ndarray,
        event: SharedPattern, met: Meetings,
    ) -> None:  # fmt: skip
        before, ids = who[granules], (lanes + 1).astype(np.int32)[:, None]
        others = (before != 0) & (before != ids) if event.kind in READS else np.zeros(before.shape, bool)
        if others.any():
            others[others] = self._apart(before[others], at[granules][others], lanes[np.nonzero(others)[0]], met)
        if event.instruction.opcode.startswith("stmatrix"):  # a row that a lane names has parts of four
            ids = np.full_like(ids, SEVERAL)
        who[granules], at[granules], by[granules] = ids, met.time, event.instruction.index
        several = (who[granules] != ids) | others
        who[granules[several]] = SEVERAL

    def _apart(self, last: np.ndarray, times: np.ndarray, lanes: np.ndarray, met: Meetings) -> np.ndarray:
        """Return which lanes have not met those of their warp who touched something last."""
        others = np.where(last == SEVERAL, SEVERAL, last - 1)
        near: np.ndarray = (others < 0) | (others // 32 == lanes // 32)
        near &= met.apart(lanes, others, times)
        if self.messages and near.any():
            near &= ~self.messages.between_lanes(lanes, times)
        return near

    def _against(
        self, event: SharedPattern, granules: np.ndarray, lanes: np.ndarray, ids: np.ndarray, met: Meetings,
        name: str = "lane_race",
    ) -> bool:  # fmt: skip
        tables = [("write", self.writer, self.wrote_at, self.wrote)]
        if event.kind not in READS:
            tables.append(("read", self.reader, self.read_at, self.read))
        instructions = self.machine.program.instructions
        joins = event.kind == "atomic" or bool(self.guess[event.instruction.index])
        for verb, who, at, by in tables:
            last = who[granules]
            bad = (last != 0) & (last != ids)
            if verb == "write" and bad.any():
                atomic, shared_out = self.atomic[by[granules]], self.shared_out[by[granules]]
                # Plain stores of several lanes in one step mostly store one value.
                bad &= ~atomic if joins else (shared_out | (last != SEVERAL))
            elif verb == "read" and event.kind == "atomic":
                bad &= ~self.guess[by[granules]]
            if event.kind == "read" and self.together[event.instruction.index]:  # what a lane names, others read
                own = last == ids
                bad, last = bad | own, np.where(own, SEVERAL, last)
            if event.kind == "bulk_read":  # what all lanes stored in one step is there when one of them starts a copy
                bad &= ~self.together[by[granules]]
            if bad.any():
                bad[bad] = self._apart(last[bad], at[granules][bad], lanes[np.nonzero(bad)[0]], met)
            if not bad.any():
                continue
            row, k = (int(v) for v in np.argwhere(bad)[0])
            other = instructions[int(by[granules[row, k]])]
            if other is event.instruction and verb == "write" and event.kind == "write":
                continue  # the same store again: whose value stays is as undefined within the one
            self._report(event, lanes[bad.any(axis=1)], int(granules[row, k]), verb, other, int(last[row, k]) - 1, name)
            return False
        return True

    def _report(
        self, event: SharedPattern, lanes: np.ndarray, granule: int, verb: str, other: Any, other_lane: int, name: str
    ) -> None:
        machine, shared = self.machine, self.machine.shared
        at = granule * shared.granule % shared.stride
        whose = f"lane {other_lane % 32}" if other_lane >= 0 else "other lanes"
        volatile = all(".volatile" in i.opcode for i in (event.instruction, other))
        details = {"other_access": machine.reporter.sources.where(other)}
        if name == "warp_synchronous" and not self.together[event.instruction.index]:
            details["between_them"] = "a shuffle or a vote, which orders no memory"
        machine.report(
            "warp_synchronous" if volatile else name,
            f"{WORDS.get(event.kind, event.kind)} at shared address {at:#x}, {verb} by {whose} of the same warp, and "
            "no __syncwarp() between them",
            event.instruction, lanes, at, details, other,
        )  # fmt: skip


class LaneRaces:
    """The part of EpochShadow that knows the lanes of each warp."""

    def __init__(self, shadow: EpochShadow) -> None:
        self.shadow, self.machine = shadow, shadow.machine
        self._meetings: dict[tuple[bytes, bytes, bool], Meeting] = {}
        self.table = LaneTable(self.machine)
        self.marked = np.zeros(len(self.table.writer), bool)

    def meeting(self, members: np.ndarray | None, firm: bool) -> Meeting:
        """The active lanes come together, each with those of its warp that it names; equal ones are one object."""
        mask = self.machine.mask
        key = b"" if mask is None else mask.tobytes(), b"" if members is None else members.tobytes(), firm
        if key not in self._meetings:
            self._meetings[key] = Meeting(mask, members, firm)
        return self._meetings[key]

    def judge(self, ctas: np.ndarray | None, events: list[Any]) -> bool:
        """Return whether no lane met another's access in this epoch, in which no two warps race."""
        touched: list[np.ndarray] = []
        try:
            if not self._meets(ctas, events, touched):
                return True
            return self._walk(ctas, events, touched)
        finally:
            for granules in touched:
                self.marked[granules] = False
                self.table.writer[granules] = self.table.reader[granules] = 0

    def _meets(self, ctas: np.ndarray | None, events: list[Any], touched: list[np.ndarray]) -> bool:
        """Return whether anything that is written is touched twice: if not there is nothing to look at."""
        twice = False
        each = (event.pattern if isinstance(event, Landing) else event for event in events)
        patterns = list(dict.fromkeys(event for event in each if isinstance(event, SharedPattern)))
        for pattern in patterns:
            if pattern.kind in ("write", "atomic", "copy"):
                granules = self.shadow.rows(pattern, ctas)[1]
                twice = twice or bool(self.marked[granules].any())
                self.marked[granules] = True
                touched.append(granules)
        reads = [pattern for pattern in patterns if pattern.kind == "read"] if touched else []
        return twice or any(self.marked[self.shadow.rows(pattern, ctas)[1]].any() for pattern in reads)

    def _walk(self, ctas: np.ndarray | None, events: list[Any], touched: list[np.ndarray]) -> bool:
        loose = any(isinstance(event, Meeting) and not event.firm for event in events)
        met = Meetings(self.machine.lanes // 32, loose=loose)
        live = self.machine.scheduler.born
        clean = True
        for event in events:
            if isinstance(event, Meeting):
                event.note(met, live)
                continue
            if isinstance(event, Landing):
                pattern, granules, _ = self.shadow.rows(event, ctas)
                if pattern.kind == "copy":
                    touched.append(granules)
                    self.table.landed(pattern, granules, self.shadow.lanes_of(event, ctas), met)
                continue
            if not isinstance(event, SharedPattern) or event.kind not in ("read", "write", "atomic", "copy"):
                continue
            _, granules, _ = self.shadow.rows(event, ctas)
            lanes = self.shadow.lanes_of(event, ctas)
            if event.kind in READS and not self.marked[granules].any():
                if event.instruction.opcode.startswith(_TOGETHER):
                    met.whole(np.unique(lanes // 32))
                continue
            touched.append(granules)
            clean &= self.table.touch(event, granules, lanes, met)
        return clean
