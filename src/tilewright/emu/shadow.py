"""Judges of accesses to shared memory: the calls that epochs.py, clocks.py and proxies.py answer, and their reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .ptx import Instruction
from .shared_memory import SharedPattern

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarriers import Mbarrier
    from .messages import Messages

WORDS = {
    "copy": "asynchronous copy", "tensor": "wgmma's read", "bulk_write": "bulk copy", "bulk_merge": "bulk reduction",
    "bulk_read": "bulk store's read",
}  # fmt: skip
"""What an access is called where its kind is not its name."""


@dataclass(eq=False)
class Landing:
    """The bytes of a copy landed, for the copy's lanes `rows` (None: all of them)."""

    pattern: SharedPattern
    rows: np.ndarray | None


class Shadow:
    """A hazard checker of shared memory: what it is told, and what both kinds of it share."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def reset(self) -> None:
        """A new batch of blocks starts."""
        raise NotImplementedError

    def record(self, pattern: SharedPattern) -> None:
        """An access happened."""
        raise NotImplementedError

    def landed(self, pattern: SharedPattern, rows: np.ndarray | None, barrier: Mbarrier | None = None) -> None:
        """A copy landed, or a product of wgmma ended, for its rows `rows` or for all (None).

        `barrier`: the mbarrier whose phase says that it has.
        """
        raise NotImplementedError

    def waited(self, pattern: SharedPattern, due: np.ndarray) -> None:
        """Warps (`due` [warpgroups of the pattern, 4]) waited for a wgmma; `landed` follows for the first of four."""

    def meet(self, members: np.ndarray | None, firmly: bool = True) -> None:
        """The active lanes of each warp came together; `members`: those that each one's mask names (None: all).
        `firmly`: by what orders memory, as shuffles do not."""

    def stamps(self) -> np.ndarray:
        """Return how far each warp of the batch has come, for `unordered`; the answer does not change any more."""
        raise NotImplementedError

    def unordered(self, lanes: np.ndarray, others: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Return for pairs of lanes in one cluster whether what the others' warps did at `stamps` may still go on."""
        raise NotImplementedError

    def clocks_of(self, cta: int, warps: np.ndarray) -> np.ndarray:
        """Return how far warps of a block have come, for `come_after`."""
        return np.zeros(len(warps), np.int32)

    def come_after(self, cta: int, warps: np.ndarray, clocks: np.ndarray) -> np.ndarray:
        """Return which warps of a block do what they do next after any of these was at its clock."""
        return np.ones(self.machine.warps_per_cta, bool)

    def view(self, warp: int) -> np.ndarray:
        """Up to which stamp a warp of the batch comes after each warp of its cluster."""
        raise NotImplementedError

    messages: Messages | None = None
    """What warps tell one another by flags; None for programs in which they cannot."""

    def fence(self, *, shared: bool = True, everywhere: bool = True) -> None:
        """The active lanes ran fence.proxy.async, of shared memory, of global memory or of both."""

    def not_proxied(self, writers: np.ndarray, meetings: np.ndarray, lane: int) -> np.ndarray:
        """Return which lanes, writers of global memory at so many meetings, have run no fence.proxy.async since."""
        return np.zeros(len(writers), bool)

    # What only kernels with mbarriers, clusters and bulk copies do: clocks.py has the answers.

    def fence_init(self) -> None:
        """The active lanes ran fence.mbarrier_init."""

    def now(self) -> int:
        """The time, by the writes and fences so far."""
        return 0

    def made(self, barrier: Mbarrier) -> None:
        """An mbarrier was initialised."""

    def unmade(self, barrier: Mbarrier, lane: int, instruction: Instruction) -> None:
        """An mbarrier was ended by a lane."""

    def touched(self, barrier: Mbarrier, lanes: np.ndarray, instruction: Instruction, *, later: bool = False) -> None:
        """Lanes use an mbarrier; `later`: what they start will, and whoever waits for it knows that it has."""

    def released(self, barrier: Mbarrier, lanes: np.ndarray, narrow: bool = False, relaxed: bool = False) -> None:
        """Lanes arrive at an mbarrier."""

    def comes_too(self, barrier: Mbarrier, other: Mbarrier) -> None:
        """The copies that another mbarrier tells of have come with those that this one tells of."""

    def completed(self, barrier: Mbarrier) -> None:
        """A phase of an mbarrier is complete."""

    def acquired(self, barrier: Mbarrier, lanes: np.ndarray, narrow: bool = False) -> None:
        """Lanes have seen that a phase is complete."""

    def aimed(self, pattern: SharedPattern, barrier: Mbarrier, lane: int) -> None:
        """A bulk copy that a lane issued will complete at an mbarrier."""

    def bulk_landed(self, pattern: SharedPattern, barrier: Mbarrier) -> None:
        """A bulk copy has written its bytes, which its mbarrier's current phase tells."""

    def bulk_lent(self, pattern: SharedPattern, barrier: Mbarrier | None) -> None:
        """A copy to another block reads bytes until the current phase of its mbarrier ends; None: it has not come."""

    def unseen(self, barrier: Mbarrier, phase: int, lanes: np.ndarray) -> np.ndarray:
        """Return which lanes' warps do not know that phases of an mbarrier are complete."""
        return np.zeros(len(lanes), bool)

    def bulk_read_done(self, pattern: SharedPattern) -> None:
        """A thread has waited for its bulk store to have read."""

    def knows_block(self, lanes: np.ndarray, ctas: np.ndarray) -> np.ndarray:
        """Return which lanes know of anything that a block of their cluster did."""
        return np.ones(len(lanes), bool)

    def cluster_released(self, lanes: np.ndarray, relaxed: bool = False) -> None:
        """Lanes arrive at the barrier of their cluster. `relaxed`: they hand on what their last fences came after."""

    def cluster_completed(self, cluster: int) -> None:
        """All threads of a cluster have arrived."""

    def cluster_acquired(self, lanes: np.ndarray) -> None:
        """Lanes go on from the barrier of their cluster."""

    def barrier(self, ctas: np.ndarray | None) -> None:
        """A barrier of whole blocks completed: of those marked in `ctas`, or of all (None)."""
        raise NotImplementedError

    def arrive(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """Warps of a block (marked in `warps`) arrived at a barrier."""

    def release(self, cta: int, ident: int, warps: np.ndarray) -> None:
        """The warps that waited at a barrier go on."""

    def finish(self, ctas: np.ndarray | None = None) -> None:
        """Blocks ended: those marked, or all."""

    def reads_pending(self, pattern: SharedPattern) -> bool:
        """Report a read of bytes in flight at this moment; whether it was one."""
        for copy, waiting in self.machine.copies.in_flight():
            bad = np.isin(pattern.granules, copy.granules[waiting]).any(axis=1)
            if bad.any():
                lanes = np.arange(self.machine.lanes) if pattern.lanes is None else pattern.lanes
                addresses = np.broadcast_to(pattern.addresses, lanes.shape)
                self.report_not_waited(pattern, lanes[bad], addresses[bad], copy)
                return True
        return False

    def report_not_waited(
        self, pattern: SharedPattern, lanes: np.ndarray, addresses: np.ndarray, copy: SharedPattern
    ) -> None:
        """An access to the bytes of a copy in flight."""
        verb = {"copy": "second asynchronous copy", "tensor": "wgmma's read"}.get(pattern.kind, pattern.kind)
        self.machine.report(
            "async_copy_not_waited",
            f"{verb} of {pattern.nbytes} bytes at shared address {int(addresses[0]):#x}, where an asynchronous copy "
            "has been issued and not been waited for",
            pattern.instruction,
            lanes,
            int(addresses[0]),
            {"the_copy": self.machine.reporter.sources.where(copy.instruction)},
        )

    def report_race(
        self,
        pattern: SharedPattern,
        lanes: np.ndarray,
        address: int,
        verb: str,
        other: Instruction,
        other_kind: str,
        other_warp: int,
        name: str = "shared_race",
        fault: str = "",
    ) -> None:
        """Two warps at one byte. `fault`: what is missing, if it is no order."""
        machine = self.machine
        what = WORDS.get(other_kind, other_kind)
        what = f"{'an' if what[0] == 'a' else 'a'} {what}"
        verb = WORDS.get(verb, verb)
        whose, missing = str(other_warp), {}
        if machine.cluster_size > 1:
            rank, other_warp = divmod(other_warp, machine.warps_per_cta)
            whose = f"{other_warp} of block {rank} of the cluster"
            if rank != machine.cta_of_lane[lanes[0]] % machine.cluster_size:
                missing["missing"] = (
                    fault or "barrier.cluster, or an arrival at an mbarrier and its wait, both of .cluster scope"
                )
        same = " (the same instruction)" if other is pattern.instruction else ""
        value = ", both of one value" if name == "flag_race" else ""
        machine.report(
            name,
            f"{verb} at shared address {address:#x} by warp {int(machine.warp_of_lane[lanes[0]])}, "
            f"{what} by warp {whose}{same}{value}, and no barrier between them",
            pattern.instruction,
            lanes,
            address,
            {"other_access": machine.reporter.sources.where(other), "other_warp": other_warp, **missing},
            other,
        )
