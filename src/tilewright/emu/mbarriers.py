"""mbarrier objects: their counts and phases, who waits for them, and what arrives at them by itself.

A phase ends when no arrival is pending and the transaction count is 0. Asynchronous operations that complete at an
mbarrier are *deliveries*: they are kept until a thread waits for the phase (or nobody else can run), and then come one
by one, no more of them than the phase takes. So nothing is there earlier than a wait for it can tell.

A wait that is not fulfilled sets its lanes aside, also that of test_wait. When nothing else can run they are told
"not yet", as a GPU's time limit may do; once that changes nothing, the block is deadlocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .ptx import Instruction

if TYPE_CHECKING:
    from .machine import Machine
    from .orders import Order

MOST = (1 << 20) - 1
"""The largest count of arrivals, and the largest transaction count either way."""
PENDING_BITS = 20
"""A state is the number of the phase, above these bits with the arrivals pending in it."""
Answer = Callable[["Mbarrier", np.ndarray, bool], None]
Delivery = Callable[["Mbarrier"], None]


@dataclass(eq=False)
class Mbarrier:
    """One object. `cta`: block of the batch; `address`: in that block's shared memory."""

    cta: int
    address: int
    expected: int
    pending: int
    lane: int
    """Who initialised it."""
    since: int
    """When, by the clock of proxy fences."""
    instruction: Instruction
    tx: int = 0
    phase: int = 0
    """Phases that have completed."""
    started: int = 0
    """Phases completed by earlier objects at the place: knowledge of those is none of this one's."""
    column: int = 0
    """Its place in the knowledge of warps (clocks.py)."""
    handed: np.ndarray | None = None
    """What those that have arrived know."""
    published: np.ndarray | None = None
    """The same as of the last completed phase."""
    near: np.ndarray | None = None
    published_near: np.ndarray | None = None
    """Both of those of the object's own block."""
    deliveries: list[Delivery] = field(default_factory=list)
    uses: dict[int, tuple[int, Instruction]] = field(default_factory=dict)
    """Warp of the cluster -> when it last used it, by its own clock, and how; in kernels that end mbarriers."""

    @property
    def completed(self) -> int:
        """Phases completed at the place, for knowledge of them."""
        return self.started + self.phase

    @property
    def state(self) -> int:
        """Return what mbarrier.arrive returns."""
        return self.phase << PENDING_BITS | self.pending


