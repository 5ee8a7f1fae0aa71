"""The messages of a block's (or cluster's) warps by flags, tickets and locks, and the fences before them.

The vector clocks of clocks.py, handed on at places in global or shared memory: a strong store or an atomic hands on
what its warp knew at its last fence (or, if it is a release, knows now), a strong load or an atomic whose old value is
used takes that over. Beside what is known stands what would be if no fence were missing. Of the reader a fence is asked
too: plain loads of shared memory that lack it are a warning. To the other blocks of a cluster only fences, releases and
acquires of a scope that reaches them say anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .global_words import COMPARING, guesses, own_load
from .ptx import Instruction, Register, Vector
from .uses import reaches

if TYPE_CHECKING:
    from .clocks import ClockShadow
    from .program import Code
    from .shared_memory import SharedPattern

PLAIN, VOLATILE, STRONG, ATOMIC = range(4)
SEVERAL = -1
MOST_PLACES = 4096
"""Places by which warps may tell each other something; beyond them nothing is known."""
_FENCES = ("membar", "fence.acq_rel", "fence.sc", "fence.release")
_ARRIVALS = ("barrier.cluster.arrive.relaxed", "mbarrier.arrive.relaxed", "mbarrier.arrive.expect_tx.relaxed")
"""They hand on what a fence came after, as relaxed stores do."""


@dataclass(frozen=True)
class Word:
    """The way an instruction accesses what other threads may access at the same time."""

    strength: int
    hears: bool = False
    tells: bool = False
    releases: bool = False
    """It is a fence for what came before."""
    updates: bool = False
    """It stores what was read at the same place, changed, and is no atomic."""
    narrow: bool = False
    """Its scope is its own block."""
    acquires: bool = False
    """It is a fence for what comes after."""
    asks: bool = True
    """It may be a flag: no volatile load that nothing is compared with."""


@lru_cache(maxsize=64)
def words_of(program: Code) -> list[Word]:
    """Return how each instruction of a program accesses memory, whichever it is."""
    return [_word_of(instruction, program) for instruction in program.instructions]


_NOTHING = Word(PLAIN)


def _word_of(instruction: Instruction, program: Code) -> Word:
    head, *parts = instruction.opcode.split(".")
    if head not in ("ld", "st", "atom", "red") or {"local", "param", "const", "async"} & set(parts):
        return _NOTHING
    releases, narrow = bool({"release", "acq_rel"} & set(parts)), "cta" in parts
    acquires = bool({"acquire", "acq_rel"} & set(parts))
    if head in ("atom", "red"):
        to = instruction.operands[:1] if head == "atom" else ()
        items = [item for operand in to for item in (operand.items if isinstance(operand, Vector) else (operand,))]
        used = any(isinstance(item, Register) and item in program.readers for item in items)
        return Word(ATOMIC, used, True, releases, narrow=narrow, acquires=acquires)
    strength = STRONG if {"relaxed", "acquire", "release", "mmio"} & set(parts) else PLAIN
    strength = VOLATILE if "volatile" in parts else strength
    if head == "ld" and strength == PLAIN and guesses(program, instruction):
        return Word(STRONG, asks=False)
    if head == "ld" or strength == PLAIN:
        asks = strength != VOLATILE or reaches(program, instruction.index, COMPARING)
        return Word(strength, strength > PLAIN, narrow=narrow, acquires=acquires, asks=asks)
    return Word(strength, False, True, releases, own_load(program, instruction) is not None, narrow)


@lru_cache(maxsize=64)
def passed(program: Code) -> bool:
    """Return whether warps of a kernel may pass one another messages: some hear, and some have a fence before they
    tell, or change a place in global memory in turns."""
    words = words_of(program)
    tell = any(
        instruction.opcode.startswith(_FENCES) or word.releases or (word.updates and ".global" in instruction.opcode)
        for instruction, word in zip(program.instructions, words, strict=True)
    )
    return tell and (any(word.hears for word in words) or bool(program.opcodes_begin(*_ARRIVALS).any()))


class Told(NamedTuple):
    """What one knows, and would know, who hears a place; in clusters also what those of block `cta` of it know."""

    known: np.ndarray
    heard: np.ndarray
    near: np.ndarray | None = None
    cta: int = -1


_NOTHING_TOLD = Told(np.zeros(0, np.int32), np.zeros(0, np.int32))


class Messages:
    """The messages of one batch."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow = shadow
        self.reset()

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.fenced = np.zeros_like(self.shadow.known)
        """What each warp knew at its last fence."""
        self.far = self.fenced if self.shadow.machine.cluster_size == 1 else self.fenced.copy()
        """The same of fences that reach the other blocks of its cluster."""
        self.heard = np.zeros_like(self.shadow.order)
        """What each warp would know of warps if no fence were missing."""
        self.loose: dict[tuple[int, int], tuple[np.ndarray, int]] = {}
        """(cluster, warp) -> what it knew before it heard something with no fence since, and when that was."""
        self.places: dict[Hashable, Told] = {}
        """(cluster, place) -> what was told there."""
        lanes = self.shadow.machine.lanes
        self.heard_at = np.full(lanes, -1, np.int64)
        """When each lane last heard anything, by the meetings."""
        self.told_at = np.full(lanes // 32, -1, np.int64)
        """When each warp first told anything since its lanes came together last ..."""
        self.teller = np.zeros(lanes // 32, np.int64)
        """... and the lane that did; SEVERAL for more than one."""

    @property
    def overflowed(self) -> bool:
        """Return whether there are too many places to follow."""
        return len(self.places) > MOST_PLACES

    def fence(self, lanes: np.ndarray, narrow: bool = False) -> None:
        """Lanes run a fence of memory. `narrow`: its scope is their own block."""
        for cluster, warp in self._warps(lanes):
            known = self.shadow.known[cluster, warp]
            more = len(known) - self.fenced.shape[2]
            if more:
                apart = self.far is not self.fenced
                self.fenced = np.pad(self.fenced, ((0, 0), (0, 0), (0, more)))
                self.far = np.pad(self.far, ((0, 0), (0, 0), (0, more))) if apart else self.fenced
            self.fenced[cluster, warp] = known
            self.loose.pop((cluster, warp), None)
            if not narrow:
                self.far[cluster, warp] = known
            self.shadow.step_on(cluster, warp)

    def covered(self, lanes: np.ndarray, near: bool) -> np.ndarray:
        """Return what warps of one cluster together knew at their last fences. `near`: of any scope."""
        cluster, warps = self.shadow.place(lanes)
        done = np.zeros(self.shadow.known.shape[2], np.int32)
        fenced = (self.fenced if near else self.far)[cluster[0], np.unique(warps)].max(axis=0)
        done[: len(fenced)] = fenced
        return done

    def hear(self, lanes: np.ndarray, places: np.ndarray, word: Word) -> None:
        """Lanes read places."""
        if word.asks:
            self.listened(lanes)
        for cluster, warp, place in self._each(lanes, places):
            self._hear(cluster, warp, place, word)

    def _hear(self, cluster: int, warp: int, place: int, word: Word) -> None:
        known, heard, near, cta = self.places.setdefault((cluster, place), _NOTHING_TOLD)
        if near is not None and (word.narrow or cta == self._block(warp)):
            known = near if cta == self._block(warp) else _NOTHING_TOLD.known
        if word.acquires:
            self.loose.pop((cluster, warp), None)
        elif (cluster, warp) not in self.loose and (known > self.shadow.known[cluster, warp, : len(known)]).any():
            before = self.shadow.order[cluster, warp].copy()
            self.loose[cluster, warp] = before, self.shadow.machine.meetings.time
        for mine, news in ((self.shadow.known[cluster, warp], known), (self.heard[cluster, warp], heard)):
            np.maximum(mine[: len(news)], news, out=mine[: len(news)])

    def check(self, pattern: SharedPattern) -> None:
        """Report plain loads of what a flag alone has told of, with no fence, acquire or meeting of the warp since."""
        shadow, met = self.shadow, self.shadow.machine.meetings
        for key, (_, time) in list(self.loose.items()):
            if met.last[key[0] * shadow.warps + key[1]] > time:
                del self.loose[key]
        if not self.loose:
            return
        lanes = shadow.every if pattern.lanes is None else pattern.lanes
        cluster, warps = shadow.place(lanes)
        for (number, warp), (before, _) in self.loose.items():
            rows = np.flatnonzero((cluster == number) & (warps == warp))
            wrote = shadow.written[pattern.granules[rows]]
            late = (wrote > before) & (wrote <= shadow.order[number, warp])
            late[:, :, warp] = False
            if late.any():
                row, k, other = (int(v) for v in np.argwhere(late)[0])
                self._report_loose(pattern, lanes[rows[late.any(axis=(1, 2))]], int(rows[row]), k, other)
                return

    def _report_loose(self, pattern: SharedPattern, lanes: np.ndarray, row: int, k: int, warp: int) -> None:
        machine = self.shadow.machine
        other = machine.program.instructions[int(self.shadow.by["write"][pattern.granules[row, k]])]
        at = int(np.broadcast_to(pattern.addresses, len(pattern.granules))[row])
        machine.report(
            "acquire_missing",
            f"a read of {pattern.nbytes} bytes at shared address {at:#x}; a write by warp "
            f"{warp % machine.warps_per_cta}, and a flag that told of it, but no fence after that",
            pattern.instruction, lanes, at,
            {
                "other_access": machine.reporter.sources.where(other),
                "missing": "a __threadfence_block() (or an acquire) between the flag that told of it and this read",
            },
            other,
        )  # fmt: skip

    def tell(self, lanes: np.ndarray, places: np.ndarray, word: Word) -> None:
        """Lanes write places, one after another: over what was told there, or, by an atomic, besides that."""
        shadow, clusters = self.shadow, self.far is not self.fenced
        if word.hears:
            self.listened(lanes)
        self.said(lanes)
        for cluster, warp, place in self._each(lanes, places):
            if word.hears:
                self._hear(cluster, warp, place, word)
            now, here = shadow.known[cluster, warp], self._block(warp) if clusters else -1
            known = (now if word.releases and not (word.narrow and clusters) else self.far[cluster, warp]).copy()
            near = (now if word.releases else self.fenced[cluster, warp]).copy() if clusters else None
            heard = np.maximum(self.heard[cluster, warp], now[: shadow.warps])
            before = self.places.get((cluster, place))
            if before is not None and word.strength == ATOMIC:
                around = before.near if before.cta == here else before.known
                for mine, old in ((known, before.known), (heard, before.heard), (near, around)):
                    if mine is not None and old is not None:
                        np.maximum(mine[: len(old)], old, out=mine[: len(old)])
            if shadow.alone.stored:
                own = lanes[lanes // 32 == cluster * shadow.warps + warp]
                shadow.alone.by(own, int((known if near is None else near)[warp]))
            self.places[cluster, place] = Told(known, heard, near, here)
            shadow.step_on(cluster, warp)

    def step_on(self, warps: np.ndarray) -> None:
        """Step the clocks of warps of the batch on."""
        for warp in warps.tolist():
            self.shadow.step_on(*divmod(warp, self.shadow.warps))

    def listened(self, lanes: np.ndarray) -> None:
        """Lanes have heard something."""
        meetings = self.shadow.machine.meetings
        meetings.time += 1
        self.heard_at[lanes] = meetings.time

    def said(self, lanes: np.ndarray) -> None:
        """Lanes have told something."""
        meetings, warps = self.shadow.machine.meetings, lanes // 32
        told, first = self.told_at[warps], self.teller[warps]
        new = told < meetings.last[warps]
        self.told_at[warps[new]] = meetings.time
        # Of several lanes the last stays, and does not equal the others.
        self.teller[warps] = np.where(new | (first == lanes), lanes, SEVERAL)
        self.teller[warps[self.teller[warps] != lanes]] = SEVERAL

    def spoken(self, warp: int, lanes: np.ndarray, since: int) -> bool:
        """Return whether other lanes of a warp than these may have told what it did since."""
        return self.overflowed or (self.told_at[warp] >= since and self.teller[warp] not in lanes)

    def between_lanes(self, lanes: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return which lanes may have been told by others of their warp of what these did at `times`."""
        warps, heard = lanes // 32, self.heard_at[lanes]
        told = self.told_at[warps]
        by_others = (told >= self.shadow.machine.meetings.last[warps]) & (self.teller[warps] != lanes)
        return np.asarray(by_others & (told < heard) & (heard > times))

    def _block(self, warp: int) -> int:
        """The block of a cluster that a warp of it belongs to."""
        return warp // self.shadow.machine.warps_per_cta

    def tell_plainly(self, lanes: np.ndarray, places: np.ndarray) -> None:
        """Plain stores: they tell something where others listen."""
        clusters, _ = self.shadow.place(lanes)
        some = [(c, p) in self.places for c, p in zip(clusters.tolist(), places.tolist(), strict=True)]
        if any(some):
            self.tell(lanes[some], places[some], Word(PLAIN, tells=True))

    def told(self, lanes: np.ndarray, others: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Return whether lanes would know what others' warps did at `stamps` if no fence were missing."""
        cluster, warps = self.shadow.place(lanes)
        return np.asarray(self.heard[cluster, warps, self.shadow.place(others)[1]] >= stamps)

    def _warps(self, lanes: np.ndarray) -> Iterable[tuple[int, int]]:
        cluster, warps = self.shadow.place(lanes)
        return dict.fromkeys(zip(cluster.tolist(), warps.tolist(), strict=True))

    def _each(self, lanes: np.ndarray, places: np.ndarray) -> Iterable[tuple[int, int, int]]:
        cluster, warps = self.shadow.place(lanes)
        return dict.fromkeys(zip(cluster.tolist(), warps.tolist(), places.tolist(), strict=True))
