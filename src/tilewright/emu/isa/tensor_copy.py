"""cp.async.bulk.tensor: boxes of a tensor that a tensor map describes, to and from shared memory; tensor maps changed.

Tiled copies of 1 to 5 dimensions, and columns of pixels of images (im2col) of 3 to 5. The whole box is credited to the
mbarrier, also what lies outside the tensor and is filled; a store leaves that out. Interleaved maps are refused.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...errors import InvalidOperand
from ...jit.tensor_map import SHARED_ALIGNMENT, TensorMap
from ..bulk_copies import UNIT, Merge, Put, Units
from ..global_rows import Rows, in_rows
from ..machine import Machine
from ..memory import ARENA_BASE, WINDOW_BYTES
from ..operands import WINDOWS
from ..ptx import Immediate, Instruction, Operand, Register, Vector
from ..tensor_maps import BYTES, NAN, Box, locate, locate_pixels, swizzled, unpack, with_field
from .bulk import Arrivals, Bytes, active_lanes, check_global, merging
from .registry import Step, executes

_DIM = "{dim:1d|2d|3d|4d|5d}"
_HINT = "{hint:.L2::cache_hint|}"
_DONE = ".mbarrier::complete_tx::bytes"
_MODE = "{mode:.tile|.im2col|}"
_STORE_MODE = "{mode:.tile|.im2col_no_offs|}"


Place = tuple[TensorMap, tuple[int, ...], tuple[int, ...]]
"""A box: the map, the coordinates, the offsets of a filter's tap."""


class Boxes:
    """`[map, {coordinates}]` of each lane, and in mode im2col `{offsets}` of a filter's tap."""

    def __init__(
        self, machine: Machine, instruction: Instruction, operand: Operand, tap: Operand | None = None,
        stores: bool = False,
    ) -> None:  # fmt: skip
        self.machine, self.instruction = machine, instruction
        whole = isinstance(operand, Vector) and len(operand.items) == 2 and isinstance(operand.items[1], Vector)
        machine.expect(instruction, whole, "needs [map, {coordinates}]")
        assert isinstance(operand, Vector)
        assert isinstance(operand.items[1], Vector)
        self.rank, self.stores = int(instruction.fields["dim"][0]), stores
        at = operand.items[1].items
        machine.expect(instruction, len(at) == self.rank, f"needs {self.rank} coordinates")
        self.map = machine.source(instruction, operand.items[0], "u64")
        self.coordinates = [machine.source(instruction, item, "s32") for item in at]
        self.images, axes = instruction.fields["mode"].startswith(".im2col"), self.rank - 2
        machine.expect(instruction, not self.images or axes > 0, "takes images of 3 to 5 dimensions")
        offsets = tap.items if isinstance(tap, Vector) else ()
        machine.expect(instruction, tap is None or len(offsets) == axes, f"needs {axes} offsets of a filter's tap")
        self.offsets = [machine.source(instruction, item, "u16") for item in offsets]
        self._given: dict[int, TensorMap] = {}
        """Maps among the kernel's parameters, which stay as they are, by address."""

    def of(self, lane: int) -> Place | None:
        """The box of a lane; a complaint and None for what is no map of this rank and mode."""
        machine = self.machine

        def one(values: np.ndarray) -> int:
            return int(values.item(0 if len(values) == 1 else lane))

        address = one(self.map)
        found = self._given.get(address) or self._map(lane, address)
        if found is None:
            return None
        at = tuple(one(values) for values in self.coordinates)
        inside = at[0] * found.itemsize
        if inside % UNIT:  # measured on an H200, which stops with an illegal instruction
            machine.report(
                "misaligned",
                f"a box starts at {at[0]} {found.dtype} of a row, {inside} bytes, which is not a multiple of {UNIT}",
                self.instruction, np.array([lane]), address,
            )  # fmt: skip
            return None
        if (
            self.stores and not self.images and min(at) < 0
        ):  # as CUDA's manual says; an H100 and an H200 stop with an illegal instruction
            machine.report(
                "tensor_map",
                f"a box that is stored starts at {at}: it may reach over a tensor's end, but not begin before it",
                self.instruction, np.array([lane]), address,
            )  # fmt: skip
            return None
        tap = tuple(one(values) for values in self.offsets) or (0,) * (self.rank - 2)
        return found, at, tap

    def _map(self, lane: int, address: int) -> TensorMap | None:
        machine = self.machine
        try:
            found = unpack(map_bytes(machine, address))
            machine.maps.check(self.instruction, lane, address)
            if found.rank != self.rank:
                raise InvalidOperand(f"the map has {found.rank} dimensions, the instruction is of {self.rank}")
            if self.images != (found.corners is not None):
                of = ("tiles", "images")
                raise InvalidOperand(f"the map is one of {of[not self.images]}, the instruction of {of[self.images]}")
            if found.dtype.endswith("_ftz"):
                raise InvalidOperand(f"tensor maps of {found.dtype} are not emulated")
        except InvalidOperand as error:
            machine.report(
                "tensor_map", f"at address {address:#x}: {error}", self.instruction, np.array([lane]), address
            )
            return None
        if _among_parameters(machine, address) is not None:
            self._given[address] = found
        return found


