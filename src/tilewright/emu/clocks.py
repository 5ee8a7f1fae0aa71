"""Races on shared memory where parts of a block wait for one another (named barriers, arrive without waiting).

Vector clocks, the general form of the epochs of shadow.py: `known[c, w, v]` is the newest step of warp v that warp w of
block c is ordered after. A barrier joins the clocks of those that arrived into those that wait. An access races with
an earlier one of another warp that it is not ordered after. Checked at each access, so slower than judging epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .access import SharedPattern
from .product_hazards import ProductClocks, ProductJudge, ProxyFences
from .ptx import Immediate
from .shadow import EpochShadow, Shadow

if TYPE_CHECKING:
    from .machine import Machine


class ClockShadow(Shadow):
    """Last write, reads and atomics of every granule, by warp."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        granules, warps = len(machine.shared.initialised), machine.warps_per_cta
        self.known = np.zeros((machine.ctas, warps, warps), np.int32)
        self.arrived: dict[tuple[int, int], np.ndarray] = {}
        self.written = np.zeros((granules, warps), np.int32)
        """Clock of each warp's last write of a granule; 0: none."""
        self.read = np.zeros((granules, warps), np.int32)
        self.updated = np.zeros((granules, warps), np.int32)
        """The same of atomics."""
        self.flying = np.zeros(granules, np.int32)
        """1 + the instruction of the copy in flight to a granule."""
        self.by: dict[str, np.ndarray] = {
            kind: np.zeros(granules, np.int32) for kind in ("write", "read", "atomic", "copy")
        }
        """The instruction of the last access of each kind."""
        self.copies_of: dict[int, SharedPattern] = {}
        self.products = ProductClocks(self) if machine.products else None
        self.reset()

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.known[:] = 0
        self.known[:, range(self.known.shape[1]), range(self.known.shape[1])] = 1
        self.arrived.clear()
        for table in (self.written, self.read, self.updated, self.flying):
            table[:] = 0
        if self.products:
            self.products.reset()

    def _where(self, pattern: SharedPattern) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(lanes of the batch, their warps, what those know [lanes, warps])."""
        lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
        warps = pattern.warps.astype(np.int64) - 1
        return lanes, warps, self.known[self.machine.cta_of_lane[lanes], warps]

    def record(self, pattern: SharedPattern) -> None:
        """Check an access against what came before it, then note it."""
        lanes, warps, known = self._where(pattern)
        granules, kind = pattern.granules, pattern.kind
        addresses = np.broadcast_to(pattern.addresses, lanes.shape)
        flying = (self.flying[granules] != 0).any(axis=1)
        if flying.any():
            row = int(np.flatnonzero(flying)[0])
            number = int(self.flying[granules[row]].max()) - 1
            self.report_not_waited(pattern, lanes[flying], addresses[flying], self.copies_of[number])
        if self.products and kind == "tensor":
            self.products.issue(pattern)
            return
        if self.products and kind != "read":
            self.products.written(pattern, lanes, addresses, known)
        writing = kind in ("write", "copy")
        against = [(self.written, "write")]
        if kind != "read":
            against.append((self.read, "read"))
        if kind != "atomic":
            against.append((self.updated, "atomic"))
        for table, name in against:
            self._compare(pattern, table[granules], known, lanes, warps, addresses, name)
        own = known[np.arange(len(warps)), warps]
        columns = np.broadcast_to(warps[:, None], granules.shape)
        table = self.written if writing else self.read if kind == "read" else self.updated
        table[granules, columns] = own[:, None]
        self.by["copy" if kind == "copy" else kind][granules] = pattern.instruction.index
        if writing:
            self.by["write"][granules] = pattern.instruction.index
            # Two warps that write one granule in this very step.
            self._compare(pattern, self.written[granules], known, lanes, warps, addresses, "write")
        if kind == "copy":
            self.copies_of[pattern.instruction.index] = pattern
            self.flying[granules] = pattern.instruction.index + 1

    def _compare(
        self,
        pattern: SharedPattern,
        seen: np.ndarray,
        known: np.ndarray,
        lanes: np.ndarray,
        warps: np.ndarray,
        addresses: np.ndarray,
        name: str,
    ) -> None:
        """`seen` [lanes, granules, warps]: clocks of earlier accesses; a lane must know of all but its own warp's."""
        newer = seen > known[:, None, :]
        newer[np.arange(len(warps)), :, warps] = False
        if not newer.any():
            return
        bad = newer.any(axis=(1, 2))
        row = int(np.flatnonzero(bad)[0])
        _, other_warp = (int(v) for v in np.argwhere(newer[row])[0])
        granule = pattern.granules[row][newer[row].any(axis=1)][0]
        other = self.machine.program.instructions[int(self.by[name][granule])]
        other_kind = "copy" if other.opcode.startswith("cp.async") else name
        self.report_race(
            pattern, lanes[bad], int(addresses[bad][0]), pattern.kind, other, other_kind, other_warp
        )  # fmt: skip

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None) -> None:
        """The landing of a copy is a write of the issuing warp, now."""
        if self.products and pattern.kind == "tensor":
            self.products.landed(pattern, rows)
            return
        _, warps, known = self._where(pattern)
        granules = pattern.granules
        if rows is not None:
            granules, warps, known = granules[rows], warps[rows], known[rows]
        self.flying[granules] = 0
        own = known[np.arange(len(warps)), warps]
        self.written[granules, np.broadcast_to(warps[:, None], granules.shape)] = own[:, None]
        self.by["write"][granules] = pattern.instruction.index

    def waited(self, pattern: SharedPattern, due: np.ndarray) -> None:
        """Warps waited for a product."""
        if self.products:
            self.products.finish(pattern, due)

    def barrier(self, ctas: np.ndarray | None) -> None:
        """All warps of a block know all that was done before."""
        chosen = np.ones(self.machine.ctas, bool) if ctas is None else ctas
        joined = self.known[chosen].max(axis=1)
        self.known[chosen] = joined[:, None, :]
        self._tick(np.flatnonzero(chosen), np.ones(self.known.shape[1], bool))

    def _tick(self, ctas: np.ndarray, warps: np.ndarray) -> None:
        for w in np.flatnonzero(warps):
            self.known[ctas, w, w] += 1

    def arrive(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """What the arriving warps have done so far is handed to the barrier."""
        if not warps.any():
            return
        done = self.known[cta][warps].max(axis=0)
        before = self.arrived.get((cta, ident))
        self.arrived[(cta, ident)] = done if before is None else np.maximum(before, done)
        self._tick(np.array([cta]), warps)

    def release(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """Those that waited take over what was handed to the barrier."""
        done = self.arrived.pop((cta, ident), None)
        if done is not None and warps.any():
            self.known[cta, warps] = np.maximum(self.known[cta, warps], done)


def make_shadow(machine: Machine) -> Shadow:
    """Epochs where every barrier is one of the whole block, else clocks; with products, inside of ProxyFences."""
    shadow = _ordering(machine)
    return ProxyFences(machine, shadow) if machine.products else shadow


def _ordering(machine: Machine) -> Shadow:
    for instruction in machine.program.instructions:
        parts = instruction.opcode.split(".")
        if parts[0] not in ("bar", "barrier") or "warp" in parts:
            continue
        counts = instruction.operands[2:-1] if "red" in parts else instruction.operands[1:]
        whole = all(isinstance(n, Immediate) and n.bits == machine.threads for n in counts)
        if "arrive" in parts or not whole:
            return ClockShadow(machine)
    epochs = EpochShadow(machine)
    epochs.products = ProductJudge(epochs) if machine.products else None
    return epochs
