"""cp.async.bulk and cp.reduce.async.bulk of bytes in a row, bulk groups, st.async and red.async."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..bulk_copies import UNIT, Merge, Units
from ..global_rows import Rows
from ..machine import Machine
from ..mbarriers import Mbarrier
from ..memory import ARENA_BASE
from ..ptx import Immediate, Instruction, Operand
from ..shared_memory import PEER, SharedPattern
from .atomics import update_of
from .mbarrier import Places
from .registry import Step, dtype_of, executes

_HINT = "{hint:.L2::cache_hint|}"
_TO = "{to:shared::cluster|shared::cta}"
_DONE = ".mbarrier::complete_tx::bytes"
_INTEGER = "{type:u32|s32|u64|s64}"
_REDUCED = (
    "{op:and|or|xor}.{type:b32|b64}", "{op:add|min|max}." + _INTEGER, "{op:inc|dec}.{type:u32}",
    "{op:add|min|max}{.noftz|}.{type:f16|bf16}", "{op:add}.{type:f32|f64}",
)  # fmt: skip


def active_lanes(machine: Machine) -> np.ndarray:
    """The active lanes as indices."""
    lanes = machine.lane_list()
    return np.arange(machine.lanes) if lanes is None else lanes


class Bytes:
    """The shared side of bulk copies: `[address]` of each lane, in units of 16 bytes."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand, *, peers: bool) -> None:
        self.machine, self.instruction, self.peers = machine, instruction, peers
        self.base, self.offset = machine.pointer(instruction, operand)

    def at(self, lane: int, nbytes: int, alignment: int = UNIT) -> tuple[int, int] | None:
        """(block of the batch, address in it); a complaint and None where so many bytes are not, or lie askew."""
        machine = self.machine
        seen = (self.base.item(0 if len(self.base) == 1 else lane) + self.offset) & 0xFFFFFFFF
        lanes = np.array([lane])
        own = cta = machine.cta_of_lane.item(lane)
        address = seen
        if seen >= PEER:
            (cta,), (address,) = (part.tolist() for part in machine.shared.reach(lanes, np.array([seen])))
        if address % alignment:
            self._complain("misaligned", lanes, address, f"not a multiple of {alignment}")
            return None
        if address + nbytes > machine.shared.bytes:
            beyond = f"{nbytes} bytes from there are beyond the {machine.shared.bytes} of the block"
            self._complain("out_of_bounds", lanes, address, beyond)
            return None
        zones = machine.shared.zones
        if zones is not None and zones[address : address + nbytes].any():
            self._complain("out_of_bounds", lanes, address, f"{nbytes} bytes from there run past the end of an array")
            return None
        if cta != own:
            if not self.peers:
                self._complain("out_of_bounds", lanes, address, "it lies in another block of the cluster")
                return None
            if not machine.shared.expect_running(self.instruction, lanes, np.array([cta])):
                return None
        return cta, address

    def _complain(self, kind: str, lanes: np.ndarray, address: int, why: str) -> None:
        name = ".".join(self.instruction.opcode.split(".")[:3])
        self.machine.report(kind, f"{name} at shared address {address:#x}: {why}", self.instruction, lanes, address)


class Linear:
    """The global side: `[address]` of each lane."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand) -> None:
        self.machine, self.instruction = machine, instruction
        self.base, self.offset = machine.pointer(instruction, operand)

    def at(self, lane: int, nbytes: int, write: bool) -> int | None:
        """Return where the bytes begin in the arena; a complaint and None if they are not all in one buffer."""
        base = self.base if len(self.base) == 1 else self.base[lane : lane + 1]
        return check_global(self.machine, self.instruction, lane, int(base[0]) + self.offset, nbytes, write)


def check_global(
    machine: Machine, instruction: Instruction, lane: int, address: int, nbytes: int, write: bool
) -> int | None:
    """Offset in the arena of bytes of a bulk copy; a complaint and None for what may not be touched."""
    buffer = machine.memory.find(address) if address >= 0 else None
    kind = why = ""
    if buffer is None or address + nbytes > buffer.end:
        kind, why = "out_of_bounds", machine.memory.describe(address)
    elif address % UNIT:
        kind, why = "misaligned", f"not a multiple of {UNIT}"
    elif write and buffer.read_only:
        kind, why = "write_to_read_only", machine.memory.describe(address)
    if kind:
        verb = "write" if write else "read"
        machine.report(
            kind, f"bulk {verb} of {nbytes} bytes at {address:#x}: {why}", instruction, np.array([lane]), address
        )
        return None
    start = address - ARENA_BASE
    if write and machine.memory.written is not None:
        machine.memory.written[start : start + nbytes] = 1
    return start


class Masked:
    """The blocks of a cluster that a multicast goes to; without one, the block that the address names."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand | None) -> None:
        self.machine, self.instruction = machine, instruction
        self.bits = None if operand is None else machine.source(instruction, operand, "u16")

    def blocks(self, lane: int, own: int) -> list[int]:
        """Blocks of the batch."""
        if self.bits is None:
            return [own]
        machine = self.machine
        bits = int(self.bits[0 if len(self.bits) == 1 else lane])
        size = machine.cluster_size
        if bits >> size or not bits:
            machine.report(
                "bulk_operand", f"a multicast to the blocks {bits:#06x} of a cluster of {size}", self.instruction,
                np.array([lane]), None,
            )  # fmt: skip
        first = own // size * size
        found = [first + rank for rank in range(size) if bits >> rank & 1]
        good = [machine.shared.expect_running(self.instruction, np.array([lane]), np.array([cta])) for cta in found]
        return [cta for cta, fine in zip(found, good, strict=True) if fine]


