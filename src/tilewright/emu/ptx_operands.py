"""Operands of PTX: literals, registers of the scopes around, addresses, vectors."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from ..errors import PtxError
from .ptx import Immediate, Memory, Negated, Operand, Pair, Register, Special, Symbol, Vector

NAME = r"[A-Za-z_$%][\w$]*"
_LITERAL = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_REAL = re.compile(r"-?\d+\.\d*(?:[eE][+-]?\d+)?$|-?\d+[eE][+-]?\d+$")
_ADDRESS = re.compile(rf"({NAME}|-?\w+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?$")
_SPECIAL = re.compile(r"%[a-z]\w*(\.[xyzw])?$")
_DELIMITERS = re.compile(r"[,{}\[\]()]")


def split(text: str) -> list[str]:
    """The parts between commas that stand outside every bracket."""
    parts, depth, start = [], 0, 0
    for found in _DELIMITERS.finditer(text):
        if found[0] != ",":
            depth += 1 if found[0] in "{[(" else -1
        elif not depth:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


class OperandReader:
    """Reads operands of one text, by the names that the open scopes declare."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.newlines = [m.start() for m in re.finditer("\n", text)]
        self.scopes: list[dict[str, Register | Symbol]] = []
        self.families: list[dict[str, tuple[str, int]]] = []
        """Of each scope: prefix -> (type, count) of registers declared as `%r<9>`; they are made when first named."""
        self.known: list[dict[str, Operand]] = []
        """Of each scope: operands read inside it since its last declaration. Most of a kernel's occur many times."""

    def line(self, position: int) -> int:
        return bisect_right(self.newlines, position - 1) + 1

    def fail(self, position: int, what: str) -> PtxError:
        number = self.line(position)
        lines = self.text.splitlines()
        shown = lines[number - 1].strip() if number <= len(lines) else ""
        return PtxError(
            f"PTX line {number}: {what}: {shown!r:.200}. Check it against the PTX manual; if it is right, the emulator "
            "does not know it yet."
        )

    def addend(self, digits: str | None, position: int) -> int:
        """The N of `symbol+N`."""
        if digits and (len(digits) > 10 or int(digits) >> 32):
            raise self.fail(position, f"an offset of {digits:.60}, which takes more than 32 bits")
        return int(digits or 0)

    def constant(self, text: str, position: int) -> Immediate | None:
        """A literal, which has to fit 64 bits; None for what is none."""
        try:
            found = self.literal(text)
        except ValueError as error:
            raise self.fail(position, f"a constant {text!r:.60} that is not a number") from error
        if found is not None and not -(1 << 63) <= found.bits < 1 << 64:
            raise self.fail(position, f"a constant {text!r:.60}, which takes more than 64 bits")
        return found

    @staticmethod
    def literal(text: str) -> Immediate | None:
        if text[:2] in ("0f", "0F") and len(text) == 10:
            return Immediate(int(text[2:], 16), 4)
        if text[:2] in ("0d", "0D") and len(text) == 18:
            return Immediate(int(text[2:], 16), 8)
        if _LITERAL.match(text):
            digits = text.rstrip("U")
            sign, digits = (-1, digits[1:]) if digits.startswith("-") else (1, digits)
            base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
            return Immediate(sign * int(digits, base))
        if _REAL.match(text):
            return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 8)
        if text == "WARP_SZ":
            return Immediate(32)
        return None

    def open_scope(self) -> None:
        self.scopes.append({})
        self.families.append({})
        self.known.append({})

    def close_scope(self) -> None:
        self.scopes.pop()
        self.families.pop()
        self.known.pop()

    def lookup(self, name: str) -> Register | Symbol | None:
        for scope, families in zip(reversed(self.scopes), reversed(self.families), strict=True):
            if name in scope:
                return scope[name]
            at = len(name)
            while families and at > 1 and "0" <= name[at - 1] <= "9":
                at -= 1
                if name[:at] not in families:
                    continue
                kind, count = families[name[:at]]
                if int(name[at : at + 10]) < count and (name[at] != "0" or at == len(name) - 1):
                    scope[name] = register = Register(name, kind)
                    return register
        return None

    def operand(self, text: str, position: int) -> Operand:
        known = self.known[-1]
        if text not in known:
            known[text] = self.read(text.strip(), position)
        return known[text]

    def read(self, text: str, position: int) -> Operand:
        if register := self.lookup(text):
            return register
        if text == "_":
            return None
        if (immediate := self.constant(text, position)) is not None:
            return immediate
        head, tail = text[:1], text[-1:]
        if head + tail == "[]":
            inner = text[1:-1].strip()
            if "," in inner:  # a tensor coordinate: [map, {x, y}]
                return Vector(tuple(self.operand(part, position) for part in split(inner)))
            found = _ADDRESS.match(inner)
            if not found:
                raise self.fail(position, f"an address {text!r} that is not understood")
            base = self.operand(found[1], position)
            if not isinstance(base, Register | Symbol | Immediate):
                raise self.fail(position, f"an address {text!r} that is not understood")
            offset = self.constant((found[2] or found[3] or "0").replace(" ", ""), position)
            if offset is None or offset.float_bytes or not -(1 << 31) <= offset.bits < 1 << 32:
                raise self.fail(position, f"an address {text!r} that is not understood")
            return Memory(base, offset.bits)
        if head + tail in ("{}", "()"):
            items = split(text[1:-1]) if text[1:-1].strip() else []
            return Vector(tuple(self.operand(item, position) for item in items))
        if head == "!":
            register = self.lookup(text[1:].strip())
            if not isinstance(register, Register):
                raise self.fail(position, f"an operand {text!r} that names no register")
            return Negated(register)
        if "|" in text:
            first, second = (self.operand(part, position) for part in text.split("|", 1))
            if not isinstance(first, Register | None) or not isinstance(second, Register | None):
                raise self.fail(position, f"an operand {text!r} that is not understood")
            return Pair(first, second)
        if _SPECIAL.match(text):
            return Special(text)
        if found := re.match(rf"({NAME})\s*(?:\+\s*(\d+))?$", text):
            return Symbol(found[1], self.addend(found[2], position))
        raise self.fail(position, f"an operand {text!r} that is not understood")
