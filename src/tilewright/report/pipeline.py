"""When the buffers of shared memory are filled and read, worked out from a block's events.

A *region* is what one group of copies fills: of one array, from one shared address on. A *fill* lasts from its first
copy to the wait, barrier or mbarrier phase that lets it be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..emu.recorder import Event

REGISTERS = "from registers"


@dataclass
class Timeline:
    """`regions`: [name, first byte, bytes]. `fills`: [region, first event, event after which it is there, tile].
    `reads`: [region, first event, last event]. `barriers`: [address, name] of mbarriers."""

    regions: list[list[Any]] = field(default_factory=list)
    fills: list[list[int]] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    barriers: list[list[Any]] = field(default_factory=list)


@dataclass
class _Fill:
    array: str
    low: int
    high: int
    first: int
    last: int = -1
    told: int | None = None
    """The mbarrier that tells of it, and its phase before."""
    phase: int = 0

    def reach(self, low: int, high: int) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)


def timeline(events: Sequence[Event], arrays: Sequence[tuple[str, int, int]]) -> Timeline:
    """Regions, fills and reads of a block. arrays: (name, address, bytes)."""
    fills: list[_Fill] = []
    groups: list[list[_Fill]] = []
    copying: dict[str, _Fill] = {}
    storing: _Fill | None = None
    flying: list[_Fill] = []
    phases: dict[int, int] = {}
    expecting: list[int] = []

    def name_of(address: int) -> str:
        return next((name for name, start, size in arrays if start <= address < start + size), "?")

    for number, event in enumerate(events):
        opcode = event.instruction.opcode
        if opcode.startswith(("cp.async.ca", "cp.async.cg")):
            to = event.accesses[0]
            source = event.accesses[1] if len(event.accesses) > 1 and len(event.accesses[1].addresses) else None
            array = name_of(int(source.addresses[0])) if source is not None else "?"
            low, high = int(to.addresses.min()), int(to.addresses.max()) + to.nbytes
            copying.setdefault(array, _Fill(array, low, high, number)).reach(low, high)
        elif opcode.startswith("cp.async.commit_group"):
            groups.append(list(copying.values()))
            fills += copying.values()
            copying = {}
        elif opcode.startswith(("cp.async.wait_group", "cp.async.wait_all")):
            left = event.told.get("left", 0)
            for fill in (fill for group in groups[: len(groups) - left] for fill in group if fill.last < 0):
                fill.last = number
        elif opcode.startswith("st.shared"):
            (to,) = event.accesses
            if len(to.addresses):
                low, high = int(to.addresses.min()), int(to.addresses.max()) + to.nbytes
                storing = storing or _Fill(REGISTERS, low, high, number)
                storing.reach(low, high)
        elif storing is not None and opcode.startswith(("bar.", "barrier.", "ld.shared")):  # or read with no barrier
            storing.last = number
            fills.append(storing)
            storing = None
        for box in event.told.get("boxes", ()) if event.told.get("loads") else ():
            array, low = name_of(box["address"]), box["to"]
            known = next((f for f in flying if f.array == array and f.told == box["mbarrier"]), None)
            if known is None:
                known = _Fill(array, low, low, number, told=box["mbarrier"], phase=phases.get(box["mbarrier"], 0))
                flying.append(known)
                fills.append(known)
            known.reach(low, low + box["bytes"])
        if "expect_tx" in opcode:
            expecting += [at for at in event.told.get("mbarrier", ()) if at not in expecting]
        phases = {state[0]: state[1] for state in event.mbarriers}
        for fill in [fill for fill in flying if phases.get(fill.told or 0, 0) > fill.phase]:
            fill.last = number
            flying.remove(fill)
    return _drawn(events, fills, phases, expecting)


def _drawn(events: Sequence[Event], fills: Sequence[_Fill], phases: dict[int, int], expecting: list[int]) -> Timeline:
    made = Timeline()
    order = sorted({(fill.array, fill.low) for fill in fills}, key=lambda key: (key[0] == REGISTERS, *key))
    stages: dict[str, int] = {}
    for array, low in order:
        high = max(fill.high for fill in fills if (fill.array, fill.low) == (array, low))
        stages[array] = stages.get(array, -1) + 1
        made.regions.append([f"{array} {stages[array]}", low, high - low])
    tiles: dict[str, int] = {}
    for fill in sorted(fills, key=lambda fill: fill.first):
        tiles[fill.array] = tiles.get(fill.array, -1) + 1
        made.fills.append([order.index((fill.array, fill.low)), fill.first, fill.last, tiles[fill.array]])
    for region, (_, low, size) in enumerate(made.regions):
        starts = sorted(fill[1] for fill in made.fills if fill[0] == region)
        touched = [number for number, event in enumerate(events) if _reads(event, low, low + size)]
        for first, after in zip(starts, [*starts[1:], len(events)], strict=True):
            if inside := [number for number in touched if first <= number < after]:
                made.reads.append([region, inside[0], inside[-1]])
    full = [at for at in sorted(phases) if at in expecting]
    empty = [at for at in sorted(phases) if at not in expecting]
    for name, places in (("full", full), ("empty", empty)):
        made.barriers += [[at, f"{name} {n}"] for n, at in enumerate(places)]
    return made


def _reads(event: Event, low: int, high: int) -> bool:
    """Return whether an event reads bytes of shared memory from `low` to `high`."""
    for access in event.accesses:
        inside = (access.addresses >= low) & (access.addresses < high)
        if access.space == "shared" and not access.writes and bool(np.any(inside)):
            return True
    for pair in event.told.get("operands", ()):
        if any(side is not None and low <= side[0] < high for side in pair):
            return True
    return any(low <= box["to"] < high for box in event.told.get("boxes", ()) if not event.told.get("loads"))
