"""mbarrier: its life, arrivals, transaction counts, and waits; cp.async's arrival. The objects are in mbarriers.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..copies import CopiesArrive
from ..machine import Machine
from ..mbarriers import MOST, PENDING_BITS, Mbarrier
from ..operands import WINDOWS
from ..ptx import Instruction, Operand
from ..shared_memory import PEER
from ..uses import matters
from .registry import Compute, Step, elementwise, executes

_CTA = "{space:.shared|.shared::cta|}"
_ANY = "{space:.shared|.shared::cta|.shared::cluster|}"
_ORDER = "{order:.release|.relaxed|}{.cta|.cluster|}"


class Places:
    """The mbarriers that active lanes name by an operand."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand) -> None:
        self.machine, self.instruction = machine, instruction
        self.base, self.offset = machine.pointer(instruction, operand)
        space = instruction.fields.get("space", "")
        self.generic = not space
        self.peers = self.generic or space == ".shared::cluster"

    def addresses(self, lanes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(lanes, block of the batch, address in it) of those of some lanes whose address can hold an object.

        lanes: None for the active ones.
        """
        machine = self.machine
        if lanes is None:
            lanes = machine.lane_list()
        lanes = np.arange(machine.lanes) if lanes is None else lanes
        if len(lanes) == 1 and (at := self._one(int(lanes[0]))) is not None:
            return lanes, machine.cta_of_lane[lanes], np.array([at])
        seen = np.broadcast_to(self.base, (machine.lanes,))[lanes].astype(np.int64) + self.offset
        if self.generic:
            seen = seen - WINDOWS["shared"]
        else:
            seen &= 0xFFFFFFFF
        ctas, found = machine.shared.reach(lanes, seen)
        outside, skewed = (found < 0) | (found + 8 > machine.shared.bytes), found & 7 != 0
        astray = (ctas != machine.cta_of_lane[lanes]) & (not self.peers)
        bad = outside | skewed | astray
        if bad.any():
            for wrong, kind, why in (
                (outside, "out_of_bounds", f"the block has {machine.shared.bytes} bytes of it"),
                (skewed, "misaligned", "not a multiple of 8"),
                (astray, "out_of_bounds", "it lies in another block of the cluster, which .shared::cta does not reach"),
            ):
                if wrong.any():
                    at = int(found[wrong][0])
                    name = ".".join(self.instruction.opcode.split(".")[:2])
                    machine.report(kind, f"{name} at shared address {at:#x}: {why}", self.instruction, lanes[wrong], at)
            lanes, ctas, found = lanes[~bad], ctas[~bad], found[~bad]
        if machine.cluster_size > 1 and len(lanes):
            far = ctas != machine.cta_of_lane[lanes]
            if far.any() and not machine.shared.expect_running(self.instruction, lanes[far], ctas[far]):
                good = machine.scheduler.running()[ctas]
                lanes, ctas, found = lanes[good], ctas[good], found[good]
        return lanes, ctas, found

    def _one(self, lane: int) -> int | None:
        """Return the address of one lane; None where it cannot hold an object, or may be a peer's."""
        at = int(self.base[0 if len(self.base) == 1 else lane]) + self.offset
        at = at - WINDOWS["shared"] if self.generic else at & 0xFFFFFFFF
        fine = 0 <= at <= self.machine.shared.bytes - 8 and at % 8 == 0 and self.machine.cluster_size == 1
        return at if fine else None

    def barriers(self) -> Iterator[tuple[Mbarrier, np.ndarray]]:
        """Each mbarrier with the lanes that name it; a complaint where there is none."""
        lanes, ctas, found = self.addresses()
        if not len(lanes):
            return
        keys = ctas.astype(np.int64) * PEER + found
        for key in [int(keys[0])] if (keys == keys[0]).all() else np.unique(keys).tolist():
            some = lanes[keys == key]
            barrier = self.machine.mbarriers.find(self.instruction, key // PEER, key % PEER, int(some[0]))
            if barrier is not None:
                self.machine.shadow.touched(barrier, some, self.instruction)
                yield barrier, some


def _values(machine: Machine, instruction: Instruction, operand: Operand) -> np.ndarray:
    """A source of 32 bits, one per lane."""
    return np.broadcast_to(machine.source(instruction, operand, "u32"), (machine.lanes,))


@executes(f"mbarrier.init{_CTA}.b64", kind="mbarrier", destination="none")
def init(machine: Machine, instruction: Instruction) -> Step:
    """`[address], count`."""
    where, counts = Places(machine, instruction, instruction.operands[0]), instruction.operands[1]
    count = _values(machine, instruction, counts)

    def step() -> None:
        for lane, cta, address in zip(*(part.tolist() for part in where.addresses()), strict=True):
            machine.mbarriers.init(instruction, cta, address, int(count[lane]), lane)

    return step


@executes(f"mbarrier.inval{_CTA}.b64", kind="mbarrier", destination="none")
def inval(machine: Machine, instruction: Instruction) -> Step:
    """`[address]`."""
    where = Places(machine, instruction, instruction.operands[0])

    def step() -> None:
        for barrier, lanes in where.barriers():
            machine.mbarriers.inval(instruction, barrier, int(lanes[0]))

    return step


@executes(
    f"mbarrier.{{op:arrive|arrive_drop}}{{tx:.expect_tx|}}{_ORDER}{_ANY}.b64",
    f"mbarrier.{{op:arrive|arrive_drop}}{{part:.noComplete}}{{order:.release|}}{{.cta|}}{_CTA}.b64",
    kind="mbarrier",
)
def arrive(machine: Machine, instruction: Instruction) -> Step:
    """`state, [address]{, count}`, or with .expect_tx `state, [address], bytes`; the state may be `_`."""
    to, place, *rest = instruction.operands
    fields = instruction.fields
    machine.expect(instruction, len(rest) <= 1, "has another number of operands")
    machine.expect(instruction, bool(rest) or not fields.get("tx"), "needs a number of bytes")
    where, put = Places(machine, instruction, place), machine.write(to, "u64", instruction)
    given = _values(machine, instruction, rest[0]) if rest else None
    expects, drop, whole = bool(fields.get("tx")), fields["op"] == "arrive_drop", not fields.get("part")
    releases = fields.get("order") != ".relaxed"
    narrow = ".cta." in instruction.opcode
    objects = machine.mbarriers

    def step() -> None:
        for barrier, lanes in where.barriers():
            states = []
            for some in objects.by_phase(barrier, lanes):
                machine.shadow.released(barrier, some, narrow, relaxed=not releases)
                for lane in some.tolist():
                    if expects and given is not None:
                        objects.expect(instruction, barrier, lane, int(given[lane]))
                    count = 1 if expects or given is None else int(given[lane])
                    states.append(objects.arrive(instruction, barrier, lane, count, drop=drop, may_complete=whole))
            objects.expect_one_phase(instruction, barrier, lanes, states)
            put(np.array(states, np.uint64), lanes)

    return step


@executes(
    f"mbarrier.{{op:expect_tx|complete_tx}}{{order:.relaxed|}}{{.cta|.cluster|}}{_ANY}.b64",
    kind="mbarrier", destination="none",
)  # fmt: skip
def transactions(machine: Machine, instruction: Instruction) -> Step:
    """`[address], bytes`: expected, or come."""
    where = Places(machine, instruction, instruction.operands[0])
    given = _values(machine, instruction, instruction.operands[1])
    objects = machine.mbarriers
    act = objects.expect if instruction.fields["op"] == "expect_tx" else objects.complete

    def step() -> None:
        for barrier, lanes in where.barriers():
            for lane in lanes.tolist():
                act(instruction, barrier, lane, int(given[lane]))

    return step


@executes(
    f"mbarrier.{{op:test_wait|try_wait}}{{parity:.parity|}}{{order:.acquire|.relaxed|}}{{.cta|.cluster|}}{_CTA}.b64",
    kind="mbarrier",
    ends_block=True,
)
def wait(machine: Machine, instruction: Instruction) -> Step:
    """`p, [address], state`, or with .parity `p, [address], parity`; try_wait takes a time that means nothing here.

    The parity's phase is complete when the current one has the other parity.
    """
    to, place, which, *rest = instruction.operands
    fields = instruction.fields
    machine.expect(instruction, len(rest) <= (fields["op"] == "try_wait"), "has another number of operands")
    where, put = Places(machine, instruction, place), machine.write(to, "pred", instruction)
    parity = bool(fields["parity"])
    given = np.broadcast_to(machine.source(instruction, which, "u32" if parity else "u64"), (machine.lanes,))
    guard = None if instruction.guard is None else machine.row(instruction.guard)
    scheduler, objects, resume = machine.scheduler, machine.mbarriers, machine.following(instruction)
    acquires = fields["order"] != ".relaxed" and matters(machine.program, to)
    narrow = ".cta." in instruction.opcode

    def answer(barrier: Mbarrier, lanes: np.ndarray, done: bool) -> None:
        """Tell lanes whether the phase is complete. Those who do not look at the answer know nothing."""
        put(np.full(len(lanes), done), lanes)
        if done and acquires:
            machine.shadow.acquired(barrier, lanes, narrow)

    objects.answers[instruction.index] = answer

    def until(barrier: Mbarrier, lanes: np.ndarray) -> np.ndarray:
        wanted = given[lanes]
        if parity:
            return np.where(wanted & 1 == barrier.phase % 2, barrier.phase, barrier.phase - 1)
        phases = (wanted >> np.uint64(PENDING_BITS)).astype(np.int64)
        strange = (phases != barrier.phase) & (phases != barrier.phase - 1)
        if strange.any():
            machine.report(
                "mbarrier_misuse",
                f"a state of phase {int(phases[strange][0])} is asked for in phase {barrier.phase}; only the current "
                f"and the one before may be, at shared address {barrier.address:#x}",
                instruction, lanes[strange], barrier.address,
            )  # fmt: skip
        return phases

    def ask() -> list[tuple[Mbarrier, np.ndarray, np.ndarray]]:
        """Return those that have to wait: (object, lanes, phases)."""
        left = []
        for barrier, lanes in where.barriers():
            phases = until(barrier, lanes)
            done = objects.wait(barrier, phases)
            if done.all():
                answer(barrier, lanes, True)
                continue
            if done.any():
                answer(barrier, lanes[done], True)
            left.append((barrier, lanes[~done], phases[~done]))
        return left

    def step() -> None:
        outer = machine.mask
        if guard is not None:
            held = ~guard if instruction.guard_negated else guard
            active = scheduler.live if outer is None else outer
            machine.set_mask(active & held)
        left = ask()
        machine.set_mask(outer)
        if not left:
            scheduler.goto(resume)
            return
        scheduler.separate()
        scheduler.goto(resume)
        for barrier, lanes, phases in left:
            scheduler.park(lanes, instruction, resume)
            objects.park(barrier, lanes, phases)

    return step


@executes("mbarrier.pending_count.b64", kind="mbarrier")
@elementwise(types=("u32", "u64"))
def pending_count(machine: Machine, fields: dict[str, str]) -> Compute:
    """The arrivals that were pending in a state."""
    low = np.uint64((1 << PENDING_BITS) - 1)

    def compute(out: np.ndarray, state: np.ndarray) -> None:
        np.copyto(out, state & low, casting="unsafe")

    return compute


@executes(
    "cp.async.mbarrier.arrive{kept:.noinc|}{space:.shared|.shared::cta|}.b64", kind="async_copy", destination="none"
)
def copies_arrive(machine: Machine, instruction: Instruction) -> Step:
    """An arrival of each lane once its cp.async so far have landed; without .noinc one more is pending for it."""
    where = Places(machine, instruction, instruction.operands[0])
    counted, objects = bool(instruction.fields["kept"]), machine.mbarriers

    def step() -> None:
        for barrier, lanes in where.barriers():
            if not counted:
                barrier.pending += len(lanes)
                if barrier.pending > MOST:
                    machine.report(
                        "mbarrier_misuse",
                        f"{barrier.pending} pending arrivals, at shared address {barrier.address:#x}",
                        instruction, lanes, barrier.address,
                    )  # fmt: skip
            flights, earlier = machine.copies.of(lanes), machine.copies.arrivals_of(lanes, barrier)

            def deliver(
                barrier: Mbarrier, lanes: np.ndarray = lanes, flights: list = flights, earlier: list = earlier
            ) -> None:
                for one in earlier:  # what they tell of is among these copies, and comes with them
                    if one.deliver in one.barrier.deliveries:
                        machine.shadow.comes_too(barrier, one.barrier)
                        one.barrier.deliveries.remove(one.deliver)
                        one.deliver(one.barrier)
                machine.copies.land(flights, lanes, barrier)
                for lane in lanes.tolist():
                    objects.arrive(instruction, barrier, lane, 1)

            barrier.deliveries.append(deliver)
            machine.copies.arrivals.append(CopiesArrive(lanes, barrier, deliver))

    return step
