"""Reads of textures, and reads and writes of surfaces, by the object that a kernel is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..global_port import GlobalPattern
from ..machine import Machine
from ..memory import ARENA_BASE
from ..ptx import Instruction, Memory, Operand, Vector
from ..textures import BoundSurface, Texture
from .memory import Spread, vector_of
from .registry import Step, executes

_TYPES = {"f32": "f", "s32": "i", "u32": "u"}


def _object(machine: Machine, instruction: Instruction, operand: Operand) -> tuple[np.ndarray, list[Operand]]:
    """The handle and the coordinates of `[handle, {x, y}]`."""
    parts = operand.items if isinstance(operand, Vector) else ()
    machine.expect(instruction, len(parts) == 2 and isinstance(parts[1], Vector), "needs [object, {coordinates}]")
    assert isinstance(parts[1], Vector)
    handle = parts[0].base if isinstance(parts[0], Memory) else parts[0]
    return machine.source(instruction, handle, "u64"), list(parts[1].items)


def _groups(machine: Machine, handles: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each handle that active lanes hold, and those lanes."""
    lanes = machine.lane_list()
    lanes = np.arange(machine.lanes) if lanes is None else lanes
    held = np.broadcast_to(handles, (machine.lanes,))[lanes]
    for handle in np.unique(held).tolist():
        yield handle, lanes[held == handle]


@executes("tex{level:.level|}.{dims:1d|2d|3d}.v4.{type:f32|s32|u32}.{by:f32|s32}", kind="texture", destination="write")
def texture(machine: Machine, instruction: Instruction) -> Step:
    """`{r, g, b, a}, [object, {x, y, z}]`; integers name elements. There is one level of detail, whatever is named."""
    fields, dims = instruction.fields, int(instruction.fields["dims"][0])
    machine.expect(instruction, len(instruction.operands) == 2 + bool(fields["level"]), "has the wrong operands")
    to = instruction.operands[0]
    machine.expect(instruction, isinstance(to, Vector) and len(to.items) == 4, "needs four registers")
    assert isinstance(to, Vector)
    puts = [machine.write(item, fields["type"], instruction) for item in to.items]
    handles, items = _object(machine, instruction, instruction.operands[1])
    machine.expect(instruction, len(items) >= dims, f"needs {dims} coordinates")
    coordinates = [machine.source(instruction, item, fields["by"]) for item in items[:dims]]
    kind = {"f32": np.float32, "s32": np.int32, "u32": np.uint32}[fields["type"]]

    def step() -> None:
        for handle, lanes in _groups(machine, handles):
            bound = machine.images.get(handle)
            why = _unfit(bound, dims, fields["type"])
            if why:
                machine.report("illegal", f"{instruction.opcode} of {handle:#x}, {why}", instruction, lanes, None)
                continue
            assert isinstance(bound, Texture)
            got = bound.at([np.broadcast_to(c, (machine.lanes,))[lanes] for c in coordinates])
            for k, put in enumerate(puts):
                column = got[:, k] if k < bound.channels else np.zeros(len(lanes), kind)
                put(np.ascontiguousarray(column, kind), lanes)

    return step


def _unfit(bound: object, dims: int, kind: str) -> str:
    """Why a texture cannot be read so; "" where it can."""
    if not isinstance(bound, Texture):
        return "which is not a texture: pass a tilewright.emu.Texture"
    if len(bound.shape) != dims:
        return f"a texture of {len(bound.shape)} dimensions"
    have = "f" if bound.floating else bound.array.dtype.kind
    return "" if have == _TYPES[kind] else f"a texture of {bound.array.dtype.name} with read={bound.read!r}"


