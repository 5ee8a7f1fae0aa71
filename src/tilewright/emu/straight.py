"""Instructions that the compiled loops take (compiled.py, native/lanes.c): runs of them are one step.

Everything else, and these where their operands are of an unusual kind, runs by its handler in isa/.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PtxError
from .compiled import address
from .ptx import TYPE_BYTES, Immediate, Instruction, Memory, Operand, Register, Special, Symbol, Vector

if TYPE_CHECKING:
    from .compiled import Library
    from .machine import Machine

Form = tuple[str, tuple[str, ...]]
"""The operation's name, and the types of the destination and of the sources."""
PREDICATES = ("and", "or", "xor")


def _forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for bits in (16, 32, 64):
        whole = (f"u{bits}", f"s{bits}")
        for kind in whole:
            for op in ("add", "sub"):
                forms[f"{op}.{kind}"] = (f"{op}{bits}", (kind,) * 3)
            forms[f"mul.lo.{kind}"] = (f"mul{bits}", (kind,) * 3)
            forms[f"mad.lo.{kind}"] = (f"mad{bits}", (kind,) * 4)
            if bits > 16:
                for op in ("min", "max"):
                    forms[f"{op}.{kind}"] = (f"{op}_{kind}", (kind,) * 3)
            forms[f"shr.{kind}"] = (f"shr_{kind}", (kind, kind, "u32"))
        kind = f"b{bits}"
        for op in PREDICATES:
            forms[f"{op}.{kind}"] = (f"{op}{bits}", (kind,) * 3)
        forms[f"not.{kind}"] = (f"not{bits}", (kind,) * 2)
        forms[f"shl.{kind}"] = (f"shl{bits}", (kind, kind, "u32"))
        forms[f"shr.{kind}"] = (f"shr_u{bits}", (kind, kind, "u32"))
        kinds = (*whole, kind, *([f"f{bits}"] if bits > 16 else ()))
        for kind in kinds:
            forms[f"mov.{kind}"] = (f"mov{bits}", (kind,) * 2)
            forms[f"selp.{kind}"] = (f"sel{bits}", (kind, kind, kind, "pred"))
        for kind in (*whole, f"b{bits}"):
            for op in ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"):
                same = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(op, op)
                forms[f"setp.{op}.{kind}"] = (f"{same}_{kind.replace('b', 'u')}", ("pred", kind, kind))
        if bits > 16:
            forms[f"neg.s{bits}"] = (f"neg{bits}", (f"s{bits}",) * 2)
    for kind, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
        forms[f"mul.wide.{kind}"] = (f"wide_{kind}", (wide, kind, kind))
        if "32" in kind:
            forms[f"mad.wide.{kind}"] = (f"mad_wide_{kind}", (wide, kind, kind, wide))
            for op in ("div", "rem"):
                forms[f"{op}.{kind}"] = (f"{op}_{kind}", (kind,) * 3)
            forms[f"mul.hi.{kind}"] = (f"high_{kind}", (kind,) * 3)
    for op in PREDICATES:
        forms[f"{op}.pred"] = (f"{op}8", ("pred",) * 3)
    forms["not.pred"] = ("not8", ("pred",) * 2)
    forms["mov.pred"] = ("mov8", ("pred",) * 2)
    forms["abs.s32"] = ("abs32", ("s32",) * 2)
    forms["popc.b32"], forms["clz.b32"] = ("popc32", ("u32", "b32")), ("clz32", ("u32", "b32"))
    forms["prmt.b32"] = ("prmt", ("b32",) * 4)
    for side in "lr":
        for mode in ("wrap", "clamp"):
            forms[f"shf.{side}.{mode}.b32"] = (f"shf_{side}_{mode}", ("b32", "b32", "b32", "u32"))
    for op in ("add", "sub", "mul"):
        forms[f"{op}.f32"] = forms[f"{op}.rn.f32"] = (f"{op}_f32", ("f32",) * 3)
    forms["fma.rn.f32"] = ("fma_f32", ("f32",) * 4)
    forms["div.rn.f32"] = ("div_f32", ("f32",) * 3)
    forms["sqrt.rn.f32"], forms["rcp.rn.f32"] = ("sqrt_f32", ("f32",) * 2), ("rcp_f32", ("f32",) * 2)
    forms["neg.f32"], forms["abs.f32"] = ("neg_f32", ("f32",) * 2), ("abs_f32", ("f32",) * 2)
    forms["min.f32"], forms["max.f32"] = ("min_f32", ("f32",) * 3), ("max_f32", ("f32",) * 3)
    for op in ("eq", "ne", "lt", "le", "gt", "ge", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        forms[f"setp.{op}.f32"] = (f"{op}_f32", ("pred", "f32", "f32"))
    forms |= _conversions()
    return forms


def _conversions() -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for to in (16, 32, 64):
        for source in (16, 32, 64):
            for signed in "us":
                if to == source:
                    name = f"mov{to}"
                elif to < source:
                    name = {(32, 64): "low32", (16, 32): "low16", (16, 64): "low16_of_64"}[to, source]
                else:
                    name = f"u{to}_of_{signed}{source}"
                for sign in "us":
                    forms[f"cvt.{sign}{to}.{signed}{source}"] = (name, (f"{sign}{to}", f"{signed}{source}"))
    forms["cvt.rn.bf16.f32"] = ("bf16_of_f32", ("b16", "f32"))
    forms["cvt.rn.bf16x2.f32"] = ("pack_bf16", ("b32", "f32", "f32"))
    for kind in ("u32", "s32"):
        forms[f"cvt.rn.f32.{kind}"] = (f"f32_of_{kind}", ("f32", kind))
        forms[f"cvt.rzi.{kind}.f32"] = (f"{kind}_of_f32", (kind, "f32"))
    return forms


FORMS = _forms()
_PARTS = {("b64", 2): ("pack64", ("low32", "upper32"), "u32"), ("b32", 2): ("pack32", ("low16", "upper16"), "u16")}


OPERATION = 12
"""Numbers that the compiled loops are told of an operation."""
AT = 48
"""A place is told as the number of its base above so many bits, and how far from it."""
ABSOLUTE, GUARDED = ("absolute",), ("guarded",)
Item = tuple[str, int, int]
"""A part of a bound block: ("run", first operation, how many), or ("watch" or "bind", instruction, 0)."""


@dataclass(frozen=True)
class Runs:
    """What machines with equally many lanes share of a program: its blocks that have been bound, as bases and distances
    from them. Of a launch it holds nothing."""

    rows: dict[Register, int]
    """The place of each register's row."""
    bases: tuple[tuple[Any, ...], ...] = (ABSOLUTE, GUARDED)
    operations: np.ndarray = field(default_factory=lambda: np.zeros((0, OPERATION), np.int64))
    items: dict[int, list[Item]] = field(default_factory=dict)
    """Block -> its parts."""
    constants: dict[tuple[str, Hashable], int] = field(default_factory=dict)
    """Where so many equal values lie."""
    kept: tuple[np.ndarray, ...] = ()
    """What has to stay where it is."""


class Straight:
    """Collects instructions of a block that follow one another, for one machine."""

    def __init__(self, machine: Machine, library: Library) -> None:
        self.machine, self.library = machine, library
        self._kept: list[np.ndarray] = []
        """What has to stay where it is, of this machine."""
        self._key = library, machine.lanes
        shared = machine.program.runs.get(self._key)
        if shared is None or not self._settle(shared):
            shared = self._first()
            self._settle(shared)
        self._shared = shared
        self._constants, self._lasting = dict(shared.constants), list(shared.kept)
        self._zeros = self._constant("u64", "zeros", np.zeros(1, np.uint64))
        self._known = self._keep(self._placed(shared.operations))
        self._new: list[np.ndarray] = []
        """Operations that the program did not have bound yet."""
        self._count = len(shared.operations)
        self._items: dict[int, list[Item]] = {}
        self._rows: list[list[int]] = []

    def _first(self) -> Runs:
        """What is known before any block has been bound."""
        widths = {width: number for number, width in enumerate(self.machine.banks, 2)}
        pitch = {width: bank.strides[0] for width, bank in self.machine.banks.items()}
        rows = {
            register: widths[register.width] << AT | row * pitch[register.width]
            for register, row in self.machine.program.rows.items()
        }
        return Runs(rows, (ABSOLUTE, GUARDED, *(("bank", width) for width in widths)))

    def _settle(self, shared: Runs) -> bool:
        """Find where the bases of a program's runs lie in this machine; whether it has all of them."""
        self._bases: dict[tuple[Any, ...], int] = {}
        self._starts: list[int] = []
        try:
            for what in shared.bases:
                self._base(what)
        except KeyError:
            return False
        return True

    def _base(self, what: tuple[Any, ...]) -> int:
        """The place where something begins. Raises KeyError for special registers that are not one row of lanes."""
        if what not in self._bases:
            self._starts.append(self._start(*what))
            self._bases[what] = len(self._bases)
        return self._bases[what] << AT

    def _start(self, kind: str, *which: Any) -> int:
        machine = self.machine
        if kind == "absolute":
            return 0
        if kind == "guarded":
            return address(machine.trace.guarded)
        if kind == "bank":
            return address(machine.banks[which[0]])
        if kind == "special":
            values = machine.specials[which[0]]
            if len(values) != machine.lanes or values.strides != (values.itemsize,):
                raise KeyError(which[0])
            return address(values)
        start, size = which  # a parameter
        value = machine.param_data[start : start + size].copy().view(f"u{size}")
        return self._keep(np.full(self.library.piece, value[0], value.dtype))

    def _placed(self, operations: np.ndarray) -> np.ndarray:
        """Operations as the compiled loops take them, with addresses."""
        return (operations & ((1 << AT) - 1)) + np.array(self._starts, np.int64)[operations >> AT]

    def items(self, index: int) -> list[Item] | None:
        """The parts of a block that another machine has bound."""
        return self._shared.items.get(index)

    def learn(self, index: int, items: list[Item]) -> None:
        """A block has been bound."""
        self._items[index] = items

    def share(self) -> None:
        """Let later machines have what was bound here."""
        if self._items:
            shared = self._shared
            self.machine.program.runs[self._key] = Runs(
                shared.rows, tuple(self._bases), np.concatenate([shared.operations, *self._new]),
                {**shared.items, **self._items}, self._constants, tuple(self._lasting),
            )  # fmt: skip

    def run(self, first: int, count: int) -> tuple[int, int]:
        """A run that another machine has bound: its address, and how many operations."""
        return self._known + first * OPERATION * 8, count

    def take(self, instruction: Instruction) -> bool:
        """Return whether it was added to the run that is being collected."""
        rows = self._operations(instruction)
        if rows is None:
            return False
        if instruction.guard is not None:
            guard = self._shared.rows[instruction.guard]
            count = self._base(GUARDED) + 8 * instruction.index
            for number, row in enumerate(rows):
                if number:  # nobody reads how often the second half of an instruction ran
                    count = self._constant("s64", "nobody's", np.zeros(1, np.int64))
                row[8:11] = [guard, int(instruction.guard_negated), count]
        self._rows += rows
        return True

    def finish(self) -> tuple[tuple[int, int], Item] | None:
        """Return what was collected: its address, and how many operations; and what it is to later machines. None for
        nothing."""
        if not self._rows:
            return None
        table, self._rows = np.array(self._rows, np.int64), []
        self._new.append(table)
        first, count = self._count, len(table)
        self._count += count
        return (self._keep(self._placed(table)), count), ("run", first, count)

    def _keep(self, array: np.ndarray) -> int:
        """Return the address of an array, which stays there."""
        self._kept.append(array)
        return address(array)

    def _operations(self, instruction: Instruction) -> list[list[int]] | None:
        operands, opcode = instruction.operands, instruction.opcode
        table = 0
        form: Form
        try:
            if opcode.startswith("ld.param."):
                return self._parameter(instruction)
            if opcode == "lop3.b32":
                *operands_, truth = operands
                if not isinstance(truth, Immediate):
                    return None
                operands, table, form = tuple(operands_), truth.bits & 0xFF, ("lop3", ("b32",) * 4)
            elif opcode in FORMS:
                form = FORMS[opcode]
            else:
                return None
            if Vector in map(type, operands):
                return self._vector(instruction)
            name, kinds = form
            if len(operands) != len(kinds):
                return None
            return self._row(instruction, name, kinds, operands, table)
        except (PtxError, KeyError, ValueError, AttributeError, IndexError, TypeError):
            return None  # the handler says what is wrong with it

    def _parameter(self, instruction: Instruction) -> list[list[int]] | None:
        """A parameter of the kernel by its name: a constant."""
        machine, (to, where) = self.machine, instruction.operands
        kind = instruction.fields["type"]
        if not isinstance(to, Register) or not isinstance(where, Memory) or not isinstance(where.base, Symbol):
            return None
        symbol = where.base
        if instruction.fields["vec"] or kind == "b128" or symbol.name in machine.program.arguments:
            return None
        size = TYPE_BYTES[kind]
        start = machine.params[symbol.name] + symbol.offset + where.offset
        if start < 0 or start + size > len(machine.param_data) or to.width != size:
            return None
        place, zero = self._base(("parameter", start, size)), self._zeros
        name = self.library.codes[f"mov{8 * size}"]
        return [[name, self._shared.rows[to], place, zero, zero, 1, 1, 1, 0, 0, 0, 0]]

    def _constant(self, kind: str, name: Hashable, value: np.ndarray) -> int:
        """Return where so many equal values lie, of a type and by a name."""
        key = kind, name
        if key not in self._constants:
            self._lasting.append(np.full(self.library.piece, value[0], value.dtype))
            self._constants[key] = address(self._lasting[-1])
        return self._constants[key]

    def _vector(self, instruction: Instruction) -> list[list[int]] | None:
        """`mov d, {a, b}` and `mov {a, b}, d`."""
        to, what = instruction.operands
        kind = "b" + instruction.opcode.split(".")[1][1:]
        if not instruction.opcode.startswith("mov."):
            return None
        if isinstance(what, Vector):
            name, _, part = _PARTS[kind, len(what.items)]
            return self._row(instruction, name, (kind, part, part), (to, *what.items), 0)
        if not isinstance(to, Vector) or not isinstance(what, Register):
            return None
        _, names, part = _PARTS[kind, len(to.items)]
        rows = []
        for name, item in zip(names, to.items, strict=True):
            if item is None:
                continue
            row = self._row(instruction, name, (part, kind), (item, what), 0)
            if row is None:
                return None
            rows += row
        return rows

    def _row(
        self, instruction: Instruction, name: str, kinds: Sequence[str], operands: Sequence[Operand], table: int
    ) -> list[list[int]] | None:
        to = operands[0]
        if not isinstance(to, Register) or TYPE_BYTES[to.kind] != TYPE_BYTES[kinds[0]]:
            return None
        zero = self._zeros  # a missing source is read, and not used: of any size
        row = [self.library.codes[name], self._shared.rows[to], zero, zero, zero, 1, 1, 1, 0, 0, 0, table]
        for place, operand, kind in zip(range(2, 1 + len(kinds)), operands[1:], kinds[1:], strict=True):
            if isinstance(operand, Register):
                if TYPE_BYTES[operand.kind] != TYPE_BYTES[kind]:
                    return None
                row[place], row[place + 3] = self._shared.rows[operand], 0
            elif source := self._source(instruction, operand, kind):
                row[place], row[place + 3] = source
            else:
                return None
        return [row]

    def _source(self, instruction: Instruction, operand: Operand, kind: str) -> tuple[int, int] | None:
        """(address, whether it is a constant), or None for what is neither a row of lanes nor a constant. It is no
        register."""
        machine = self.machine
        if kind == "pred" or not isinstance(operand, Immediate | Special | Symbol):
            return None
        if (kind, operand) in self._constants:
            return self._constants[kind, operand], 1
        values: np.ndarray[Any, Any] = machine.source(instruction, operand, kind)
        if isinstance(operand, Immediate):
            return self._constant(kind, operand, values), 1
        if len(values) != machine.lanes or values.strides != (values.itemsize,) or not isinstance(operand, Special):
            return None
        return self._base(("special", operand.name)), 0
