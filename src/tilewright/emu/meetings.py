"""When the lanes of each warp came together: all of them, or those that a member mask names.

Lanes of a warp need not run in step. __syncwarp() and barriers bring them together; other instructions that they run
together (shuffles, votes) are taken to do so too, as they do on the GPUs of today. An access carries the time at which
it happened: another lane of the warp comes after it if the two have met since, directly or by way of others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_PARTS = 64
"""Meetings of parts of warps that are kept. What is older than these counts as met."""
_LANE = np.arange(32, dtype=np.uint32)


class Meetings:
    """The meetings of the warps of one batch."""

    def __init__(self, warps: int, *, loose: bool = False) -> None:
        self.firm = Meetings(warps) if loose else None
        """Those that order memory, where `loose` ones are to be told apart; None: all do."""
        self.time = 0
        """Meetings so far, of any warp."""
        self.last = np.zeros(warps, np.int32)
        """Time of each warp's last meeting of all lanes."""
        self.parts: list[tuple[int, np.ndarray]] = []
        """(time, member mask of each lane of the batch, 0 for those that did not run it) of meetings of some lanes."""
        self._forgotten = 0

    def reset(self) -> None:
        """Nobody has met."""
        self.time = self._forgotten = 0
        self.last[:] = 0
        self.parts.clear()

    def _in_step(self, firmly: bool) -> Meetings | None:
        """Return those that order memory, at the time of all, where what comes is one of them and they are apart."""
        if self.firm is None or not firmly:
            return None
        self.firm.time = self.time
        return self.firm

    def whole(self, warps: Any, *, firmly: bool = True) -> None:
        """All lanes of warps, as an array that marks or numbers them, come together; None: of every warp. `firmly`: by
        what orders memory."""
        if firm := self._in_step(firmly):
            firm.whole(warps)
        self.time += 1
        self.last[slice(None) if warps is None else warps] = self.time

    def some(self, members: np.ndarray, live: np.ndarray, *, firmly: bool = True) -> None:
        """Lanes run an instruction with member masks; 0 for those that do not run it. `live`: who has not ended;
        `firmly`: as for `whole`."""
        if firm := self._in_step(firmly):
            firm.some(members, live)
        masks = members.reshape(-1, 32)
        alive = (live.reshape(-1, 32) << _LANE).sum(axis=1, dtype=np.uint32)[:, None]
        whole = (((masks & alive) == alive) | (masks == 0)).all(axis=1) & masks.any(axis=1)
        if whole.any():
            self.whole(whole, firmly=False)
        if not masks[~whole].any():
            return
        self.time += 1
        self.parts.append((self.time, members))
        if len(self.parts) > MOST_PARTS:
            self._forgotten = self.parts.pop(0)[0]

    def apart(self, lanes: np.ndarray, others: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return which lanes have not met, since `times`, the other lane of their warp (-1: several, any of which will
        do)."""
        warps = lanes // 32
        result: np.ndarray = times >= self.last[warps]
        if not self.parts or not result.any() or self.parts[-1][0] <= int(times[result].min()):
            return result
        result &= times >= self._forgotten
        some = np.flatnonzero(result)
        if not len(some):
            return result
        own, warp, since = lanes[some] % 32, warps[some], times[some]
        many = others[some] < 0
        reached = np.where(many, 0, np.left_shift(np.uint32(1), (others[some] % 32).astype(np.uint32)))
        reached = reached.astype(np.uint32)
        met = np.zeros(len(some), bool)
        for time, members in self.parts:
            masks = members.reshape(-1, 32)[warp]
            now = since < time
            met |= now & many & (masks[np.arange(len(own)), own] != 0)
            inside = (reached[:, None] >> _LANE) & 1 != 0
            joined = np.bitwise_or.reduce(np.where(inside, masks, np.uint32(0)), axis=1)
            reached = np.where(now, reached | joined, reached)
        met |= (reached >> own.astype(np.uint32)) & 1 != 0
        result[some[met]] = False
        return result
