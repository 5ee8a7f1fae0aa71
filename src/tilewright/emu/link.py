"""A kernel and the functions it calls, laid out as one program.

Callees come before their callers and the kernel last: lanes at the lowest place run first, so those inside a function
come back before their warp goes on. Names of a function's labels, variables and parameters get its name in front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..errors import PtxError
from .ptx import Function, Instruction, Memory, Module, Operand, Register, Symbol, Variable, Vector

STACK_BYTES = 16384
"""Local memory a thread has for functions that call themselves, beside the kernel's own."""
SPARE_BYTES = 1024
"""Most that it has so that functions that follow one another need not lie at one place."""
CODE_WINDOW = 0x7C00_0000_0000
"""Where functions lie in the address space: one every 16 bytes."""


@dataclass
class Routine:
    """The kernel or one function: instructions [start, end) of the program, and its memory.

    `parameters` and `returns` are places (offset, bytes) in a lane's area of arguments, of which it owns `area`.
    """

    name: str
    start: int
    end: int
    parameters: list[tuple[int, int]] = field(default_factory=list)
    returns: list[tuple[int, int]] = field(default_factory=list)
    area: tuple[int, int] = (0, 0)
    local: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0
    """A multiple of 16."""
    deepest: int = 0
    """The same of the deepest chain of calls that begins here, each function taken once."""
    recursive: bool = False


@dataclass
class Linked:
    """`entry` holds all instructions and labels; `routines` are in their order, the kernel is the last."""

    entry: Function
    routines: list[Routine]
    arguments: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Parameter, result or argument of a call -> (offset, bytes) in a lane's area."""
    area_bytes: int = 0
    local_bytes: int = 0
    """Local memory a lane needs: of the kernel and the deepest chain of calls."""


def symbols(operands: Iterable[Operand]) -> Iterator[Symbol]:
    """Every variable, label or function that operands name."""
    for operand in operands:
        if isinstance(operand, Register):  # most are
            continue
        if isinstance(operand, Symbol):
            yield operand
        elif isinstance(operand, Memory) and isinstance(operand.base, Symbol):
            yield operand.base
        elif isinstance(operand, Vector):
            yield from symbols(operand.items)