def _surface_address(
    machine: Machine, instruction: Instruction, items: list[Operand], nbytes: int
) -> Callable[[BoundSurface, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(surface, lanes) -> (addresses, which are inside); x counts bytes."""
    dims, mode = int(instruction.fields["dims"][0]), instruction.fields["mode"]
    machine.expect(instruction, len(items) >= dims, f"needs {dims} coordinates")
    sources = [machine.source(instruction, item, "s32") for item in items[:dims]]

    def find(bound: BoundSurface, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, *rest = (np.broadcast_to(source, (machine.lanes,))[lanes].astype(np.int64) for source in sources)
        if (x % nbytes).any():
            bad = lanes[x % nbytes != 0]
            what = f"x is {int(x[x % nbytes != 0][0])} bytes, {nbytes} are moved"
            machine.report("misaligned", what, instruction, bad, None)
            x -= x % nbytes
        inside = (x >= 0) & (x + nbytes <= bound.row_bytes)
        x = np.clip(x, 0, bound.row_bytes - nbytes)
        row = np.zeros(len(lanes), np.int64)
        for size, at in reversed(list(zip(bound.surface.shape[1:], rest, strict=True))):
            inside &= (at >= 0) & (at < size)
            row = row * size + np.clip(at, 0, size - 1)
        if not inside.all() and mode == "trap":
            bad = lanes[~inside]
            machine.report(
                "out_of_bounds", f"outside the surface of {bound.surface.shape} elements", instruction, bad, None
            )
        return bound.address + row * bound.row_bytes + x, inside | (mode == "clamp")

    return find


def _surfaces(
    machine: Machine, instruction: Instruction, handles: np.ndarray
) -> Iterator[tuple[BoundSurface, np.ndarray]]:
    dims = int(instruction.fields["dims"][0])
    for handle, lanes in _groups(machine, handles):
        bound = machine.images.get(handle)
        if isinstance(bound, BoundSurface) and len(bound.surface.shape) == dims:
            yield bound, lanes
        else:
            machine.report(
                "illegal", f"{instruction.opcode} of {handle:#x}, which is not a surface of {dims} dimensions: pass a "
                "tilewright.emu.Surface", instruction, lanes, None,
            )  # fmt: skip


def _judge(machine: Machine, instruction: Instruction, lanes: np.ndarray, places: np.ndarray, nbytes: int) -> None:
    """Note an access of a surface among the others of global memory."""
    if machine.races is not None and len(lanes):
        buffer = machine.memory.find(int(places[0]))
        assert buffer is not None
        pattern = GlobalPattern(machine, lanes, (places - places[0]).view(np.uint64), nbytes)
        machine.races.note(instruction.index, pattern, int(places[0]), buffer)


@executes("sust.b.{dims:1d|2d|3d}{vec:.v2|.v4|}.{type:b8|b16|b32|b64}.{mode:trap|clamp|zero}", kind="texture",
          destination="none")  # fmt: skip
def store_surface(machine: Machine, instruction: Instruction) -> Step:
    """`[object, {x, y, z}], {values}`: outside it .trap faults, .zero drops, .clamp takes the nearest element."""
    machine.expect(instruction, len(instruction.operands) == 2, "needs 2 operands")
    handles, items = _object(machine, instruction, instruction.operands[0])
    spread = Spread(machine, instruction, vector_of(instruction), 1)
    take, nbytes = spread.gather(instruction), spread.bytes
    find = _surface_address(machine, instruction, items, nbytes)

    def step() -> None:
        every = machine.lane_list()
        values = take(every)
        place = np.arange(machine.lanes) if every is None else np.full(machine.lanes, -1)
        if every is not None:
            place[every] = np.arange(len(every))
        for bound, lanes in _surfaces(machine, instruction, handles):
            addresses, inside = find(bound, lanes)
            some, places = lanes[inside], addresses[inside]
            _judge(machine, instruction, some, places, nbytes)
            stored = values[place[some]].view(machine.memory.views[nbytes].dtype)
            machine.port.store((places - ARENA_BASE) // nbytes, nbytes, stored)

    return step


@executes("suld.b.{dims:1d|2d|3d}{vec:.v2|.v4|}.{type:b8|b16|b32|b64}.{mode:trap|clamp|zero}", kind="texture")
def load_surface(machine: Machine, instruction: Instruction) -> Step:
    """`{values}, [object, {x, y, z}]`: outside it .trap faults, .zero gives 0, .clamp the nearest element."""
    machine.expect(instruction, len(instruction.operands) == 2, "needs 2 operands")
    handles, items = _object(machine, instruction, instruction.operands[1])
    spread = Spread(machine, instruction, vector_of(instruction), 0)
    put, nbytes = spread.scatter(instruction), spread.bytes
    find = _surface_address(machine, instruction, items, nbytes)

    def step() -> None:
        for bound, lanes in _surfaces(machine, instruction, handles):
            addresses, inside = find(bound, lanes)
            _judge(machine, instruction, lanes[inside], addresses[inside], nbytes)
            view = machine.memory.views[nbytes]
            got = view[(addresses - ARENA_BASE) // nbytes]
            got[~inside] = 0
            spread.elements[: len(lanes)] = got.view(spread.elements.dtype)
            put(len(lanes), lanes)

    return step
