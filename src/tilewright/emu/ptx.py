"""The parts of PTX text, as ptx_parser.py reads it: a Module of variables and entries, with instructions."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_BYTES = {"b128": 16, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4}
TYPE_BYTES |= {"bf16x2": 4, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b8": 1, "u8": 1, "s8": 1, "pred": 0}


@dataclass(frozen=True)
class Location:
    """A line of the source as `.loc` gives it; `inlined_at` is the call that brought it in, which may be one itself."""

    file: str
    line: int
    inlined_at: Location | None = None
    near: bool = False
    """The compiler gave no line; this is the last one before."""

    @property
    def calls(self) -> list[Location]:
        """The calls that brought the line in, the innermost first."""
        return [self.inlined_at, *self.inlined_at.calls] if self.inlined_at else []

    def __str__(self) -> str:
        calls = ", from ".join(f"{call.file}:{call.line}" for call in self.calls)
        return f"{self.file}:{self.line}" + (f" (inlined at {calls})" if calls else "")


@dataclass(frozen=True, eq=False)
class Register:
    """One virtual register; two of one name in different scopes are different registers."""

    name: str
    kind: str

    @property
    def width(self) -> int:
        """Bytes; 0 for a predicate."""
        return TYPE_BYTES[self.kind]


@dataclass(frozen=True)
class Immediate:
    """A constant. Floats keep the bits that the text gave: `float_bytes` is 4 for 0f, 8 for 0d and decimals, else 0."""

    bits: int
    float_bytes: int = 0


@dataclass(frozen=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Memory:
    """`[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """`{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`: a destination and the predicate written with it."""

    first: Register | None
    second: Register | None


@dataclass(frozen=True)
class Negated:
    """`!p` as an operand."""

    register: Register


Operand = Register | Immediate | Special | Symbol | Memory | Vector | Pair | Negated | None
"""None is `_`, the sink."""


def registers_of(operand: Operand) -> list[Register]:
    """Every register in an operand."""
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Memory) and isinstance(operand.base, Register):
        return [operand.base]
    if isinstance(operand, Negated):
        return [operand.register]
    if isinstance(operand, Pair):
        return [r for r in (operand.first, operand.second) if r is not None]
    if isinstance(operand, Vector):
        found: list[Register] = []
        for item in operand.items:
            if isinstance(item, Register):
                found.append(item)
            else:
                found += registers_of(item)
        return found
    return []


@dataclass(eq=False)
class Instruction:
    """One statement. `fields` is filled by the decoder from the form that matched."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    location: Location | None
    ptx_line: int
    text: str
    index: int = 0
    fields: dict[str, str] = field(default_factory=dict)


@dataclass
class Variable:
    """A module, shared, local or constant variable. `init` holds bytes; `relocations` the symbols stored in it."""

    name: str
    space: str
    size: int
    align: int
    init: bytes | None = None
    relocations: tuple[tuple[int, str, int], ...] = ()
    extern: bool = False


@dataclass
class Parameter:
    """A kernel parameter and where it lies in the parameter buffer."""

    name: str
    size: int
    align: int
    offset: int
    kind: str = ""
    """Its type; "" for a struct."""


@dataclass
class Function:
    """A kernel or a function: parameters, variables of its own, instructions, labels (name -> index), jump tables.

    Labels and variables of a nested scope are told apart by a suffix, `name@scope`.
    """

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    directives: dict[str, str] = field(default_factory=dict)
    returns: list[Parameter] = field(default_factory=list)
    """What a function gives back; a kernel gives nothing."""

    @property
    def parameter_bytes(self) -> int:
        """Size of the packed parameter buffer."""
        return max((p.offset + p.size for p in self.parameters), default=0)


@dataclass
class Module:
    """A PTX text."""

    version: str = ""
    target: str = ""
    variables: list[Variable] = field(default_factory=list)
    entries: dict[str, Function] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    """Functions with a body."""
    refused: dict[str, str] = field(default_factory=dict)
    """Kernels and functions whose body was not understood -> why. The others of the module can run."""