def place(variables: list[Variable], gap: int = 0) -> tuple[dict[str, int], int]:
    """Variables one after another, so far apart: (offset of each, bytes in all)."""
    places: dict[str, int] = {}
    offset = 0
    for variable in variables:
        offset += gap if places else 0
        offset = -(-offset // variable.align) * variable.align
        places[variable.name] = offset
        offset += variable.size
    return places, offset


def function_address(module: Module, name: str) -> int | None:
    """The address of a function, or None if there is none of this name."""
    names = list(module.functions)
    return CODE_WINDOW + 16 * names.index(name) if name in module.functions else None


def _callees(module: Module, entry: Function) -> list[str]:
    named = {s.name for i in entry.instructions for s in symbols(i.operands)}
    if any(i.opcode.startswith("call") and not _direct(i) for i in entry.instructions):  # it may reach any table's
        named |= {name for v in module.variables for _, name, _ in v.relocations}
        named |= {s.name for f in module.functions.values() for i in f.instructions if i.opcode.startswith("mov")
                  for s in symbols(i.operands)}  # fmt: skip
    return [name for name in module.functions if name in named]


def _direct(call: Instruction) -> bool:
    return any(isinstance(operand, Symbol) for operand in call.operands[:2])


def link(module: Module, entry: Function) -> Linked:
    """Lay a kernel and everything it may call out as one program."""
    own = [v for v in entry.variables if v.space == "local"]
    if not any(i.opcode.startswith("call") for i in entry.instructions):
        local, size = place(own)
        kernel = Routine(entry.name, 0, len(entry.instructions), local=local, local_bytes=size)
        return Linked(entry, [kernel], local_bytes=size)
    order: list[Function] = []
    graph: dict[str, list[str]] = {}

    def visit(part: Function, key: str) -> None:
        graph[key] = _callees(module, part)
        for name in graph[key]:
            if name in module.refused:
                raise PtxError(module.refused[name])
            if name not in graph:
                visit(module.functions[name], name)
        order.append(part)

    visit(entry, "")
    merged = replace(entry, instructions=[], labels={}, tables={}, variables=[])
    linked = Linked(merged, [])
    for part in order:
        _append(linked, part, "" if part is entry else part.name)
    for routine in linked.routines[:-1]:
        routine.recursive = routine.name in _reached(graph, graph[routine.name])
    deepest = _deepest(graph, {"" if r is linked.routines[-1] else r.name: r for r in linked.routines})
    called = sum(routine.local_bytes for routine in linked.routines[:-1])
    linked.local_bytes = deepest + min(called, SPARE_BYTES) + stack_bytes(linked.routines)
    return linked


def stack_bytes(routines: Sequence[Routine]) -> int:
    """Local memory for what functions that call themselves need, besides that of the deepest chain without them."""
    return STACK_BYTES if any(routine.recursive and routine.local_bytes for routine in routines) else 0


def _append(linked: Linked, part: Function, name: str) -> None:
    merged, start = linked.entry, len(linked.entry.instructions)
    front = f"{name}|" if name else ""
    given = [*part.returns, *(part.parameters if name else ())]
    inner = [v for v in part.variables if v.space == "param"]
    known = {p.name for p in given} | {v.name for v in part.variables} | part.labels.keys() | part.tables.keys()

    def renamed(operand: Operand) -> Operand:
        if isinstance(operand, Symbol) and operand.name in known:
            return Symbol(front + operand.name, operand.offset)
        if isinstance(operand, Memory) and isinstance(operand.base, Symbol):
            return Memory(renamed(operand.base), operand.offset)  # type: ignore[arg-type]
        if isinstance(operand, Vector):
            return Vector(tuple(renamed(item) for item in operand.items))
        return operand

    instructions = list(part.instructions)
    if name and (not instructions or instructions[-1].opcode.split(".")[0] not in ("ret", "exit", "trap", "bra")):
        line = instructions[-1].ptx_line if instructions else 0
        instructions.append(Instruction("ret", (), None, False, None, line, "ret;"))
    for instruction in instructions:
        operands = tuple(renamed(operand) for operand in instruction.operands)
        merged.instructions.append(
            replace(instruction, operands=operands, index=len(merged.instructions), fields={})
        )  # fmt: skip
    merged.labels |= {front + label: start + index for label, index in part.labels.items()}
    merged.tables |= {front + table: [front + label for label in labels] for table, labels in part.tables.items()}
    merged.variables += [replace(v, name=front + v.name) for v in part.variables if v.space != "param"]
    routine = Routine(name or part.name, start, len(merged.instructions))
    routine.local, size = place([replace(v, name=front + v.name) for v in part.variables if v.space == "local"])
    routine.local_bytes = -(-size // 16) * 16
    low = linked.area_bytes
    for argument in (*given, *inner):
        linked.area_bytes = -(-linked.area_bytes // 16) * 16
        linked.arguments[front + argument.name] = (linked.area_bytes, argument.size)
        linked.area_bytes += argument.size
    routine.returns = [linked.arguments[front + p.name] for p in part.returns]
    routine.parameters = [linked.arguments[front + p.name] for p in part.parameters] if name else []
    linked.area_bytes = -(-linked.area_bytes // 16) * 16
    routine.area = (low, linked.area_bytes)
    linked.routines.append(routine)


def _reached(graph: dict[str, list[str]], names: list[str]) -> set[str]:
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += graph[name]
    return seen


def _deepest(graph: dict[str, list[str]], routines: dict[str, Routine]) -> int:
    """Local bytes of the deepest chain of calls from the kernel, each function taken once."""
    known: dict[str, int] = {}

    def depth(name: str, above: frozenset[str]) -> int:
        if name not in known:
            below = [depth(other, above | {name}) for other in graph[name] if other not in above | {name}]
            known[name] = routines[name].deepest = routines[name].local_bytes + max(below, default=0)
        return known[name]

    return depth("", frozenset())
