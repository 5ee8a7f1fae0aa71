"""Loads and stores in every state space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..access import at_one_place
from ..compiled import address
from ..global_port import GlobalPattern
from ..machine import Machine
from ..memory import ARENA_BASE
from ..operands import WINDOWS
from ..ptx import Immediate, Instruction, Memory, Operand, Register, Symbol, Vector
from ..shared_memory import SharedPattern
from ..trace import Site
from .registry import NUMPY, Step, executes

TYPES = "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64|b128"
_ORDER = "{.weak|.volatile|.mmio.relaxed.sys|.relaxed.cta|.relaxed.cluster|.relaxed.gpu|.relaxed.sys|"
_CACHE = (
    "{.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate|}"
    "{hint:.L2::cache_hint|}{.L2::64B|.L2::128B|.L2::256B|}"
)
_SPACE = "{space:.global|.shared|.shared::cta|.shared::cluster|.local|}"


def _window(space: str) -> str:
    return space.lstrip(".").split("::")[0]


def _kind(fields: dict[str, str]) -> str:
    return "memory_" + (_window(fields["space"]) or "generic")


class Spread:
    """Between elements as memory holds them and the registers of a `{a, b, c, d}` operand."""

    def __init__(self, machine: Machine, instruction: Instruction, vector: int, operand_index: int) -> None:
        self.machine = machine
        self.kept: list[np.ndarray] = []
        self.kind = instruction.fields["type"]
        part = np.dtype(NUMPY[self.kind])
        operand = instruction.operands[operand_index]
        self.items = operand.items if isinstance(operand, Vector) else (operand,)
        machine.expect(instruction, len(self.items) == vector, f"needs {vector} registers")
        self.bytes = part.itemsize * vector
        machine.expect(instruction, self.bytes <= 16, f"moves {self.bytes} bytes per lane; 16 is the most")
        whole = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "b128"}[self.bytes]
        self.elements = machine.scratch(whole, "elements")
        self.parts = self.elements.view(part).reshape(machine.lanes, vector)
        self.rows_told: tuple[np.ndarray, np.ndarray] | None = None
        """Addresses of the registers' rows and how far apart their elements are; None if the compiled loops cannot."""
        compiled = machine.compiled
        if compiled is not None and part.itemsize <= 8:
            self.rows_told = self._rows(instruction, part.itemsize, operand_index == 0)

    def _rows(self, instruction: Instruction, size: int, written: bool) -> tuple[np.ndarray, np.ndarray] | None:
        machine, places, steps = self.machine, [], []
        for item in self.items:
            if isinstance(item, Register) and item.kind != "pred":
                row = machine.row(item)
                if row.itemsize != size:
                    return None
                steps.append(1)
            elif isinstance(item, Immediate) and not written:
                row = machine.source(instruction, item, self.kind)
                self.kept.append(row)
                steps.append(0)
            else:
                return None
            places.append(address(row))
        return np.array(places, np.int64), np.array(steps, np.int64)

    def load(self, host: int, offsets: np.ndarray, lanes: np.ndarray | None) -> bool:
        """Fill the lanes' registers from memory at `host` + offsets, one a lane; False if it is left to NumPy."""
        compiled, places = self.machine.compiled, self.rows_told
        if compiled is None or places is None:
            return False
        size = self.parts.itemsize
        where = 0 if lanes is None else address(lanes)
        compiled.load(host, address(offsets), where, len(offsets), size, len(self.items), address(places[0]))
        return True

    def store(self, host: int, offsets: np.ndarray, lanes: np.ndarray | None) -> bool:
        """The inverse."""
        compiled, places = self.machine.compiled, self.rows_told
        if compiled is None or places is None:
            return False
        size, (rows, steps) = self.parts.itemsize, places
        where = 0 if lanes is None else address(lanes)
        count = len(self.items)
        compiled.store(host, address(offsets), where, len(offsets), size, count, address(rows), address(steps))
        return True

    def scatter(self, instruction: Instruction) -> Callable[[int, np.ndarray | None], None]:
        """(count, lanes): the first `count` elements go to the registers of the lanes."""
        puts = [self.machine.write(item, self.kind, instruction) for item in self.items]
        parts = self.parts

        def put_all(count: int, lanes: np.ndarray | None) -> None:
            for k, put in enumerate(puts):
                put(parts[:count, k], lanes)

        return put_all

    def gather(self, instruction: Instruction) -> Callable[[np.ndarray | None], np.ndarray]:
        """(lanes) -> their elements, from the registers."""
        sources = [self.machine.source(instruction, item, self.kind) for item in self.items]
        parts, elements = self.parts, self.elements

        def take(lanes: np.ndarray | None) -> np.ndarray:
            if lanes is None:
                for k, source in enumerate(sources):
                    np.copyto(parts[:, k], source)
                return elements
            for k, source in enumerate(sources):
                parts[: len(lanes), k] = source if len(source) == 1 else source[lanes]
            return elements[: len(lanes)]

        return take


