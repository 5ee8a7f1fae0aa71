"""A record of one block of a launch, instruction by instruction: addresses of every lane, copies, waits, mbarriers.

A recorder watches the instructions that touch memory, multiply matrices or wait. It changes nothing: it reads the
addresses before the instruction runs, and the state of the mbarriers after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .descriptor import Descriptor
from .isa.registry import NUMPY, Step
from .ptx import Immediate, Instruction, Memory, Vector

if TYPE_CHECKING:
    from .machine import Machine

MOST = 20_000
_WATCHED = (
    "ld.global", "ld.shared", "st.global", "st.shared", "ldmatrix", "stmatrix", "cp.async", "cp.reduce", "bar.sync",
    "bar.arrive", "barrier.sync", "barrier.arrive", "mbarrier.", "mma.sync", "wmma.", "wgmma.",
)  # fmt: skip


@dataclass(frozen=True)
class Access:
    """Addresses of lanes: of bytes in the block's shared memory, or in global memory."""

    space: str
    """"shared" or "global"."""
    writes: bool
    nbytes: int
    """Of each lane."""
    lanes: np.ndarray
    """Threads of the block, counted over whole warps."""
    addresses: np.ndarray


@dataclass(frozen=True)
class Event:
    """One instruction that lanes of the block ran together."""

    instruction: Instruction
    lanes: np.ndarray
    """Threads of the block that ran it."""
    accesses: tuple[Access, ...] = ()
    told: dict[str, Any] = field(default_factory=dict)
    """What else there is: the groups that a wait leaves, the coordinates of a box, operands of wgmma, an mbarrier."""
    mbarriers: tuple[tuple[int, int, int, int, int], ...] = ()
    """After it: (address, phases completed, arrivals pending, arrivals expected, bytes expected and not there)."""