def _located(what: TensorMap, at: tuple[int, ...], tap: tuple[int, ...], units: bool) -> Box:
    if what.corners is None:
        return locate(what, at, units=units)
    return locate_pixels(what, at, tap, units=units)


def map_bytes(machine: Machine, address: int) -> bytes:
    """The 128 bytes of a tensor map at a generic address. Raises InvalidOperand where none can be."""
    if address % 64:
        raise InvalidOperand("a tensor map lies at a multiple of 64 bytes")
    start = _among_parameters(machine, address)
    if start is not None:
        return machine.param_data[start : start + BYTES].tobytes()
    try:
        return machine.memory.read(address, BYTES).tobytes()
    except IndexError as error:
        raise InvalidOperand(f"{BYTES} bytes of a tensor map are not there ({error})") from error


def _among_parameters(machine: Machine, address: int) -> int | None:
    """Where a map begins in the kernel's parameters; None for one that is elsewhere."""
    start = address - WINDOWS["param"]
    return start if 0 <= start <= len(machine.param_data) - BYTES else None


def units_of(what: TensorMap, address: int) -> Units:
    """The 16-byte units of a block's shared memory that the box takes, in the order of its elements."""
    wide = what.box[0] * what.itemsize // UNIT
    return _units(wide, what.box_bytes // UNIT // wide, what.row_bytes // UNIT, what.swizzle, address // UNIT)


@lru_cache(maxsize=256)
def _units(wide: int, count: int, pitch: int, swizzle: int, first: int) -> Units:
    """Rows of `wide` units, each `pitch` after the one before."""
    rows = np.arange(count) * pitch
    return Units(swizzled(first + (rows[:, None] + np.arange(wide)).reshape(-1), swizzle))


Read = tuple[np.ndarray, tuple[np.ndarray, int] | None]
"""The bytes of a box, uint8 [units, 16], filled where it leaves the tensor, and the rows that they are from
(global_rows.py); None where all of it is outside."""


def gathered(
    machine: Machine, instruction: Instruction, lane: int, what: TensorMap, at: tuple[int, ...], tap: tuple[int, ...]
) -> Read | None:
    """What a copy of a box reads; None after a complaint."""
    assert what.address is not None
    box = _located(what, at, tap, units=True)
    size = box.size
    if check_global(machine, instruction, lane, what.address, 1, False) is None:  # a load touches the base anyway
        return None
    within = box.addresses if box.rows else box.addresses[box.inside]
    ends = within[:: len(within) - 1] if box.rows and len(within) > 1 else within  # of whole boxes the first is lowest
    if not _mapped(machine, instruction, lane, ends, size, False):
        return None
    rows = box.rows or (in_rows(within, size) if len(within) else None)
    if size == UNIT:
        units = machine.memory.views[UNIT].take((box.addresses - ARENA_BASE) >> 4)  # / UNIT
        return units.view(np.uint8).reshape(-1, UNIT), rows
    words = machine.memory.views[size].view(f"u{size}")
    fill = NAN[size] if what.oob_fill == "nan" else 0
    out = np.full(len(box.addresses), fill, f"u{size}")
    out[box.inside] = words[(box.addresses[box.inside] - ARENA_BASE) // size]
    return out.view(np.uint8).reshape(-1, UNIT), rows


def _mapped(
    machine: Machine, instruction: Instruction, lane: int, addresses: np.ndarray, size: int, write: bool
) -> bool:
    """Return whether all elements that a box has of its tensor are where the kernel may be; a complaint if not."""
    if not len(addresses):
        return True
    low, high = int(addresses.min()), int(addresses.max()) + size
    first = low // UNIT * UNIT  # maps begin and step by whole units
    return check_global(machine, instruction, lane, first, high - first, write) is not None


@executes(
    f"cp.async.bulk.tensor.{_DIM}.{{to:shared::cluster|shared::cta}}.global{_MODE}{_DONE}{{many:.multicast::cluster|}}{_HINT}",
    kind="async_copy",
    destination="none",
)
def tensor_load(machine: Machine, instruction: Instruction) -> Step:
    """`[to], [map, {coordinates}], [mbarrier]{, {offsets}}{, blocks}{, cache policy}`."""
    to, source, told, *rest = instruction.operands
    fields = instruction.fields
    images = fields["mode"] == ".im2col"
    wanted = images + bool(fields["many"]) + bool(fields["hint"])
    machine.expect(instruction, len(rest) == wanted, "has another number of operands")
    where = Bytes(machine, instruction, to, peers=fields["to"] == "shared::cluster")
    boxes = Boxes(machine, instruction, source, rest.pop(0) if images else None)
    arrivals = Arrivals(machine, instruction, told, rest[0] if fields["many"] else None)
    site = machine.trace.site(instruction.index, "bulk_load")

    def step() -> None:
        known: dict[Place, Read] = {}  # blocks of one row or column of the grid copy the same boxes
        for lane in active_lanes(machine).tolist():
            box = boxes.of(lane)
            if box is None:
                continue
            what, at, tap = box
            found = where.at(lane, what.shared_bytes, SHARED_ALIGNMENT)
            read = None if found is None else known.get(box) or gathered(machine, instruction, lane, what, at, tap)
            if found is None or read is None:
                continue
            known[box] = read
            data, lies = read
            rows = None if lies is None or not machine.races else Rows(lane, *lies)
            if rows and machine.races:
                machine.races.note_rows(instruction, rows)
            site.requests += 1
            site.bytes += what.box_bytes
            units = units_of(what, found[1])
            for block, barrier in arrivals.of(lane, found[0]):
                machine.bulk.load(instruction, lane, block, units, data, barrier, what.box_bytes, rows=rows)
                rows = None

    return step


@executes(
    f"cp.async.bulk.tensor.{_DIM}.global.shared::cta{_STORE_MODE}.bulk_group{_HINT}",
    f"cp.reduce.async.bulk.tensor.{_DIM}.global.shared::cta.{{op:add|min|max|inc|dec|and|or|xor}}{_STORE_MODE}.bulk_group{_HINT}",
    kind="async_copy",
    destination="none",
)
def tensor_store(machine: Machine, instruction: Instruction) -> Step:
    """`[map, {coordinates}], [from]{, cache policy}`: what lies within the tensor is written, or merged."""
    to, source, *rest = instruction.operands
    machine.expect(instruction, len(rest) == bool(instruction.fields["hint"]), "has another number of operands")
    where, boxes = Bytes(machine, instruction, source, peers=False), Boxes(machine, instruction, to, stores=True)
    op = instruction.fields.get("op")
    site = machine.trace.site(instruction.index, "bulk_store")

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            box = boxes.of(lane)
            if box is None:
                continue
            what, at, tap = box
            found = where.at(lane, what.shared_bytes, SHARED_ALIGNMENT)
            lies = _located(what, at, tap, units=op is None)
            size = lies.size
            inside = lies.inside.reshape(-1, UNIT // size)
            used = inside.any(axis=1)  # what is clipped is not read either: kernels pad their rows with it
            addresses = lies.addresses.reshape(inside.shape)[used][inside[used]]
            if found is None or not _mapped(machine, instruction, lane, addresses, size, True):
                continue
            site.requests += 1
            site.bytes += size * len(addresses)
            if not len(addresses):
                continue
            merge = merging({"op": op, "type": what.dtype}) if op else None
            put = _scatter(machine, (addresses - ARENA_BASE) // size, inside[used], size, merge)
            rows = Rows.of(lane, addresses, size)
            units = Units(units_of(what, found[1]).numbers[used])
            machine.bulk.store(instruction, lane, units, rows, put)

    return step


def _scatter(machine: Machine, index: np.ndarray, inside: np.ndarray, size: int, merge: Merge | None) -> Put:
    """Put the elements of rows of 16 bytes that are `inside` at elements `index` of global memory."""

    def put(data: np.ndarray) -> None:
        memory = machine.memory.views[size]
        words = np.ascontiguousarray(data).view(memory.dtype)[inside]
        if merge is not None:
            old = memory[index].view(np.uint8).reshape(-1, size)
            words = merge(old, words.view(np.uint8).reshape(-1, size)).reshape(-1).view(memory.dtype)
        memory[index] = words

    return put


@executes(f"cp.async.bulk.prefetch.tensor.{_DIM}.L2.global{_MODE}{_HINT}", kind="control", destination="none")
def tensor_prefetch(machine: Machine, instruction: Instruction) -> Step:
    """A hint, with a map that is checked."""
    source, *rest = instruction.operands
    boxes = Boxes(machine, instruction, source, rest[0] if instruction.fields["mode"] == ".im2col" else None)

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            boxes.of(lane)

    return step


@executes("prefetch{.param|.const|}.tensormap", kind="control", destination="none")
def map_prefetch(machine: Machine, instruction: Instruction) -> Step:
    """A hint."""
    return lambda: None


@executes(
    "tensormap.replace.tile.{field:global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|"
    "interleave_layout|swizzle_mode|fill_mode}{space:.global|.shared::cta|}.b1024.{type:b32|b64}",
    kind="memory_generic",
    destination="none",
)
def replace(machine: Machine, instruction: Instruction) -> Step:
    """`[map]{, number}, value`: one field of a map in global or shared memory."""
    place, *rest = instruction.operands
    fields = instruction.fields
    number = rest.pop(0) if len(rest) == 2 else Immediate(0)
    machine.expect(instruction, len(rest) == 1 and isinstance(number, Immediate | Register), "needs a value")
    base, offset = machine.pointer(instruction, place)
    value, index = (
        machine.source(instruction, rest[0], f"u{fields['type'][1:]}"),
        machine.source(instruction, number, "u32"),
    )
    shared = fields["space"] == ".shared::cta"

    def one(values: np.ndarray, lane: int) -> int:
        return int(values[0 if len(values) == 1 else lane])

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            address = one(base, lane) + offset
            low = WINDOWS["shared"]
            if shared or low <= address < low + WINDOW_BYTES:
                cta = int(machine.cta_of_lane[lane])
                start = cta * machine.shared.stride + (address if shared else address - low) % (1 << 24)
                memory = machine.shared.data
            else:
                found = check_global(machine, instruction, lane, address, BYTES, True)
                if found is None:
                    continue
                machine.maps.changed.add(address)
                start, memory = found, machine.memory.views[1]
            part = memory[start : start + BYTES]
            try:
                part[:] = np.frombuffer(
                    with_field(part.tobytes(), fields["field"], one(index, lane), one(value, lane)), np.uint8
                )
            except InvalidOperand as error:
                machine.report("tensor_map", str(error), instruction, np.array([lane]), address)

    return step


@executes(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release{.cta|.cluster|.gpu|.sys}.sync.aligned",
    kind="memory_global", destination="none",
)  # fmt: skip
def publish(machine: Machine, instruction: Instruction) -> Step:
    """`[to], [from], 128`: a map is copied from shared to global memory, by the warp."""
    to, source, _ = instruction.operands
    to_base, to_offset = machine.pointer(instruction, to)
    from_base, from_offset = machine.pointer(instruction, source)

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            if lane % 32:
                continue
            address = int(to_base[0 if len(to_base) == 1 else lane]) + to_offset
            start = check_global(machine, instruction, lane, address, BYTES, True)
            begin = int(from_base[0 if len(from_base) == 1 else lane]) + from_offset
            begin += int(machine.cta_of_lane[lane]) * machine.shared.stride
            if start is not None:
                machine.memory.views[1][start : start + BYTES] = machine.shared.data[begin : begin + BYTES]
                machine.maps.publish(address)

    return step


@executes(
    "fence.proxy.tensormap::generic.release{.cta|.cluster|.gpu|.sys}", kind="control", destination="none"
)  # fmt: skip
def release(machine: Machine, instruction: Instruction) -> Step:
    """Copies may see how maps were changed before."""

    def step() -> None:
        machine.maps.released = True

    return step


@executes(
    "fence.proxy.tensormap::generic.acquire{.cta|.cluster|.gpu|.sys}", kind="control", destination="none"
)  # fmt: skip
def acquire(machine: Machine, instruction: Instruction) -> Step:
    """`[map], 128`: copies see how the map was changed before."""
    base, offset = machine.pointer(instruction, instruction.operands[0])

    def step() -> None:
        for lane in active_lanes(machine).tolist():
            machine.maps.acquire(instruction, lane, int(base[0 if len(base) == 1 else lane]) + offset)

    return step
