"""Races between lanes of one warp on shared memory: one touches what another writes, and nothing brings them together.

Lanes of a warp need not run in step. __syncwarp() orders what they do; other instructions that all of them run together
(shuffles, votes, ldmatrix) are taken to do so too, as they do on the GPUs of today. Judged by epochs in
which no two warps race, in the order in which things happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .access import SharedPattern

if TYPE_CHECKING:
    from .shadow import EpochShadow

SEVERAL = -1
_TOGETHER = ("ldmatrix", "stmatrix", "wmma")
"""Accesses that bring all lanes of a warp together."""


class Meeting:
    """Warps whose lanes came together: [warps of the batch], or None for all."""

    __slots__ = ("warps",)

    def __init__(self, mask: np.ndarray | None) -> None:
        self.warps = None if mask is None else mask.reshape(-1, 32).any(axis=1)


class LaneRaces:
    """What EpochShadow asks about the lanes of each warp."""

    def __init__(self, shadow: EpochShadow) -> None:
        self.shadow, self.machine = shadow, shadow.machine
        self._meetings: dict[bytes, Meeting] = {}
        instructions = self.machine.program.instructions
        self.atomic = np.array([i.opcode.startswith(("atom", "red")) for i in instructions])
        granules = len(self.machine.shared.initialised)
        self.marked = np.zeros(granules, bool)
        self.writer, self.reader = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """1 + the lane of the batch that wrote or read last; SEVERAL for lanes of one step."""
        self.wrote_at, self.read_at = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """How often its warp had come together by then."""
        self.wrote, self.read = np.zeros(granules, np.int32), np.zeros(granules, np.int32)
        """The instruction."""

    def meeting(self) -> Meeting:
        """The active lanes come together, each with those of its warp; equal ones are one object."""
        mask = self.machine.mask
        key = b"" if mask is None else mask.tobytes()
        if key not in self._meetings:
            self._meetings[key] = Meeting(mask)
        return self._meetings[key]

    def judge(self, ctas: np.ndarray | None, events: list[Any]) -> bool:
        """Whether no lane met another's access in this epoch."""
        touched: list[np.ndarray] = []
        try:
            if not self._meets(ctas, events, touched):
                return True
            return self._walk(ctas, events, touched)
        finally:
            for granules in touched:
                self.marked[granules] = False
                self.writer[granules] = self.reader[granules] = 0

    def _meets(self, ctas: np.ndarray | None, events: list[Any], touched: list[np.ndarray]) -> bool:
        """Whether anything that is written is touched twice: if not there is nothing to look at."""
        twice = False
        patterns = list(dict.fromkeys(event for event in events if isinstance(event, SharedPattern)))
        for pattern in patterns:
            if pattern.kind in ("write", "atomic"):
                granules = self.shadow.rows(pattern, ctas)[1]
                twice = twice or bool(self.marked[granules].any())
                self.marked[granules] = True
                touched.append(granules)
        reads = [pattern for pattern in patterns if pattern.kind == "read"] if touched else []
        return twice or any(self.marked[self.shadow.rows(pattern, ctas)[1]].any() for pattern in reads)

    def _walk(self, ctas: np.ndarray | None, events: list[Any], touched: list[np.ndarray]) -> bool:
        met = np.zeros(self.machine.lanes // 32, np.int32)
        clean = True
        for event in events:
            if isinstance(event, Meeting):
                met += 1 if event.warps is None else event.warps
                continue
            if not isinstance(event, SharedPattern) or event.kind not in ("read", "write", "atomic"):
                continue
            _, granules, _ = self.shadow.rows(event, ctas)
            lanes = self.shadow.lanes_of(event, ctas)
            if event.instruction.opcode.startswith(_TOGETHER):
                np.add.at(met, np.unique(lanes // 32), 1)
            ids, now = (lanes + 1).astype(np.int32)[:, None], met[lanes // 32][:, None]
            clean &= self._against(event, granules, lanes, ids, now)
            if event.kind == "read":
                if not self.marked[granules].any():
                    continue
                touched.append(granules)
                self._put(self.reader, self.read_at, self.read, granules, ids, now, event)
            else:
                self._put(self.writer, self.wrote_at, self.wrote, granules, ids, now, event)
        return clean

    @staticmethod
    def _put(
        who: np.ndarray, at: np.ndarray, by: np.ndarray, granules: np.ndarray, ids: np.ndarray, now: np.ndarray,
        event: SharedPattern,
    ) -> None:  # fmt: skip
        before = who[granules]
        fresh = (before == 0) | (before == ids) | (at[granules] != now)
        who[granules], at[granules], by[granules] = ids, now, event.instruction.index
        several = (who[granules] != ids) | (~fresh & (event.kind == "read"))
        who[granules[several]] = SEVERAL

    def _against(
        self, event: SharedPattern, granules: np.ndarray, lanes: np.ndarray, ids: np.ndarray, now: np.ndarray
    ) -> bool:
        """Report what meets another lane's access since the two came together last; whether nothing does."""
        tables = [("write", self.writer, self.wrote_at, self.wrote)]
        if event.kind != "read":
            tables.append(("read", self.reader, self.read_at, self.read))
        instructions = self.machine.program.instructions
        for verb, who, at, by in tables:
            last = who[granules]
            bad = (last != 0) & (last != ids) & (at[granules] == now)
            if verb == "write" and bad.any():
                atomic = self.atomic[by[granules]]
                # Plain stores of several lanes in one step mostly store one value.
                bad &= ~atomic if event.kind == "atomic" else (atomic | (last != SEVERAL))
            if not bad.any():
                continue
            row, k = (int(v) for v in np.argwhere(bad)[0])
            other = instructions[int(by[granules[row, k]])]
            if other is event.instruction and verb == "write" and event.kind == "write":
                continue  # the same store again: whose value stays is as undefined within the one
            self._report(event, lanes[bad.any(axis=1)], int(granules[row, k]), verb, other, int(last[row, k]) - 1)
            return False
        return True

    def _report(
        self, event: SharedPattern, lanes: np.ndarray, granule: int, verb: str, other: Any, other_lane: int
    ) -> None:
        machine, shared = self.machine, self.machine.shared
        at = granule * shared.granule % shared.stride
        whose = f"lane {other_lane % 32}" if other_lane >= 0 else "other lanes"
        volatile = all(".volatile" in i.opcode for i in (event.instruction, other))
        machine.report(
            "warp_synchronous" if volatile else "lane_race",
            f"{event.kind} at shared address {at:#x}, {verb} by {whose} of the same warp, and no __syncwarp() between "
            "them",
            event.instruction, lanes, at, {"other_access": machine.reporter.sources.where(other)}, other,
        )  # fmt: skip
