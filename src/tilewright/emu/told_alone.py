"""Lanes that tell for their warp, beside vector clocks, without having met the others of it.

An arrival at an mbarrier or a flag hands on what the clock of the warp says. Where only a part of the warp arrives, the
others may still be about to do what that clock says is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .ptx import Instruction
from .shadow import WORDS
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .clocks import ClockShadow


class ToldAlone:
    """The part of ClockShadow that knows for which lanes of its warp one cannot speak."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow, self.machine = shadow, shadow.machine
        self.stored_at = np.full(self.machine.lanes, -1, np.int64)
        """The time of each lane's last plain store, by the meetings."""
        self.loaded_at = np.full(self.machine.lanes, -1, np.int64)
        """The same of plain loads, but for those that all lanes of a warp run together."""
        self.stored = False
        """Whether there was any store or load of these."""
        self.told: dict[tuple[int, int, int], tuple[np.ndarray, int]] = {}
        """(cluster, warp, clock) -> of an arrival at an mbarrier by a part of a warp: which lanes arrived, and when the
        warp had last come together. What the others have done since then is not told."""

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.told.clear()
        self.stored_at[:] = self.loaded_at[:] = -1
        self.stored = False

    def note(self, lanes: np.ndarray, index: int, *, writes: bool) -> None:
        """Lanes have run the store (`writes`) or load that instruction `index` is."""
        if writes or not self.shadow.lanes.together[index]:
            self.stored = True
            (self.stored_at if writes else self.loaded_at)[lanes] = self.machine.meetings.time

    def others_touched(self, lane: int) -> bool:
        """Return whether another lane of a lane's warp has stored or read since they came together last."""
        if not self.stored:
            return False
        every = slice(lane // 32 * 32, lane // 32 * 32 + 32)
        lately = np.maximum(self.stored_at[every], self.loaded_at[every]) >= self.machine.meetings.last[lane // 32]
        lately[lane % 32] = False
        return bool(lately.any())

    def by(self, lanes: np.ndarray, clock: int | None = None) -> None:
        """Note of which lanes of their warps these cannot speak: of those that have stored or read since they last
        met. `clock`: up to when they tell of their warp, where that is not now."""
        met, shadow = self.machine.meetings, self.shadow
        if not self.stored:
            return
        for warp in dict.fromkeys((lanes // 32).tolist()):
            every = slice(32 * warp, 32 * warp + 32)
            absent = np.ones(32, bool)  # those that have ended, too
            absent[lanes[lanes // 32 == warp] % 32] = False
            since = int(met.last[warp])
            (cluster,), (own,) = shadow.place(np.array([32 * warp]))
            key = int(cluster), int(own), int(shadow.order[cluster, own, own]) if clock is None else clock
            if not (absent & (np.maximum(self.stored_at[every], self.loaded_at[every]) >= since)).any():
                self.told.pop(key, None)
                continue
            if any(time > since and members[every].any() for time, members in met.parts):
                continue  # some have met: whoever it was is taken to speak for all
            if shadow.messages and shadow.messages.spoken(warp, lanes, since):
                self.told.pop(key, None)
                continue
            self.told[key] = ~absent, since

    def check(self, pattern: SharedPattern, lanes: np.ndarray, warps: np.ndarray, known: np.ndarray) -> None:
        """Report reads of what a lane has stored, and writes of what it has read, of which another one of its warp has
        told without having met it."""
        shadow, table, granules = self.shadow, self.shadow.lanes, pattern.granules
        if pattern.kind == "read":
            clocks, who, at, by, verb = shadow.written, table.writer, table.wrote_at, table.wrote, "write"
        else:
            clocks, who, at, by, verb = shadow.read, table.reader, table.read_at, table.read, "read"
        last = who[granules] - 1
        cluster, theirs = shadow.place(np.maximum(last, 0))
        mine, rows = warps[:, None], np.arange(len(warps))[:, None]
        clock = clocks[granules, theirs]
        some = (last >= 0) & (theirs != mine) & (clock > 0) & (known[rows, theirs] == clock)
        some &= ~table.together[by[granules]] if verb == "read" else True
        if not some.any():
            return
        keys = np.stack([cluster[some], theirs[some], clock[some]], axis=1)
        for key in np.unique(keys, axis=0).tolist():
            found = self.told.get((key[0], key[1], key[2]))
            if found is None:
                continue
            bad = some.copy()
            bad[some] = (keys == key).all(axis=1)
            bad &= ~found[0][last % 32] & (at[granules] >= found[1])
            if bad.any():
                row, k = (int(v) for v in np.argwhere(bad)[0])
                granule = int(granules[row, k])
                other = self.machine.program.instructions[int(by[granule])]
                self._report(pattern, lanes[bad.any(axis=1)], granule, int(last[row, k]), verb, other)
                return

    def _report(
        self, pattern: SharedPattern, lanes: np.ndarray, granule: int, lane: int, verb: str, other: Instruction
    ) -> None:
        machine = self.machine
        address = granule * machine.shared.granule % machine.shared.stride
        machine.report(
            "lane_race",
            f"{WORDS.get(pattern.kind, pattern.kind)} at shared address {address:#x}, a {verb} by lane {lane % 32} of "
            f"warp {int(machine.warp_of_lane[lane])}, of which another lane of that warp has told",
            pattern.instruction, lanes, address,
            {
                "other_access": machine.reporter.sources.where(other),
                "missing": f"a __syncwarp() between the {verb} and the arrival or flag of the lane that speaks for it",
            },
            other,
        )  # fmt: skip
