"""The PTX forms that exist, and their handlers.

    @executes("{op:and|or|xor}.{type:b32|b64}", kind="int")
    @elementwise
    def bitwise(machine, fields): ...

A form is the whole opcode. `{a|b}` stands for one of several spellings and `{name:a|b}` also hands it to the handler
in `fields`; an alternative may be empty. A handler binds one instruction to one machine: it is called once and returns
the closure that runs it. What no form matches is refused when the program is decoded, never skipped.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..machine import Machine
    from ..ptx import Instruction

Step = Callable[[], None]
Bind = Callable[["Machine", "Instruction"], Step]
Together = Callable[["Machine", "list[Instruction]"], Step]
Compute = Callable[..., object]
"""compute(out, *sources): reads every source before it writes `out`, which may be one of them."""
Flops = tuple[str, int]


@dataclass(frozen=True)
class Handler:
    """The code that executes a form, and how it is counted."""

    form: str
    bind: Bind
    kind: str | Callable[[dict[str, str]], str]
    """Class of instruction in the counters, perhaps as a function of the fields."""
    flops: Flops | Callable[[dict[str, str]], Flops] | None
    """(pipe, floating-point operations a thread), perhaps as a function of the fields."""
    ends_block: bool
    """Control flow and barriers: nothing runs after them in their basic block, and they read their own guard."""
    member_mask: int | None
    """Operand that names the lanes of the warp which must arrive together."""
    destination: str
    """What happens to the first operand: "write", "update" (read and written), or "none" (only read)."""
    warpgroup: bool
    """The work of four warps, who wait for one another at it."""
    family: str
    """The module that registered it."""
    together: Together | None
    """Binds several independent instructions of one opcode as one step, for batches of few lanes."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return what opcodes match. Made when first asked: to make all of them takes longer than a small launch."""
        return _compile(self.form)

    def kind_of(self, fields: dict[str, str]) -> str:
        """The class of an instruction with these fields."""
        return self.kind if isinstance(self.kind, str) else self.kind(fields)

    def flops_of(self, fields: dict[str, str]) -> Flops | None:
        """Return what an instruction with these fields adds to the floating-point operations."""
        return self.flops(fields) if callable(self.flops) else self.flops


_by_head: dict[str, list[Handler]] = {}
_MODIFIERS = (
    ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel"),
    ("cta", "cluster", "gpu", "sys"),
    ("global", "shared", "shared::cta", "shared::cluster", "local"),
)
"""What may follow the name of an access to memory, in the manual's order."""


def _compile(form: str) -> re.Pattern[str]:
    parts = re.split(r"\{([^}]*)\}", form)
    out = []
    for i, part in enumerate(parts):
        if i % 2 == 0:
            out.append(re.escape(part))
            continue
        name, colon, spellings = part.partition(":")
        if not colon or not name.isidentifier():
            name, spellings = "", part
        choice = "|".join(re.escape(s) for s in sorted(spellings.split("|"), key=len, reverse=True))
        out.append(f"(?P<{name}>{choice})" if name else f"(?:{choice})")
    return re.compile("".join(out))


def _heads(form: str) -> set[str]:
    """The instruction names a form may begin with."""
    if not form.startswith("{"):
        return {re.split(r"[.{]", form, maxsplit=1)[0]}
    spellings = form[1 : form.index("}")].rpartition(":")[2]
    return {spelling.split(".")[0] for spelling in spellings.split("|")}


def executes(
    *forms: str,
    kind: str | Callable[[dict[str, str]], str],
    flops: Flops | Callable[[dict[str, str]], Flops] | None = None,
    ends_block: bool = False,
    member_mask: int | None = None,
    destination: str = "write",
    warpgroup: bool = False,
    together: Together | None = None,
) -> Callable[[Bind], Bind]:
    """Register a handler for the forms. See the head of this file and `Handler`."""
    family = sys._getframe(1).f_globals["__name__"]

    def register(bind: Bind) -> Bind:
        for form in forms:
            handler = Handler(
                form,
                bind,
                kind,
                flops,
                ends_block,
                member_mask,
                destination,
                warpgroup,
                family,
                together,
            )
            for head in _heads(form):
                _by_head.setdefault(head, []).append(handler)
        return bind

    return register


@lru_cache(maxsize=1)
def _load() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


@lru_cache(maxsize=4096)
def find(opcode: str) -> tuple[Handler, dict[str, str]] | None:
    """The handler of an opcode and the fields of its form, or None."""
    _load()
    for spelling in dict.fromkeys((opcode, _in_order(opcode))):
        for handler in _by_head.get(opcode.split(".", 1)[0], ()):
            if match := handler.pattern.fullmatch(spelling):
                return handler, {k: v or "" for k, v in match.groupdict().items()}
    return None


def _in_order(opcode: str) -> str:
    """An access to memory with its order, scope and space in the manual's order: ptxas takes them in any."""
    head, *parts = opcode.split(".")
    if head not in ("ld", "st", "atom", "red"):
        return opcode
    first = [part for group in _MODIFIERS for part in parts if part in group]
    return ".".join([head, *first, *(part for part in parts if part not in first)])


def forms() -> list[str]:
    """Every registered form, sorted."""
    _load()
    return sorted(handler.form for handlers in _by_head.values() for handler in handlers)


def families() -> dict[str, list[str]]:
    """Module of a family of instructions -> the forms that it registers."""
    _load()
    found: dict[str, list[str]] = {}
    for handler in (handler for handlers in _by_head.values() for handler in handlers):
        found.setdefault(handler.family, []).append(handler.form)
    return dict(sorted(found.items()))


def elementwise(
    factory: Callable[[Machine, dict[str, str]], Compute] | None = None, *, types: tuple[str, ...] | None = None
) -> Callable:
    """Turn `factory(machine, fields) -> compute(out, *sources)` into a handler of "d, a, b, ..." instructions.

    `types` names the type of the destination and of each source; a name in braces is a field. Without it all have the
    field "type", and are as many as the arguments of `compute`. Under a mask the result is computed for every lane and
    kept for the active ones.
    """

    def wrap(factory: Callable[[Machine, dict[str, str]], Compute]) -> Bind:
        def bind(machine: Machine, instruction: Instruction) -> Step:
            fields = instruction.fields
            operands = instruction.operands
            compute = factory(machine, fields)
            names = ("{type}",) * compute.__code__.co_argcount if types is None else types
            machine.expect(instruction, len(operands) == len(names), f"needs {len(names)} operands")
            kinds = [name.format_map(fields) for name in names]
            sources = [
                machine.source(instruction, operand, kind)
                for operand, kind in zip(operands[1:], kinds[1:], strict=True)
            ]
            return machine.keep(instruction, operands[0], kinds[0], compute, sources)

        bind.__name__ = factory.__name__
        bind.__doc__ = factory.__doc__
        return bind

    return wrap(factory) if factory is not None else wrap


def simply(function: Callable[..., object], sources: int = 2) -> Callable[[Machine, dict[str, str]], Compute]:
    """A factory for a NumPy function of one or two sources."""

    def factory(machine: Machine, fields: dict[str, str]) -> Compute:
        if sources == 1:
            return lambda out, a: function(a, out=out)
        return lambda out, a, b: function(a, b, out=out)

    return factory


def dtype_of(kind: str) -> np.dtype:
    """The NumPy type that holds values of a PTX type; bf16 and the packed pairs are held as their bits."""
    return np.dtype(NUMPY[kind])


NUMPY: dict[str, type] = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "b128": np.complex128,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": np.uint16, "f16x2": np.uint32,
    "bf16x2": np.uint32, "pred": np.bool_,
}  # fmt: skip