class Mbarriers:
    """The mbarrier objects of one batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.at: dict[tuple[int, int], Mbarrier] = {}
        self.columns: dict[tuple[int, int], int] = {}
        self.ended: dict[tuple[int, int], int] = {}
        """Place -> phases completed there by objects that have ended."""
        self.waiting: dict[Mbarrier, list[int]] = {}
        """Lanes that wait for an object, where any do."""
        self.until = np.zeros(machine.lanes, np.int64)
        """Phase that a lane waits for."""
        self.answers: dict[int, Answer] = {}
        """Instruction -> how lanes are told whether a phase is complete."""
        self.events = 0
        """Changes of any state, and times that other lanes ran."""
        self._stuck: tuple[Any, ...] = ()
        self._told = 0

    def reset(self) -> None:
        """A new batch of blocks starts."""
        self.at.clear()
        self.columns.clear()
        self.ended.clear()
        self.waiting.clear()
        self._stuck, self._told = (), 0

    def digest(self) -> np.ndarray:
        """Every state, for the recognition of endless loops."""
        return np.array([(b.phase, b.pending, b.tx, b.expected) for b in self.at.values()], np.int64)

    # Life

    def init(self, instruction: Instruction, cta: int, address: int, count: int, lane: int) -> None:
        """A thread makes an object."""
        if not 1 <= count <= MOST:
            self._misuse(instruction, lane, f"mbarrier.init with a count of {count}; 1 to {MOST} are allowed", address)
            return
        old = self.at.get((cta, address))
        if old is not None:
            self._misuse(
                instruction, lane, "mbarrier.init over an mbarrier that is in use (mbarrier.inval ends one)", address,
                {"first_initialised": self.machine.reporter.sources.where(old.instruction)},
            )  # fmt: skip
        for other in range(address - 7, address + 8):
            if other != address and (cta, other) in self.at:
                self._misuse(instruction, lane, "mbarrier.init over a part of another mbarrier", address)
        self.events += 1
        barrier = Mbarrier(cta, address, count, count, lane, self.machine.shadow.now(), instruction)
        barrier.started = self.ended.get((cta, address), 0)
        self.at[cta, address] = barrier
        self.machine.shadow.made(barrier)

    def inval(self, instruction: Instruction, barrier: Mbarrier, lane: int) -> None:
        """The end of an object: its bytes may be used for anything."""
        if barrier.deliveries or barrier in self.waiting:
            self._misuse(
                instruction, lane, "mbarrier.inval of an mbarrier that threads or copies still need", barrier.address
            )
        self.events += 1
        del self.at[barrier.cta, barrier.address]
        self.ended[barrier.cta, barrier.address] = barrier.completed
        self.machine.shadow.unmade(barrier, lane, instruction)

    def find(self, instruction: Instruction, cta: int, address: int, lane: int) -> Mbarrier | None:
        """The object at an address; a complaint and None if there is none."""
        barrier = self.at.get((cta, address))
        if barrier is None:
            name = ".".join(instruction.opcode.split(".")[:2])
            self._misuse(
                instruction, lane, f"{name} where no mbarrier has been initialised, or after its inval", address
            )
            return None
        return barrier

    # Arrivals

    def arrive(
        self,
        instruction: Instruction,
        barrier: Mbarrier,
        lane: int,
        count: int,
        *,
        drop: bool = False,
        may_complete: bool = True,
    ) -> int:
        """`count` arrivals of a lane; the state before them."""
        before = barrier.state
        if not 1 <= count <= barrier.pending:
            what = f"{count} arrivals" if count < 1 else f"{count} arrivals where {barrier.pending} are pending"
            self._misuse(
                instruction, lane, f"{what}, of the {barrier.expected} of phase {barrier.phase}", barrier.address
            )
            return before
        self.events += 1
        barrier.pending -= count
        if drop:
            barrier.expected -= count
        if not may_complete and not barrier.pending and not barrier.tx:
            self._misuse(instruction, lane, "an arrival with .noComplete completes the phase", barrier.address)
        self._settle(barrier)
        return before

    @staticmethod
    def by_phase(barrier: Mbarrier, lanes: np.ndarray) -> list[np.ndarray]:
        """Lanes that arrive together, in parts: warp by warp if the phase may end before the last, since what a warp
        hands on goes to the phase that it arrives in."""
        if len(lanes) <= barrier.pending:
            return [lanes]
        return np.split(lanes, np.flatnonzero(np.diff(lanes // 32)) + 1)

    def expect_one_phase(
        self, instruction: Instruction, barrier: Mbarrier, lanes: np.ndarray, states: list[int]
    ) -> None:
        """Report lanes of one warp that arrived together, and in different phases: the later ones came too many."""
        if states[0] >> PENDING_BITS == states[-1] >> PENDING_BITS:
            return
        phases = np.array(states) >> PENDING_BITS
        late = (lanes[1:] // 32 == lanes[:-1] // 32) & (phases[1:] != phases[:-1])
        if late.any():
            k = int(np.flatnonzero(late)[0])
            self._misuse(
                instruction, int(lanes[k + 1]),
                f"lanes of one warp arrive in different phases, {phases[k]} and {phases[k + 1]}: a phase takes "
                f"{barrier.expected} arrivals",
                barrier.address,
            )  # fmt: skip

    def expect(self, instruction: Instruction, barrier: Mbarrier, lane: int, nbytes: int) -> None:
        """The phase takes so many bytes more."""
        self._move(instruction, barrier, lane, nbytes, f"expect_tx of {nbytes}")

    def complete(self, instruction: Instruction, barrier: Mbarrier, lane: int, nbytes: int) -> None:
        """So many bytes of the phase have come."""
        self._move(instruction, barrier, lane, -nbytes, f"complete_tx of {nbytes}")
        self._settle(barrier)

    def _move(self, instruction: Instruction, barrier: Mbarrier, lane: int, by: int, what: str) -> None:
        self.events += 1
        barrier.tx += by
        if abs(by) > MOST or abs(barrier.tx) > MOST:
            self._misuse(
                instruction, lane, f"{what} takes the transaction count to {barrier.tx}, beyond {MOST}", barrier.address
            )

    def _settle(self, barrier: Mbarrier) -> None:
        """End the phase if it is complete, and let those go who wait for it."""
        if barrier.pending or barrier.tx:
            return
        barrier.phase += 1
        barrier.pending = barrier.expected
        self.machine.shadow.completed(barrier)
        if barrier in self.waiting:
            waiting = np.array(self.waiting[barrier])
            ready = waiting[self.until[waiting] < barrier.phase]
            if len(ready):
                self._let_go(barrier, ready, True)

    # Waiting

    def wait(self, barrier: Mbarrier, until: np.ndarray) -> np.ndarray:
        """Return which of the phases `until` are complete. Deliveries come as they are needed."""
        order = self.machine.order
        while not (done := until < barrier.phase).all() and barrier.deliveries and (order is None or order.happens()):
            self._deliver(barrier)
        return done

    def park(self, barrier: Mbarrier, lanes: np.ndarray, until: np.ndarray) -> None:
        """Lanes wait, the scheduler has set them aside."""
        self.waiting.setdefault(barrier, []).extend(lanes.tolist())
        self.until[lanes] = until

    def _deliver(self, barrier: Mbarrier) -> None:
        self.events += 1
        order = self.machine.order
        barrier.deliveries.pop(0 if order is None else order.index(len(barrier.deliveries)))(barrier)

    def happen(self, order: Order) -> None:
        """Something that may happen at any moment does: a delivery comes, or those that wait are told "not yet"."""
        due = [barrier for barrier in self.at.values() if barrier.deliveries]
        waiting = list(self.waiting)
        number = order.index(len(due) + len(waiting)) if due or waiting else 0
        if number < len(due):
            self._deliver(due[number])
        elif waiting:
            barrier = waiting[number - len(due)]
            self._let_go(barrier, np.array(self.waiting[barrier]), False)

    def deliver(self) -> bool:
        """Let the copies on their way come, which take long, but not for ever. Return whether there were any."""
        due = [barrier for barrier in self.at.values() if barrier.deliveries]
        for barrier in due:
            self._deliver(barrier)
        return bool(due)

    def _let_go(self, barrier: Mbarrier, lanes: np.ndarray, done: bool) -> None:
        machine = self.machine
        parked_at = machine.scheduler.parked_at[lanes]
        for index in sorted(set(parked_at.tolist())):
            self.answers[index](barrier, lanes[parked_at == index], done)
        gone = set(lanes.tolist())
        left = [lane for lane in self.waiting.pop(barrier) if lane not in gone]
        if left:
            self.waiting[barrier] = left
        machine.scheduler.wake(lanes)

    def stir(self, idle: bool) -> bool:
        """Nobody else can run (`idle`), or it is time to be fair: let something come. Whether that changed anything."""
        if not self.waiting:
            return False
        came = False
        order = self.machine.order
        for barrier in list(self.waiting):
            if barrier.deliveries and order is not None and order.gives_up():  # a wait may also give up first
                self._let_go(barrier, np.array(self.waiting[barrier]), False)
                came = True
            elif barrier.deliveries:
                self._deliver(barrier)
                came = True
        if came:
            return True
        if idle:
            now = (self.events, *((k, int(self.until[k])) for lanes in self.waiting.values() for k in sorted(lanes)))
            self._told = self._told + 1 if now == self._stuck else 0
            self._stuck = now
            if self._told >= 2:
                return False
        for barrier, lanes in list(self.waiting.items()):
            self._let_go(barrier, np.array(lanes), False)
        return True

    # Words

    def waited_for(self, cta: int) -> list[str]:
        """A line for each object that threads of a block wait for: what is missing."""
        machine = self.machine
        lines = []
        for barrier, lanes in self.waiting.items():
            own = [lane for lane in lanes if machine.cta_of_lane[lane] == cta]
            if own:
                phases = ", ".join(map(str, np.unique(self.until[own]).tolist()))
                lines.append(f"{self.describe(barrier)}; waited for: phase {phases}")
        return lines

    def describe(self, barrier: Mbarrier) -> str:
        """Return where an object stands, in words."""
        tx = "no bytes missing"
        if barrier.tx > 0:
            tx = f"{barrier.tx} bytes missing"
        elif barrier.tx < 0:
            tx = f"{-barrier.tx} bytes more than were expected"
        return (
            f"mbarrier at shared address {barrier.address:#x} of block {self.machine.coordinates(barrier.cta)}: in "
            f"phase {barrier.phase} (parity {barrier.phase % 2}), {barrier.pending} of {barrier.expected} arrivals "
            f"pending, {tx}"
        )

    def alive(self) -> Iterator[Mbarrier]:
        """Every object."""
        yield from self.at.values()

    def _misuse(
        self, instruction: Instruction, lane: int, what: str, address: int, details: dict[str, Any] | None = None
    ) -> None:
        self.machine.report(
            "mbarrier_misuse",
            f"{what}, at shared address {address:#x}",
            instruction,
            np.array([lane]),
            address,
            details,
        )
