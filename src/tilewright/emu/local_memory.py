"""Local memory: bytes of its own for each lane, with marks of what has been written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .access import judged, unfilled
from .memory import LOCAL_SLOT, POISON, WINDOW_BYTES, aligned_bytes, element_views
from .ptx import Instruction
from .trace import Site

if TYPE_CHECKING:
    from .machine import Machine


class LocalMemory:
    """Local memory: `nbytes` of its own for each lane."""

    def __init__(self, machine: Machine, nbytes: int) -> None:
        self.machine = machine
        self.bytes = nbytes
        self.stride = -(-max(nbytes, 16) // 16) * 16
        self.data = aligned_bytes(machine.lanes * self.stride)
        self.views = element_views(self.data)
        self.written = aligned_bytes(machine.lanes * self.stride, 0)
        """Of each byte whether it holds a value."""
        self._marks = element_views(self.written)
        self.gone = aligned_bytes(len(self.written), 0) if len(machine.program.routines) > 1 else None
        """Of each byte whether the function has returned whose it was last; None where functions are not called."""
        self._start = np.arange(machine.lanes, dtype=np.int64) * self.stride
        self.slots = machine.thread_of_lane.astype(np.uint64) % np.uint64(WINDOW_BYTES // LOCAL_SLOT)
        self.slots *= np.uint64(LOCAL_SLOT)
        """Where each lane's part of the local window begins."""

    def reset(self) -> None:
        """Forget everything: a new batch of blocks starts."""
        self.data[:] = POISON
        self.written[:] = 0
        if self.gone is not None:
            self.gone[:] = 0

    def forget(self, lanes: np.ndarray, low: np.ndarray, nbytes: int) -> None:
        """A function begins: the `nbytes` of its local variables, from `low` of each lane on, hold nothing yet."""
        assert self.gone is not None
        where = self._bytes(lanes, low, nbytes)
        self.written[where] = self.gone[where] = 0

    def lose(self, lanes: np.ndarray, low: np.ndarray, nbytes: int) -> None:
        """A function returns, and its local variables are gone."""
        assert self.gone is not None
        self.gone[self._bytes(lanes, low, nbytes)] = 1

    def _bytes(self, lanes: np.ndarray, low: np.ndarray, nbytes: int) -> np.ndarray:
        start = self._start[lanes] + low.astype(np.int64)
        return (start[:, None] + np.arange(nbytes)).reshape(-1)

    def locate(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray] | None:
        """See GlobalPort.locate, for addresses in the local window of each lane."""
        machine = self.machine
        lanes = machine.lane_list()
        if lanes is not None and not len(lanes):
            return None
        start = self._start if lanes is None else self._start[lanes]
        seen = (base if lanes is None or len(base) == 1 else base[lanes]).astype(np.int64) + offset
        bad = (seen < 0) | (seen + nbytes > self.bytes)
        skewed = seen % nbytes != 0
        if bad.any() or skewed.any():
            bad, skewed, seen = (np.broadcast_to(part, start.shape) for part in (bad, skewed, seen))
            others = self._others(instruction, lanes, seen, nbytes)
            for wrong, kind, why in (
                (bad & ~others, "out_of_bounds", f"the thread has {self.bytes} bytes of local memory"),
                (skewed & ~others, "misaligned", f"it is not a multiple of {nbytes}"),
            ):
                if wrong.any():
                    at = int(seen[wrong][0])
                    machine.report(
                        kind, f"access of {nbytes} bytes at local address {at:#x}: {why}",
                        instruction, machine.some(lanes, wrong), at,
                    )  # fmt: skip
                    break
            good = ~(bad | skewed)
            lanes, start, seen = machine.some(lanes, good), start[good], seen[good]
            if not len(lanes):
                return None
        site.bytes += nbytes * len(start)
        index = (start + seen) // nbytes
        self._follow(instruction, lanes, np.broadcast_to(seen, start.shape), index, nbytes, write)
        return lanes, index

    def _others(
        self, instruction: Instruction, lanes: np.ndarray | None, seen: np.ndarray, nbytes: int
    ) -> np.ndarray:  # fmt: skip
        """Report addresses in the local memory of other threads; return which are."""
        slots = (self.slots if lanes is None else self.slots[lanes]).astype(np.int64)
        whose, at = np.divmod(seen + slots, LOCAL_SLOT)
        wrong = (whose != slots // LOCAL_SLOT) & (at + nbytes <= self.bytes) & (".local" not in instruction.opcode)
        if wrong.any():
            thread, address = int(whose[wrong][0]), int(at[wrong][0])
            self.machine.report(
                "dead_local",
                f"access of {nbytes} bytes at local address {address:#x} of thread {thread}, which no other can reach",
                instruction, self.machine.some(lanes, wrong), address,
            )  # fmt: skip
        return np.asarray(wrong)

    def _follow(
        self, instruction: Instruction, lanes: np.ndarray | None, seen: np.ndarray, index: np.ndarray, nbytes: int,
        write: bool,
    ) -> None:  # fmt: skip
        """Report what lies in no function that is running, and reads of what has not been written."""
        machine = self.machine
        top = machine.calls.top
        dead = missing = seen + nbytes > (top if lanes is None else top[lanes])
        if self.gone is not None:
            dead = missing = dead | self.gone.reshape(-1, nbytes)[index].any(axis=1)
        if not write:
            each = judged(instruction, nbytes)
            parts = index[:, None] * (nbytes // each) + np.arange(nbytes // each)
            missing = dead | (self._marks[each][parts] == 0).any(axis=1)
            if used := machine.used_parts.get(instruction.index):
                missing |= unfilled(used, self.written, index * nbytes)
        if missing.any():
            at, gone = int(seen[missing][0]), bool(dead[missing][0])
            machine.report(
                "dead_local" if gone else "uninitialised_read",
                f"{'write' if write else 'read'} of {nbytes} bytes at local address {at:#x}, "
                + ("in a variable of a function that has returned" if gone else "which the thread has not written"),
                instruction, machine.some(lanes, missing), at,
            )  # fmt: skip
        if write:
            self.written.reshape(-1, nbytes)[index] = 1

    def load(self, index: np.ndarray, nbytes: int, out: np.ndarray) -> None:
        """Gather elements."""
        self.views[nbytes].take(index, out=out, mode="clip")

    def store(self, index: np.ndarray, nbytes: int, values: np.ndarray) -> None:
        """Scatter elements."""
        self.views[nbytes][index] = values
