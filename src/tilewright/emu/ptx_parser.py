"""PTX text -> Module (ptx.py): variables, entries, instructions with their source lines. Nothing is executed here.

The grammar is that of the PTX ISA manual as far as NVRTC and inline assembly write it. What is not understood raises
PtxError with the line of the PTX; no statement is skipped in silence.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import PtxError
from ..jit.entry import file_name
from .ptx import (
    TYPE_BYTES,
    Function,
    Instruction,
    Location,
    Module,
    Operand,
    Parameter,
    Register,
    Symbol,
    Variable,
)
from .ptx_operands import NAME, OperandReader, split

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_LABEL = re.compile(rf"({NAME})\s*:(?!:)")
_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+[^,\n]+,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?[^\n;]*"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"[^\n]*')
_REG = re.compile(r"\.reg\s*(?:\.(v2|v4)\s*)?\.(\w+)\s+([^;]+);")
_REG_ITEM = re.compile(rf"({NAME})(?:\s*<\s*(\d{{1,9}})\s*>)?$")
_LINKAGE = r"(?:\.(?:visible|extern|weak|common)\s*)*"
_VARIABLE = re.compile(
    rf"({_LINKAGE})\.(global|const|shared|local|param)\b\s*"
    rf"((?:\.(?:attribute\s*\([^)]*\)|align\s+\d+|(?!align\b|attribute\b)[\w:]+(?=\s*\.))\s*)*)"
    rf"\.(\w+)\s+({NAME})((?:\s*\[[^\]]*\])*)\s*(?:=\s*([^;]*))?;",
    re.DOTALL,
)
_ENTRY = re.compile(rf"{_LINKAGE}\.entry\s+({NAME})\s*(\([^)]*\))?")
_BRACES = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|([{}])", re.DOTALL)
_FUNC = re.compile(rf"{_LINKAGE}\.func\b\s*(\([^)]*\))?\s*({NAME})\s*(\([^)]*\))?")
_PARAMETER = re.compile(
    r"\.param\s*(?:\.align\s+(\d+)\s*)?\.(\w+)\s+"
    r"(?:\.ptr\s*(?:\.(?:global|const|shared|local)\s*)?(?:\.align\s+\d+\s*)?)?"
    rf"({NAME})\s*(?:\[(\d{{1,9}})\])?$"
)
_TUNING = re.compile(r"\.(maxntid|reqntid|minnctapersm|maxnctapersm|maxnreg|noreturn|explicitcluster|reqnctapercluster|"
                     r"maxclusterrank|blocksareclusters|pragma)\b([^\n{;]*);?")  # fmt: skip
_SECTION = re.compile(r"\.section\s+[^\n{]*\s*\{[^}]*\}")
_PROTOTYPE = re.compile(r"\.(?:callprototype|calltargets)\b[^;]*;")
_TARGETS = re.compile(r"\.branchtargets\s+([^;]*);")
_STATEMENT = re.compile(rf"(?:@(!?)({NAME})\s+)?([A-Za-z][\w.:]*)\s*([^;]*);", re.DOTALL)
_OPAQUE = ("texref", "samplerref", "surfref")
MOST_BYTES = 1 << 30
"""What one variable may hold here."""


class _Parser(OperandReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.module = Module()
        self.files = {int(number): file_name(name) for number, name in _FILE.findall(text)}
        self.places: dict[tuple[str, ...], Location] = {}  # (file, line, column) -> its last .loc
        self.located: dict[tuple[str, str, int], Location] = {}  # (file, line, the call's identity) -> the only one
        self.chain: list[int] = []  # numbers of the open scopes
        self.opened = 0

    def skip(self, position: int) -> int:
        match = _SPACE.match(self.text, position)
        return match.end() if match else position

    def parse(self) -> Module:
        position, text = self.skip(0), self.text
        simple = re.compile(r"\.(version|target|address_size)\s+([\w.]+(?:\s*,\s*\w+)*)")
        while position < len(text):
            if match := simple.match(text, position):
                if match[1] != "address_size":
                    setattr(self.module, match[1], match[2].strip())
                elif match[2].strip() != "64":
                    raise self.fail(position, "only 64-bit PTX is supported")
                if match[1] == "version" and not re.fullmatch(r"\d{1,2}\.\d", match[2]):
                    raise self.fail(position, "a version that is not one of PTX, such as 8.3")
            elif match := _ENTRY.match(text, position):
                position = self.skip(self.entry(match))
                continue
            elif match := _FUNC.match(text, position):
                position = self.skip(self.function(match))
                continue
            elif match := _FILE.match(text, position) or _SECTION.match(text, position) or _LOC.match(text, position):
                pass
            elif match := _VARIABLE.match(text, position):
                self.module.variables.append(self.variable(match))
            elif match := re.compile(r"\.(alias|pragma)\b[^;]*;").match(text, position):
                pass
            else:
                raise self.fail(position, "not understood")
            position = self.skip(match.end())
        return self.module

    def function(self, match: re.Match[str]) -> int:
        """A .func: a body is kept for the calls to it, a declaration is passed over."""
        returned, name, given = match.groups()
        function = Function(name)
        function.returns = self.parameters(returned, match.start())
        function.parameters = self.parameters(given, match.start())
        position = self.directives(function, match.end())
        if self.text[position : position + 1] == ";":
            return position + 1
        self.module.functions[name] = function
        return self.body_or_reason(function, position)

    def entry(self, match: re.Match[str]) -> int:
        entry = Function(match[1])
        entry.parameters = self.parameters(match[2], match.start())
        position = self.directives(entry, match.end())
        if self.text[position : position + 1] == ";":  # a declaration
            return position + 1
        self.module.entries[entry.name] = entry
        return self.body_or_reason(entry, position)

    def body_or_reason(self, entry: Function, position: int) -> int:
        """Read a body. One that is not understood is passed over, and its kernel refused when it is asked for."""
        try:
            return self.body(entry, position)
        except PtxError as error:
            depth = 0
            for found in _BRACES.finditer(self.text, position):
                if found[1]:
                    depth += 1 if found[1] == "{" else -1
                    if not depth:
                        self.module.refused[entry.name] = str(error)
                        return found.end()
            raise

    def parameters(self, text: str | None, position: int) -> list[Parameter]:
        """`(.param .u64 a, ...)`, laid out one after another."""
        out: list[Parameter] = []
        offset = 0
        for item in filter(str.strip, _SPACE.sub(" ", (text or "()")[1:-1]).split(",")):
            match = _PARAMETER.match(item.strip())
            if not match or not TYPE_BYTES.get(match[2]):
                raise self.fail(position, f"a parameter {item.strip()!r} that is not understood")
            size = TYPE_BYTES[match[2]]
            align = self.alignment(match[1], size, position)
            kind = "" if match[4] else match[2]
            size *= int(match[4] or 1)
            offset = -(-offset // align) * align
            out.append(Parameter(match[3], size, align, offset, kind))
            offset += size
        return out

    def alignment(self, text: str | None, natural: int, position: int) -> int:
        align = int(text[:9]) if text else natural
        if align <= 0 or align & (align - 1):
            raise self.fail(position, f"an alignment of {text}, which is not a power of two")
        return align

    def directives(self, entry: Function, position: int) -> int:
        position = self.skip(position)
        while match := _TUNING.match(self.text, position):
            if match[1] in ("maxntid", "reqntid") and not re.fullmatch(r"\s*\d{1,9}(\s*,\s*\d{1,9}){0,2}\s*", match[2]):
                raise self.fail(position, f"a .{match[1]} that is not one to three sizes")
            entry.directives[match[1]] = match[2].strip()
            position = self.skip(match.end(1) if match[1] == "noreturn" else match.end())
        return position

    def body(self, entry: Function, position: int) -> int:
        text = self.text
        if text[position : position + 1] != "{":
            raise self.fail(position, f"expected the body of {entry.name}")
        self.scopes, self.families, self.known, self.chain = [], [], [], []
        branches: list[tuple[Instruction, tuple[int, ...]]] = []
        places: dict[tuple[int, str], str] = {}  # (scope, label) -> its name in the entry
        location: Location | None = None
        table = ""
        while True:
            position = self.skip(position)
            if position >= len(text):
                raise self.fail(position - 1, f"{entry.name} has no closing brace")
            head = text[position]
            if head == "{":
                self.opened += 1
                self.open_scope()
                self.chain.append(self.opened)
                position += 1
                continue
            if head == "}":
                self.close_scope()
                self.chain.pop()
                position += 1
                if not self.scopes:
                    self.resolve(entry, branches, places)
                    return position
                continue
            if head == ".":
                if match := _LOC.match(text, position):
                    location = self.location(match, location)
                elif match := _REG.match(text, position):
                    self.registers(match, position)
                elif match := _TARGETS.match(text, position):
                    entry.tables[table] = [label.strip() for label in match[1].split(",")]
                elif match := _VARIABLE.match(text, position):
                    variable = self.variable(match)
                    if len(self.scopes) > 1:
                        self.known[-1].clear()
                        self.scopes[-1][variable.name] = Symbol(f"{variable.name}@{self.chain[-1]}")
                        variable.name = f"{variable.name}@{self.chain[-1]}"
                    entry.variables.append(variable)
                elif not (
                    match := re.compile(r"\.pragma\s[^;]*;").match(text, position)
                    or _FILE.match(text, position)
                    or _PROTOTYPE.match(text, position)
                ):
                    raise self.fail(position, "a directive that is not understood")
            elif match := _LABEL.match(text, position):
                table = match[1]
                name = table if len(self.chain) == 1 else f"{table}@{self.chain[-1]}"
                if name in entry.labels:
                    raise self.fail(position, f"the label {table!r} for the second time")
                places[self.chain[-1], table] = name
                entry.labels[name] = len(entry.instructions)
            elif match := _STATEMENT.match(text, position):
                self.statement(entry, match, position, location)
                if match[3].startswith("br"):
                    branches.append((entry.instructions[-1], tuple(self.chain)))
            else:
                raise self.fail(position, "not understood")
            position = match.end()

    @staticmethod
    def resolve(
        entry: Function, branches: list[tuple[Instruction, tuple[int, ...]]], places: dict[tuple[int, str], str]
    ) -> None:
        """Labels that branches name are those of the innermost scope around the branch that has them."""

        def label(operand: Operand, chain: tuple[int, ...]) -> Operand:
            if not isinstance(operand, Symbol):
                return operand
            names = (places.get((scope, operand.name)) for scope in reversed(chain))
            return Symbol(next(filter(None, names), operand.name))

        for instruction, chain in branches:
            if instruction.opcode.startswith("bra"):
                instruction.operands = tuple(label(operand, chain) for operand in instruction.operands)

    def location(self, match: re.Match[str], before: Location | None) -> Location | None:
        if match[2] == "0":  # code with no line of its own
            return before and replace(before, near=True)
        # The call is named by its place; where that one was inlined, the last .loc of that place says.
        outer = self.places.get(match.group(4, 5, 6)) or self.bare(match[4], match[5]) if match[4] else None
        key = match[1], match[2], id(outer)
        if key not in self.located:
            file, line = self.files.get(int(match[1]), "?"), int(match[2])
            if outer and any((call.file, call.line) == (file, line) for call in (outer, *outer.calls)):
                outer = self.bare(match[4], match[5])  # recursion: one round of it is enough
            self.located[key] = Location(file, line, outer)
        here = self.places[match.group(1, 2, 3)] = self.located[key]
        return here

    def bare(self, file: str, line: str) -> Location:
        """A line by itself."""
        key = file, line, id(None)
        if key not in self.located:
            self.located[key] = Location(self.files.get(int(file), "?"), int(line))
        return self.located[key]

    def registers(self, match: re.Match[str], position: int) -> None:
        if match[1] or match[2] not in TYPE_BYTES:
            raise self.fail(position, f"registers of type .{match[1] or match[2]} are not supported")
        self.known[-1].clear()
        for item in match[3].split(","):
            found = _REG_ITEM.match(item.strip())
            if not found:
                raise self.fail(position, f"a register name {item.strip()!r} that is not understood")
            if found[2] is None:
                self.scopes[-1][found[1]] = Register(found[1], match[2])
            else:
                self.families[-1][found[1]] = match[2], int(found[2])

    def variable(self, match: re.Match[str]) -> Variable:
        linkage, space, attributes, kind, name, dimensions, init = match.groups()
        vector = re.search(r"\.v([24])\b", attributes)
        size = (8 if kind in _OPAQUE else TYPE_BYTES.get(kind, 0)) * int(vector[1] if vector else 1)
        if not size:
            raise self.fail(match.start(), f"a variable of type .{kind} is not supported")
        align = re.search(r"\.align\s+(\d+)", attributes)
        count = 1
        counts = [item.strip() for item in re.findall(r"\[([^\]]*)\]", dimensions)]
        for item in filter(None, counts):
            constant = self.constant(item, match.start())
            if constant is None or constant.float_bytes or constant.bits < 0:
                raise self.fail(match.start(), f"a dimension [{item}] that is not a number")
            count *= constant.bits
        opaque = init if kind in _OPAQUE else None  # a sampler's fields
        data, relocations = self.initialiser(init, size, match.start()) if init and not opaque else (None, ())
        total = size * count if "" not in counts else len(data or b"")
        if total > MOST_BYTES or len(data or b"") > total:
            raise self.fail(match.start(), f"a variable of {total} bytes, for which {len(data or b'')} are given")
        return Variable(
            name=name,
            space=space,
            size=total,
            align=self.alignment(align[1] if align else None, size, match.start()),
            init=None if data is None else data.ljust(total, b"\0"),
            relocations=relocations,
            extern="extern" in linkage,
        )

    def initialiser(self, text: str, size: int, position: int) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
        out, relocations = bytearray(), []
        for item in re.sub(r"[{}\s]+", " ", text).split(","):
            item = item.strip()
            if not item:
                continue
            operand = self.constant(item, position)
            if operand is not None:
                out += (operand.bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")
                continue
            found = re.match(rf"(?:generic\s*\(\s*)?({NAME})\s*\)?\s*(?:\+\s*(\d+))?$", item)
            if not found or size != 8:
                raise self.fail(position, f"an initialiser {item!r} that is not understood")
            relocations.append((len(out), found[1], self.addend(found[2], position)))
            out += bytes(size)
        return bytes(out), tuple(relocations)

    def statement(self, entry: Function, match: re.Match[str], position: int, location: Location | None) -> None:
        negated, guard_name, opcode, rest = match.groups()
        guard = None
        if guard_name:
            found = self.lookup(guard_name)
            if not isinstance(found, Register) or found.kind != "pred":
                raise self.fail(position, f"the guard {guard_name!r} is not a predicate register")
            guard = found
        rest = (_SPACE.sub(" ", rest) if "\n" in rest or "/" in rest else rest).strip()
        items = split(rest) if "{" in rest or "[" in rest or "(" in rest else rest.split(",")
        operands = tuple([self.operand(item, position) for item in items]) if rest else ()
        text = " ".join(match[0].split())
        entry.instructions.append(
            Instruction(
                opcode, operands, guard, negated == "!", location, self.line(position), text, len(entry.instructions)
            )
        )


def parse(text: str) -> Module:
    """Parse a PTX text. Raises PtxError naming the line; a body that is not understood goes to `Module.refused`."""
    return _Parser(text).parse()
