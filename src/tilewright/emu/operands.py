"""The ground that handlers build steps on: operands of PTX as arrays of a batch, and writes to registers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import PtxError
from .isa.registry import NUMPY, Compute, Step
from .link import function_address
from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from .ptx import Immediate, Instruction, Memory, Negated, Operand, Register, Special, Symbol

if TYPE_CHECKING:
    from .calls import CallStack
    from .program import Code

_WIDER = ("ld", "ldu", "st", "suld", "sust", "cvt", "cvta")
_FLOATS = ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2")
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
"""State space -> where it lies in the generic address space. Global and constant memory lie there as they are."""


class MachineOperands:
    """The part of a Machine that knows where operands lie."""

    program: Code
    lanes: int
    mask: np.ndarray | None
    banks: dict[int, np.ndarray]
    """Width in bytes -> rows of registers."""
    specials: dict[str, np.ndarray]
    symbols: dict[str, int]
    params: dict[str, int]
    """Parameter -> where it lies in the parameter buffer."""
    calls: CallStack

    def __init__(self) -> None:
        self._scratch: dict[tuple[str, str, int], np.ndarray] = {}

    def row(self, register: Register) -> np.ndarray:
        """The row of a register, in its storage type."""
        return self.banks[register.width][self.program.rows[register]]

    def refusal(self, instruction: Instruction, what: str) -> PtxError:
        """A PtxError that names the instruction."""
        return PtxError(f"PTX line {instruction.ptx_line}: {instruction.text!r} {what}.")

    def expect(self, instruction: Instruction, holds: bool, what: str) -> None:
        """Raise PtxError unless `holds`."""
        if not holds:
            raise self.refusal(instruction, what)

    def _expect_width(self, instruction: Instruction, register: Register, have: int, need: int, does: str) -> None:
        """Raise PtxError unless a register has the width of the type; _WIDER instructions may use a wider one."""
        if have < need or (have > need and instruction.opcode.split(".")[0] not in _WIDER):
            raise self.refusal(instruction, f"{does} the .{register.kind} register {register.name}")

    def source(self, instruction: Instruction, operand: Operand, kind: str) -> np.ndarray:
        """A source as an array of the type's values: one per lane, or of length 1 when it is the same for all.

        It is a view: read it while the instruction runs, not when it is bound.
        """
        dtype = np.dtype(NUMPY[kind])
        if isinstance(operand, Register):
            row = self.row(operand)
            if kind == "pred" or operand.kind == "pred":
                self.expect(instruction, kind == operand.kind, f"reads %{operand.name} as .{kind}")
                return row
            self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"reads .{kind} from")
            return row.view(dtype)[:: row.itemsize // dtype.itemsize]
        if isinstance(operand, Immediate):
            self.expect(
                instruction, not (operand.float_bytes and kind[0] in "su"), f"has a constant that is not .{kind}"
            )
            return np.array([self._bits(operand, kind)], f"u{dtype.itemsize}").view(dtype)
        if isinstance(operand, Special):
            if operand.name not in self.specials:
                raise self.refusal(instruction, f"reads the special register {operand.name}, which is not known")
            values = self.specials[operand.name]
            return (
                values.view(dtype)[:: values.itemsize // dtype.itemsize]
                if dtype.itemsize <= values.itemsize
                else values
            )
        if isinstance(operand, Symbol):
            if self._moves(operand):
                return self.calls.address(operand.name, operand.offset).view(dtype)[:: 8 // dtype.itemsize]
            return np.array(
                [self.address(instruction, operand) % (1 << 8 * dtype.itemsize)], f"u{dtype.itemsize}"
            ).view(dtype)
        raise self.refusal(instruction, f"has an operand {operand!r} where a value is needed")

    @staticmethod
    def _bits(operand: Immediate, kind: str) -> int:
        nbytes = np.dtype(NUMPY[kind]).itemsize
        if kind == "f32" and operand.float_bytes == 8:
            value = struct.unpack("<d", struct.pack("<Q", operand.bits))[0]
            return int(np.float32(value).view(np.uint32))
        if kind == "f64" and operand.float_bytes == 4:
            return int(np.uint32(operand.bits).view(np.float32).astype(np.float64).view(np.uint64))
        return operand.bits & ((1 << 8 * nbytes) - 1)

    def address(self, instruction: Instruction, symbol: Symbol) -> int:
        """The address of a variable in its own state space (of a parameter: in the parameter window)."""
        for table, base in (
            (self.program.shared, 0),
            (self.program.local, 0),
            (self.symbols, 0),
            (self.params, PARAM_WINDOW),
        ):
            if symbol.name in table:
                return table[symbol.name] + base + symbol.offset
        code = function_address(self.program.module, symbol.name)
        if code is not None:
            return code
        raise self.refusal(instruction, f"names {symbol.name!r}, which is not declared")

    def pointer(self, instruction: Instruction, operand: Operand) -> tuple[np.ndarray, int]:
        """(base, offset) of a memory operand; base as from `source`, of 4 or 8 bytes."""
        if not isinstance(operand, Memory):
            raise self.refusal(instruction, "needs an address in brackets")
        if isinstance(operand.base, Register):
            kind = operand.base.kind
            self.expect(
                instruction, operand.base.width in (4, 8) and kind not in _FLOATS,
                f"has the address {operand.base.name}, a register of type .{kind}",
            )  # fmt: skip
            return self.source(instruction, operand.base, f"u{8 * operand.base.width}"), operand.offset
        if isinstance(operand.base, Immediate):
            return np.array([operand.base.bits % 2**64], np.uint64), operand.offset
        if self._moves(operand.base):
            return self.calls.address(operand.base.name, operand.base.offset), operand.offset
        return np.array([self.address(instruction, operand.base)], np.uint64), operand.offset

    def _moves(self, symbol: Symbol) -> bool:
        """Return whether it is a local variable of a function, whose address depends on the calls a lane is in."""
        return any(symbol.name in routine.local for routine in self.program.routines[:-1])

    def condition(self, instruction: Instruction, operand: Operand) -> Callable[[], np.ndarray]:
        """A predicate operand, perhaps negated or constant: call it for the bool values."""
        if isinstance(operand, Immediate):
            constant = np.array([operand.bits != 0])
            return lambda: constant
        known = self.specials.get(operand.name) if isinstance(operand, Special) else None
        if known is not None and known.dtype == np.bool_:
            return lambda: known
        register = operand.register if isinstance(operand, Negated) else operand
        if not isinstance(register, Register) or register.kind != "pred":
            raise self.refusal(instruction, f"needs a predicate, not {operand!r}")
        row = self.row(register)
        return (lambda: ~row) if isinstance(operand, Negated) else (lambda: row)

    def following(self, instruction: Instruction) -> int:
        """The block after an instruction that ends its block."""
        return self.program.block_at.get(instruction.index + 1, 0)

    def label(self, instruction: Instruction, operand: Operand) -> int:
        """The block at a label."""
        if isinstance(operand, Symbol) and operand.name in self.program.entry.labels:
            index = self.program.entry.labels[operand.name]
            if index in self.program.block_at:
                return self.program.block_at[index]
        raise self.refusal(instruction, f"branches to {operand!r}, which is nowhere")

    def keep(
        self, instruction: Instruction, operand: Operand, kind: str, compute: Compute, sources: list[np.ndarray]
    ) -> Step:
        """The step that computes a value of type `kind` and writes it to a register, for the active lanes."""
        if operand is None:
            return lambda: None
        if not isinstance(operand, Register):
            raise self.refusal(instruction, "has no register as its destination")
        row = self.row(operand)
        dtype = np.dtype(NUMPY[kind])
        temporary = self.scratch(kind, "keep")
        self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"writes .{kind} to")
        self.expect(instruction, (kind == "pred") == (operand.kind == "pred"), f"writes .{kind} to {operand.name}")
        if row.itemsize == dtype.itemsize:
            target = row.view(dtype)

            def step() -> None:
                if self.mask is None:
                    compute(target, *sources)
                else:
                    compute(temporary, *sources)
                    np.putmask(target, self.mask, temporary)  # a fifth of the time of copyto with `where`

            return step
        wide = row.view(np.dtype(f"{dtype.kind if dtype.kind in 'iu' else 'u'}{row.itemsize}"))

        def widened() -> None:
            compute(temporary, *sources)
            bits = temporary if dtype.kind in "iu" else temporary.view(f"u{dtype.itemsize}")
            if self.mask is None:
                np.copyto(wide, bits)
            else:
                np.putmask(wide, self.mask, bits)

        return widened

    def write(
        self, operand: Operand, kind: str, instruction: Instruction
    ) -> Callable[[np.ndarray, np.ndarray | None], None]:
        """A function (values, lanes) that writes values of type `kind` to a register; lanes None means all.

        A register wider than the type takes the value extended by the type's sign.
        """
        if operand is None:
            return lambda values, lanes: None
        if not isinstance(operand, Register):
            raise self.refusal(instruction, "has no register as its destination")
        row = self.row(operand)
        dtype = np.dtype(NUMPY[kind])
        self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"writes .{kind} to")
        self.expect(instruction, (kind == "pred") == (operand.kind == "pred"), f"writes .{kind} to {operand.name}")
        same = row.itemsize == dtype.itemsize
        target = row.view(dtype) if same else row.view(f"{dtype.kind if dtype.kind in 'iu' else 'u'}{row.itemsize}")
        narrow = dtype if same or dtype.kind in "iu" else np.dtype(f"u{dtype.itemsize}")

        def put(values: np.ndarray, lanes: np.ndarray | None) -> None:
            if lanes is None:
                np.copyto(target, values.view(narrow))
            else:
                target[lanes] = values.view(narrow)

        return put

    def scratch(self, kind: str, use: str = "", rows: int = 1) -> np.ndarray:
        """A temporary of `rows` elements per lane, valid within one step; `use` tells temporaries apart."""
        key = (kind, use, rows)
        if key not in self._scratch:
            self._scratch[key] = np.empty(self.lanes * rows, NUMPY[kind])
        return self._scratch[key]