class Recorder:
    """Collects the events of one block. `most`: events after which no more are kept; `left_out` counts those."""

    def __init__(self, block: int = 0, most: int = MOST) -> None:
        self.block, self.most = block, most
        self.events: list[Event] = []
        self.left_out = 0
        self.buffers: dict[str, tuple[int, int]] = {}
        """Name -> (address, bytes) of the launch's buffers in global memory."""

    def wants(self, instruction: Instruction) -> bool:
        """Return whether an instruction is watched."""
        return instruction.opcode.startswith(_WATCHED)

    def watched(self, machine: Machine, instruction: Instruction, step: Step) -> Step:
        """The step, recorded."""
        read = _reader(machine, instruction)

        def recorded() -> None:
            cta = self.block - machine.first_cta
            lanes = machine.lane_list() if 0 <= cta < machine.ctas else np.empty(0, np.int64)
            each = machine.warps_per_cta * 32
            lanes = np.arange(cta * each, (cta + 1) * each) if lanes is None else lanes[lanes // each == cta]
            lanes = lanes[machine.scheduler.born[lanes]] if len(lanes) else lanes
            accesses, told = read(lanes) if len(lanes) else ((), {})
            step()
            if not len(lanes):
                return
            if not self.buffers:
                self.buffers = machine.memory.buffers()
            if len(self.events) >= self.most:
                self.left_out += 1
                return
            first = cta * each
            near = tuple(Access(a.space, a.writes, a.nbytes, a.lanes - first, a.addresses) for a in accesses)
            states = tuple(
                (b.address, b.phase, b.pending, b.expected, b.tx) for b in machine.mbarriers.alive() if b.cta == cta
            )
            self.events.append(Event(instruction, lanes - first, near, told, tuple(sorted(states))))

        return recorded


def _reader(machine: Machine, instruction: Instruction) -> Any:
    """Return what reads the operands of an instruction for lanes of the batch: (accesses, what else there is)."""
    opcode, operands = instruction.opcode, instruction.operands
    head = opcode.split(".")[0]
    if head in ("ld", "st"):
        space, writes = opcode.split(".")[1].split("::")[0], head == "st"
        at = _addresses(machine, instruction, operands[0 if writes else 1])
        nbytes = np.dtype(NUMPY[instruction.fields["type"]]).itemsize * int(instruction.fields.get("vec", "")[2:] or 1)
        return lambda lanes: ((Access(space, writes, nbytes, lanes, at(lanes)),), {})
    if head in ("ldmatrix", "stmatrix"):
        writes = head == "stmatrix"
        at = _addresses(machine, instruction, operands[0 if writes else 1])
        giving = 8 * int(instruction.fields["num"][1:])

        def matrix(lanes: np.ndarray) -> Any:
            lanes = lanes[lanes % 32 < giving]
            return (Access("shared", writes, 16, lanes, at(lanes)),), {}

        return matrix
    if opcode.startswith(("cp.async.ca", "cp.async.cg")):
        to, source = (_addresses(machine, instruction, operand) for operand in operands[:2])
        nbytes = operands[2].bits if isinstance(operands[2], Immediate) else 0
        size = operands[3] if len(operands) > 3 and not instruction.fields["hint"] else None
        given = machine.source(instruction, size, "u32") if size is not None and _is_size(size) else None

        def copy(lanes: np.ndarray) -> Any:
            reads = lanes if given is None else lanes[np.broadcast_to(given, (machine.lanes,))[lanes] > 0]
            return (
                Access("shared", True, nbytes, lanes, to(lanes)), Access("global", False, nbytes, reads, source(reads)),
            ), {}  # fmt: skip

        return copy
    if opcode.startswith(("cp.async.wait_group", "wgmma.wait_group", "cp.async.bulk.wait_group")):
        left = operands[0].bits if isinstance(operands[0], Immediate) else 0
        return lambda lanes: ((), {"left": left})
    if opcode.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
        return _box(machine, instruction)
    if opcode.startswith("mbarrier."):
        place = next((operand for operand in operands if isinstance(operand, Memory)), None)
        if place is None:
            return lambda lanes: ((), {})
        at = _addresses(machine, instruction, place)
        return lambda lanes: ((), {"mbarrier": sorted(set(at(lanes).tolist()))})
    if opcode.startswith("wgmma.mma_async"):
        return _product(machine, instruction)
    return lambda lanes: ((), {})


def _is_size(operand: Any) -> bool:
    return getattr(operand, "kind", "") != "pred"


def _addresses(machine: Machine, instruction: Instruction, operand: Any) -> Any:
    base, offset = machine.pointer(instruction, operand)

    def at(lanes: np.ndarray) -> np.ndarray:
        return np.broadcast_to(base, (machine.lanes,))[lanes].astype(np.int64) + offset

    return at


def _box(machine: Machine, instruction: Instruction) -> Any:
    """A tensor copy: where the box lies in the tensor, where in shared memory, and which mbarrier it tells."""
    from .isa.tensor_copy import Boxes

    operands = instruction.operands
    loads = ".global.tile" in instruction.opcode or ".shared::c" in instruction.opcode.split(".global")[0]
    boxes = Boxes(machine, instruction, operands[1 if loads else 0], stores=False)
    at = _addresses(machine, instruction, operands[0 if loads else 1])
    told = _addresses(machine, instruction, operands[2]) if loads else None

    def read(lanes: np.ndarray) -> Any:
        copies = []
        for lane in lanes.tolist():
            found = boxes.of(lane)
            if found is None or found[0].corners is not None:  # columns of images are not drawn
                continue
            what, corner, _ = found
            one = np.array([lane])
            copies.append({
                "thread": lane % (machine.warps_per_cta * 32), "to": int(at(one)[0]), "box": list(what.box),
                "at": list(corner), "bytes": what.box_bytes, "address": what.address, "row": what.row_bytes,
                "swizzle": what.swizzle, "mbarrier": int(told(one)[0]) if told is not None else None,
            })  # fmt: skip
        return (), {"boxes": copies, "loads": loads}

    return read


def _product(machine: Machine, instruction: Instruction) -> Any:
    """wgmma: where A (None: in registers) and B begin, and how wide their swizzled rows are."""
    sides = [
        None if isinstance(operand, Vector) else machine.source(instruction, operand, "u64")
        for operand in instruction.operands[1:3]
    ]

    def read(lanes: np.ndarray) -> Any:
        groups = lanes[lanes % 128 == lanes[0] % 128]
        found: list[list[tuple[int, int] | None]] = []
        for lane in groups.tolist():
            pair: list[tuple[int, int] | None] = []
            for side in sides:
                bits = None if side is None else int(np.broadcast_to(side, (machine.lanes,))[lane])
                what = None if bits is None else Descriptor.of(bits)
                pair.append(None if what is None else (what.start, what.row))
            found.append(pair)
        return (), {"operands": found}

    return read