class Told:
    """The mbarrier at which copies complete: in each block that is written to, at the address that is given."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand) -> None:
        self.machine, self.instruction = machine, instruction
        self.where = Places(machine, instruction, operand)
        self.where.generic, self.where.peers = False, True

    def of(self, lane: int, cta: int | None) -> Mbarrier | None:
        """The object for a block (None: the block that the address names); a complaint and None if there is none."""
        machine = self.machine
        lanes, ctas, found = self.where.addresses(np.array([lane]))
        if not len(lanes):
            return None
        block = ctas.item(0) if cta is None else cta
        barrier = machine.mbarriers.find(self.instruction, block, found.item(0), lane)
        if barrier is not None:
            machine.shadow.touched(barrier, lanes, self.instruction, later=True)
        return barrier


class Arrivals:
    """The blocks that a copy arrives in, and in each the mbarrier at which it completes."""

    def __init__(self, machine: Machine, instruction: Instruction, told: Operand, blocks: Operand | None) -> None:
        self.machine, self.instruction = machine, instruction
        self._blocks, self._told = Masked(machine, instruction, blocks), Told(machine, instruction, told)

    def of(self, lane: int, own: int) -> Iterator[tuple[int, Mbarrier]]:
        """`own`: the block that the address names. A block without an mbarrier is left out, with a complaint."""
        for block in self._blocks.blocks(lane, own):
            barrier = self._told.of(lane, block if self._blocks.bits is not None else None)
            if barrier is None:
                continue
            if barrier.cta != block:
                self.machine.report(
                    "bulk_operand", "the mbarrier lies in another block than the bytes are copied to",
                    self.instruction, np.array([lane]), barrier.address,
                )  # fmt: skip
            yield block, barrier


def _size(machine: Machine, instruction: Instruction, operand: Operand) -> Callable[[int], int | None]:
    sizes = machine.source(instruction, operand, "u32")

    def of(lane: int) -> int | None:
        size = int(sizes[0 if len(sizes) == 1 else lane])
        if size % UNIT or size > 1 << 20:
            machine.report(
                "bulk_operand", f"a bulk copy of {size} bytes, which is not a multiple of {UNIT}", instruction,
                np.array([lane]), None,
            )  # fmt: skip
            return None
        return size

    return of


def merging(fields: dict[str, str]) -> Merge:
    """The reduction of a form, on rows of 16 bytes."""
    op, kind = fields["op"], fields["type"]
    dtype = dtype_of(kind)
    function = update_of(op, kind)

    def merge(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        a, b = (np.ascontiguousarray(part).reshape(-1).view(dtype) for part in (old, new))
        return np.ascontiguousarray(function(a, b)).view(np.uint8).reshape(old.shape)

    return merge


@executes(
    f"cp.async.bulk.{_TO}.{{from:global}}{_DONE}{{many:.multicast::cluster|}}{_HINT}",
    f"cp.async.bulk.{{to:shared::cluster}}.{{from:shared::cta}}{_DONE}",
    *(f"cp.reduce.async.bulk.{{to:shared::cluster}}.{{from:shared::cta}}{_DONE}.{form}" for form in _REDUCED[:3]),
    kind="async_copy",
    destination="none",
)
def bulk_load(machine: Machine, instruction: Instruction) -> Step:
    """`[to], [from], bytes, [mbarrier]{, blocks}{, cache policy}`: into shared memory, this block's or a peer's."""
    to, source, size, told, *rest = instruction.operands
    fields = instruction.fields
    wanted = bool(fields.get("many")) + bool(fields.get("hint"))
    machine.expect(instruction, len(rest) == wanted, "has another number of operands")
    where = Bytes(machine, instruction, to, peers=fields["to"] == "shared::cluster")
    near = Bytes(machine, instruction, source, peers=False) if fields["from"] == "shared::cta" else None
    far = Linear(machine, instruction, source) if near is None else None
    sizes = _size(machine, instruction, size)
    arrivals = Arrivals(machine, instruction, told, rest[0] if fields.get("many") else None)
    merge = merging(fields) if fields.get("op") else None
    site = machine.trace.site(instruction.index, "bulk_load")

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            nbytes, rows, lent = sizes(lane), None, None
            found = where.at(lane, nbytes) if nbytes else None
            if not nbytes or found is None:
                continue
            cta, address = found
            if far is not None:
                start = far.at(lane, nbytes, False)
                if start is None:
                    continue
                data = machine.memory.views[1][start : start + nbytes].reshape(-1, UNIT).copy()
                rows = Rows(lane, np.array([start + ARENA_BASE]), nbytes)
                if machine.races:
                    machine.races.note_rows(instruction, rows)
            else:
                assert near is not None
                start_at = near.at(lane, nbytes)
                if start_at is None:
                    continue
                data, lent = _read_now(machine, instruction, lane, start_at[1], nbytes)
            site.requests += 1
            site.bytes += nbytes
            units = Units(address // UNIT + np.arange(nbytes // UNIT))
            for block, barrier in arrivals.of(lane, cta):
                machine.bulk.load(instruction, lane, block, units, data, barrier, nbytes, merge, rows, lent)
                rows = None

    return step


def _read_now(
    machine: Machine, instruction: Instruction, lane: int, address: int, nbytes: int
) -> tuple[np.ndarray, SharedPattern]:
    """The bytes of the lane's own block that are copied to a peer, judged as a bulk store's read; and which."""
    units = Units(address // UNIT + np.arange(nbytes // UNIT))
    pattern = machine.bulk.pattern("bulk_read", instruction, lane, int(machine.cta_of_lane[lane]), units)
    machine.shadow.record(pattern)
    machine.shadow.bulk_read_done(pattern)
    memory = machine.shared.data.reshape(-1, UNIT)
    return memory[int(machine.cta_of_lane[lane]) * machine.shared.stride // UNIT + units.numbers], pattern


@executes(
    f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}",
    *(f"cp.reduce.async.bulk.global.shared::cta.bulk_group{_HINT}.{form}" for form in _REDUCED),
    kind="async_copy",
    destination="none",
)
def bulk_store(machine: Machine, instruction: Instruction) -> Step:
    """`[to], [from], bytes{, cache policy}`: out of shared memory, or merged into what is there."""
    to, source, size, *rest = instruction.operands
    machine.expect(instruction, len(rest) == bool(instruction.fields["hint"]), "has another number of operands")
    where, far = Bytes(machine, instruction, source, peers=False), Linear(machine, instruction, to)
    sizes = _size(machine, instruction, size)
    merge = merging(instruction.fields) if instruction.fields.get("op") else None
    site = machine.trace.site(instruction.index, "bulk_store")

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            nbytes = sizes(lane)
            found = where.at(lane, nbytes) if nbytes else None
            start = None if not nbytes or found is None else far.at(lane, nbytes, True)
            if not nbytes or found is None or start is None:
                continue
            site.requests += 1
            site.bytes += nbytes

            def put(data: np.ndarray, place: np.ndarray = machine.memory.views[1][start : start + nbytes]) -> None:
                place[:] = (data if merge is None else merge(place.reshape(-1, UNIT), data)).reshape(-1)

            units, rows = (
                Units(found[1] // UNIT + np.arange(nbytes // UNIT)),
                Rows(lane, np.array([start + ARENA_BASE]), nbytes),
            )
            machine.bulk.store(instruction, lane, units, rows, put)

    return step


@executes("cp.async.bulk.commit_group", kind="async_copy", destination="none")
def commit(machine: Machine, instruction: Instruction) -> Step:
    """Close the thread's group of bulk stores."""
    return lambda: machine.bulk.commit(active_lanes(machine))


@executes("cp.async.bulk.wait_group{read:.read|}", kind="async_copy", destination="none")
def wait_group(machine: Machine, instruction: Instruction) -> Step:
    """All of the thread's groups but the n newest are done; with .read, have read shared memory."""
    n = instruction.operands[0]
    machine.expect(instruction, isinstance(n, Immediate), "needs a constant")
    assert isinstance(n, Immediate)
    newest, reads_only = n.bits, bool(instruction.fields["read"])
    return lambda: machine.bulk.wait(active_lanes(machine), newest, reads_only)


@executes(f"cp.async.bulk.prefetch.L2.global{_HINT}", kind="control", destination="none")
def prefetch(machine: Machine, instruction: Instruction) -> Step:
    """A hint, of bytes that are checked."""
    far = Linear(machine, instruction, instruction.operands[0])
    sizes = _size(machine, instruction, instruction.operands[1])

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            nbytes = sizes(lane)
            if nbytes is not None:
                far.at(lane, nbytes, False)

    return step