def _expect_operands(machine: Machine, instruction: Instruction) -> None:
    """A cache policy, where there is one, is one operand more; it changes nothing here."""
    count = 3 if instruction.fields.get("hint") else 2
    machine.expect(instruction, len(instruction.operands) == count, f"needs {count} operands")


def vector_of(instruction: Instruction) -> int:
    text = instruction.fields.get("vec", "")
    return int(text[2:]) if text else 1


@executes(
    f"ld{_ORDER}.acquire.cta|.acquire.cluster|.acquire.gpu|.acquire.sys|}}{_SPACE}{{.ca|.cg|.cs|.lu|.cv|}}{_CACHE}"
    f"{{vec:.v2|.v4|}}.{{type:{TYPES}}}",
    f"ld{{space:.global}}{{.ca|.cg|.cs|}}.nc{_CACHE}{{vec:.v2|.v4|}}.{{type:{TYPES}}}",
    f"ldu{{space:.global|}}{{vec:.v2|.v4|}}.{{type:{TYPES}}}",
    kind=_kind,
)
def load(machine: Machine, instruction: Instruction) -> Step:
    """A load from global, shared or local memory, or through a generic address."""
    space = _window(instruction.fields["space"])
    _expect_operands(machine, instruction)
    spread = Spread(machine, instruction, vector_of(instruction), 0)
    put, elements, nbytes = spread.scatter(instruction), spread.elements, spread.bytes
    base, offset = machine.pointer(instruction, instruction.operands[1])
    sites = {name: machine.trace.site(instruction.index, f"{name}_load") for name in reachable(space)}

    offer(machine, instruction, spread, 1, space, sites, False)

    def shared(base: np.ndarray, offset: int) -> None:
        pattern = machine.shared.locate(
            sites["shared"], "read", instruction, base, offset, nbytes, peers=reaches_peers(instruction)
        )
        if pattern is not None and not spread.load(machine.shared.host, pattern.offsets, pattern.lanes):
            count = len(pattern.offsets)
            machine.shared.load(pattern, elements[:count])
            put(count, pattern.lanes)

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        if local:
            found = machine.local.locate(sites["local"], instruction, base, offset, nbytes, False)
            if found is not None:
                lanes, index = found
                machine.local.load(index, nbytes, elements[: len(index)])
                put(len(index), lanes)
            return
        place = machine.port.find(sites["global"], instruction, base, offset, nbytes, False)
        if place is not None:
            lanes, offsets, start = place
            if not spread.load(machine.memory.host + start, offsets, lanes):
                machine.port.load((offsets + start) // nbytes, nbytes, elements[: len(offsets)])
                put(len(offsets), lanes)

    return by_space(machine, instruction, space, base, offset, shared, elsewhere)


@executes(
    f"st{_ORDER}.release.cta|.release.cluster|.release.gpu|.release.sys|}}{_SPACE}{{.wb|.cg|.cs|.wt|}}{_CACHE}"
    f"{{vec:.v2|.v4|}}.{{type:{TYPES}}}",
    kind=_kind,
    destination="none",
)
def store(machine: Machine, instruction: Instruction) -> Step:
    """A store to global, shared or local memory, or through a generic address."""
    space = _window(instruction.fields["space"])
    _expect_operands(machine, instruction)
    spread = Spread(machine, instruction, vector_of(instruction), 1)
    take, nbytes = spread.gather(instruction), spread.bytes
    base, offset = machine.pointer(instruction, instruction.operands[0])
    sites = {name: machine.trace.site(instruction.index, f"{name}_store") for name in reachable(space)}

    offer(machine, instruction, spread, 0, space, sites, True)
    plain = not _STRONG & set(instruction.opcode.split("."))

    def shared(base: np.ndarray, offset: int) -> None:
        pattern = machine.shared.locate(
            sites["shared"], "write", instruction, base, offset, nbytes, peers=reaches_peers(instruction)
        )
        if pattern is None:
            return
        if not spread.store(machine.shared.host, pattern.offsets, pattern.lanes):
            machine.shared.store(pattern, take(pattern.lanes))
        if plain:
            _whose_stays(
                machine, instruction, pattern, pattern.offsets, machine.shared.views[nbytes], take, pattern.addresses
            )

    def elsewhere(base: np.ndarray, offset: int, local: bool) -> None:
        if local:
            found = machine.local.locate(sites["local"], instruction, base, offset, nbytes, True)
            if found is not None:
                machine.local.store(found[1], nbytes, take(found[0]))
            return
        place = machine.port.find(sites["global"], instruction, base, offset, nbytes, True)
        if place is not None:
            lanes, offsets, start = place
            judged = machine.races is not None and machine.races.waiting
            if judged or not spread.store(machine.memory.host + start, offsets, lanes):
                machine.port.store((offsets + start) // nbytes, nbytes, take(lanes))
            if plain and (pattern := machine.port.pattern) is not None:
                _whose_stays(
                    machine, instruction, pattern, offsets + start, machine.memory.views[nbytes], take,
                    offsets + (start + ARENA_BASE),
                )  # fmt: skip

    return by_space(machine, instruction, space, base, offset, shared, elsewhere)


_STRONG = {"volatile", "relaxed", "release", "mmio"}


def _whose_stays(
    machine: Machine, instruction: Instruction, pattern: SharedPattern | GlobalPattern, offsets: np.ndarray,
    memory: np.ndarray, take: Callable[[np.ndarray | None], np.ndarray], addresses: np.ndarray,
) -> None:  # fmt: skip
    """Look at a store that is done: where lanes of one warp have stored different values at one place, no manual says
    whose stays. That is reported if another one makes another result."""
    if pattern.pairs is None:
        pattern.pairs = at_one_place(pattern.lanes, offsets)
    if not pattern.pairs.size:
        return
    values, (first, second) = take(pattern.lanes), pattern.pairs
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    differ = np.flatnonzero((raw[first] != raw[second]).any(axis=1))
    if not len(differ):
        return
    lanes = np.arange(machine.lanes) if pattern.lanes is None else pattern.lanes
    if machine.undefined is not None:  # the lowest lane's, in place of the highest's
        memory[offsets[first[::-1]] // raw.shape[1]] = values[first[::-1]]
    one, other = lanes[first[differ[0]]], lanes[second[differ[0]]]
    machine.report(
        "lane_race",
        f"lanes {one % 32} and {other % 32} of one warp store different values at {int(addresses[first[differ[0]]]):#x}"
        " in one step, and nothing says whose stays",
        instruction, np.array([one, other]), int(addresses[first[differ[0]]]),
        {
            "other_access": f"{machine.reporter.sources.where(instruction)} (the same instruction)",
            "effect": "another choice makes another result",
        },
        suspect=True,
    )  # fmt: skip


def offer(
    machine: Machine, instruction: Instruction, spread: Spread, operand: int, space: str, sites: dict[str, Site],
    writes: bool,
) -> None:  # fmt: skip
    """Let the compiled loops do an access that is made again and again; where an address may be in any memory, those to
    global memory."""
    if machine.engine is not None and space != "local" and machine.repeats():
        place = sites["shared" if space == "shared" else "global"]
        machine.engine.offer(instruction, spread, instruction.operands[operand], space, place, writes)


def reaches_peers(instruction: Instruction) -> bool:
    """Return whether shared addresses may be those of other blocks of the cluster."""
    return instruction.fields["space"] in ("", ".shared::cluster")


def reachable(space: str) -> tuple[str, ...]:
    """The memories an access may go to: that of its state space, or any."""
    return (space,) if space else ("global", "shared", "local")


def by_space(
    machine: Machine,
    instruction: Instruction,
    space: str,
    base: np.ndarray,
    offset: int,
    shared: Callable[[np.ndarray, int], None],
    elsewhere: Callable[[np.ndarray, int, bool], None],
) -> Step:
    """The step for a state space; without one, each lane's address says where it goes."""
    if space == "shared":
        return lambda: shared(base, offset)
    if space == "local":
        return lambda: elsewhere(base, offset, True)
    machine.expect(instruction, base.itemsize == 8, "has a 32-bit address where generic and global ones are 64-bit")
    if space == "global":
        return lambda: elsewhere(base, offset, False)
    windows = {name: np.uint64(low) for name, low in WINDOWS.items()}
    lowest = min(windows.values())

    def generic() -> None:
        lanes = machine.lane_list()
        seen = base if lanes is None or len(base) == 1 else base[lanes]
        if not len(seen):
            return
        if seen.max() < lowest:
            elsewhere(base, offset, False)
            return
        outer, addresses = machine.mask, np.broadcast_to(base, (machine.lanes,)).copy()
        active = np.ones(machine.lanes, bool) if outer is None else outer
        rest = active.copy()
        for name, low in windows.items():
            inside = active & (addresses >= low) & (addresses < low + np.uint64(1 << 32))
            rest &= ~inside
            if not inside.any():
                continue
            machine.expect(
                instruction, name != "param", "reads a parameter through a generic address, which is not emulated"
            )
            machine.set_mask(None if inside.all() else inside)
            if name == "shared":
                shared(addresses - low, offset)
            else:
                elsewhere(addresses - low - machine.local.slots, offset, True)
        if rest.any():
            machine.set_mask(rest)
            elsewhere(addresses, offset, False)
        machine.set_mask(outer)

    return generic


def argument_bytes(machine: Machine, instruction: Instruction, operand: Operand, nbytes: int) -> np.ndarray | None:
    """The bytes of each lane that `[argument + offset]` names, uint8 [lanes, nbytes]; None if it is no argument."""
    if not isinstance(operand, Memory) or not isinstance(operand.base, Symbol):
        return None
    found = machine.program.arguments.get(operand.base.name)
    if found is None:
        return None
    start, size = found
    offset = operand.offset + operand.base.offset
    machine.expect(instruction, 0 <= offset <= size - nbytes, f"is outside the {size} bytes of {operand.base.name}")
    return machine.calls.area[:, start + offset : start + offset + nbytes]


@executes(f"ld.{{space:param|param::entry|param::func}}{{vec:.v2|.v4|}}.{{type:{TYPES}}}", kind="move")
def load_parameter(machine: Machine, instruction: Instruction) -> Step:
    """A parameter of the kernel, by name or by an address in the parameter window; or of a function, or its result."""
    spread = Spread(machine, instruction, vector_of(instruction), 0)
    put, nbytes = spread.scatter(instruction), spread.bytes
    place = argument_bytes(machine, instruction, instruction.operands[1], nbytes)
    if place is not None:
        into = spread.elements.view(np.uint8).reshape(machine.lanes, nbytes)

        def passed() -> None:
            lanes = machine.lane_list()
            count = machine.lanes if lanes is None else len(lanes)
            into[:count] = place if lanes is None else place[lanes]
            put(count, lanes)

        return passed
    base, offset = machine.pointer(instruction, instruction.operands[1])
    data, low = machine.param_data, WINDOWS["param"]
    raw = spread.elements.view(np.uint8).reshape(machine.lanes, nbytes)

    def step() -> None:
        lanes = machine.lane_list()
        seen = base if lanes is None or len(base) == 1 else base[lanes]
        start = seen.astype(np.int64) + (offset - low)
        outside = (start < 0) | (start + nbytes > len(data))
        if outside.any():
            where = np.flatnonzero(np.broadcast_to(outside, (machine.lanes if lanes is None else len(lanes),)))
            machine.report(
                "out_of_bounds",
                f"read of {nbytes} bytes at offset {int(start[outside][0])} of {len(data)} bytes of parameters",
                instruction, where if lanes is None else lanes[where], int(start[outside][0]),
            )  # fmt: skip
            return
        count = machine.lanes if lanes is None else len(lanes)
        raw[:count] = data[start[:, None] + np.arange(nbytes)]
        put(count, lanes)

    return step


@executes(f"ld.const{{vec:.v2|.v4|}}.{{type:{TYPES}}}", kind="memory_const")
def load_constant(machine: Machine, instruction: Instruction) -> Step:
    """A load from constant memory, which lies among the global buffers and is read-only."""
    spread = Spread(machine, instruction, vector_of(instruction), 0)
    put, elements, nbytes = spread.scatter(instruction), spread.elements, spread.bytes
    base, offset = machine.pointer(instruction, instruction.operands[1])
    site = machine.trace.site(instruction.index, "const_load")

    def step() -> None:
        found = machine.port.locate(site, instruction, base, offset, nbytes, False)
        if found is not None:
            lanes, index = found
            machine.port.load(index, nbytes, elements[: len(index)])
            put(len(index), lanes)

    return step
