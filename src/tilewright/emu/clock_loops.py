"""Accesses that the compiled loops check and note beside vector clocks: those where nothing can be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .compiled import address
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .clocks import ClockShadow

REFUSED, NOTED, AT_ONCE = range(3)
"""As native/clocks.c numbers its answers."""


class ClockLoops:
    """The part of ClockShadow that asks the compiled loops."""

    def __init__(self, shadow: ClockShadow) -> None:
        self.shadow, self.machine = shadow, shadow.machine
        self._told = np.zeros(0, np.int64)
        """What they are told of the tables (native/clocks.c)."""

    def bulk(self, pattern: SharedPattern) -> bool:
        """Return whether they found nothing wrong with a bulk copy's write or a product's read, and noted it."""
        library, machine, index, lanes = self.machine.compiled, self.machine, pattern.instruction.index, pattern.lanes
        if library is None or lanes is None:
            return False
        if pattern.kind == "tensor":
            granules, group = pattern.granules, (pattern.warps.astype(np.int64) - 1) // 4
            warps, places = lanes // 32, np.ascontiguousarray(granules, np.int64)
            where = address(places), *granules.shape, address(warps), address(group)
            return bool(library.product_reads(self._tables(), *where, 1 + index))
        bulk = self.shadow.bulk
        if pattern.piece is None or bulk.lent is not None:
            return False
        low, high = pattern.piece.start, pattern.piece.stop
        cta = low * machine.shared.granule // machine.shared.stride
        first = cta % machine.cluster_size * machine.warps_per_cta
        if not library.bulk_write(self._tables(), low, high, int(lanes[0]) // 32, first, index):
            return False
        bulk.used = True
        return True

    def plain(self, pattern: SharedPattern) -> bool:
        """Return whether they found nothing wrong with a plain load or store, and noted it."""
        library, machine, shadow = self.machine.compiled, self.machine, self.shadow
        writes, index, met = pattern.kind == "write", pattern.instruction.index, machine.meetings
        if library is None or shadow.alone.told or (writes and shadow.bulk.lent is not None):
            return False
        if shadow.messages and shadow.messages.overflowed:
            return False
        granules, lanes = pattern.granules, shadow.every if pattern.lanes is None else pattern.lanes
        together, shared, block = bool(shadow.lanes.together[index]), machine.shared, (0, 0)
        if machine.cluster_size > 1:
            block = shared.stride // shared.granule, machine.warps_per_cta
        touch = np.array(
            [address(granules), address(lanes), *granules.shape, writes, together, bool(met.parts or shadow.messages),
             met.time + together, index, *block, address(shadow.by[pattern.kind])],
            np.int64,
        )  # fmt: skip
        found = library.access(self._tables(), address(shadow.lanes.told), address(touch))
        if found == REFUSED:
            return False
        if together:
            met.whole(np.unique(lanes // 32))
        shadow.alone.note(lanes, index, writes=writes)
        if found == AT_ONCE:
            shadow.met_at_once(pattern)
        return True

    def _tables(self) -> int:
        """Return where they find what they are told of the tables."""
        shadow, known = self.shadow, self.shadow.known
        width, bulk, products = known.shape[2], shadow.bulk, shadow.products
        if not len(self._told) or self._told[12] != width:  # a wider table may lie where the old one did
            reads = np.zeros(5, np.int64) if products is None else products.told
            parts = (
                shadow.noted, bulk.merging, bulk.objects, shadow.flying, shadow.written, shadow.read, shadow.updated,
                bulk.phase, bulk.column, bulk.by, bulk.reading,
            )  # fmt: skip
            told = [*map(address, parts), shadow.warps, width, address(known), *reads.tolist()]
            self._told = np.array(told, np.int64)
        return address(self._told)
