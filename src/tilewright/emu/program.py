"""Module -> Code: every instruction matched to its handler, basic blocks, and registers packed into rows."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import PtxError, UnknownInstruction
from . import operand_types
from .in_flight import InFlight, find_in_flight
from .isa import registry
from .link import Linked, Routine, link, place, symbols
from .liveness import Effects, effects, live_ranges
from .ptx import Function, Immediate, Instruction, Module, Operand, Register, Special, Symbol, Variable

_ELSEWHERE = re.compile(r"\.(?:global|local|param|const)\b")
_WIDEST = 16


@dataclass
class Block:
    """Instructions [start, end) that run one after another. `member_mask`: the first waits for the lanes it names;
    `warpgroup`: for all of its warpgroup; `warp`: for all of its warp."""

    index: int
    start: int
    end: int
    member_mask: Operand = None
    warpgroup: bool = False
    warp: bool = False


@dataclass(eq=False)
class Code:
    """One entry, decoded. Holds nothing of a launch."""

    module: Module
    entry: Function
    handlers: list[registry.Handler]
    readers: dict[Register, tuple[int, ...]]
    """The instructions that read a register, for those that any reads."""
    blocks: list[Block]
    block_at: dict[int, int]
    """Instruction index -> index of the block that it starts."""
    rows: dict[Register, int]
    """Register -> its row among the registers of its width. Registers that never live at once share a row."""
    row_counts: dict[int, int]
    """Width in bytes (0: predicates) -> rows."""
    shared: dict[str, int] = field(default_factory=dict)
    """Shared variable -> offset in the block's shared memory."""
    local: dict[str, int] = field(default_factory=dict)
    shared_sizes: dict[str, int] = field(default_factory=dict)
    """Shared variable of a known size -> its bytes."""
    red_zones: bool = False
    """Whether shared variables lie apart, so that what runs over the end of one is seen."""
    static_shared: int = 0
    local_bytes: int = 0
    routines: list[Routine] = field(default_factory=list)
    """Functions that are called, and the kernel last."""
    arguments: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Argument, parameter or result of a call -> (offset, bytes) in a lane's area of `area_bytes`."""
    area_bytes: int = 0
    live: dict[int, list[Register]] = field(default_factory=dict)
    """Block after a call -> the registers that live there."""
    shared_granule: int = 4
    """Bytes of shared memory that every access takes whole: hazards are tracked in units of so many."""
    products: InFlight | None = None
    """Where registers of wgmma may be in flight; None for a program without."""
    runs: dict[Hashable, Any] = field(default_factory=dict)
    """What machines share of the blocks that they have bound (straight.py)."""
    rows_of: dict[int, np.ndarray] = field(default_factory=dict)
    """The rows of operands of many registers, by their ids (isa/wgmma.py)."""
    _begin: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict)
    _effects: dict[int, Effects] = field(default_factory=dict)
    """Those that were asked for: to keep all is more to look at for the garbage collector."""

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions of the entry."""
        return self.entry.instructions

    def between_arrays(self, nbytes: int) -> np.ndarray:
        """Return of each byte of a block's shared memory whether no variable has it."""
        zones = np.ones(max(nbytes, 1), bool)
        for name, start in self.shared.items():
            zones[start : start + self.shared_sizes.get(name, nbytes)] = False
        return zones

    @property
    def first_block(self) -> int:
        """Return where a thread begins."""
        return self.block_at[self.routines[-1].start]

    def effects(self, index: int) -> Effects:
        """Return what an instruction does to registers."""
        if index not in self._effects:
            self._effects[index] = effects(self.instructions[index], self.handlers[index])
        return self._effects[index]

    def opcodes_begin(self, *with_what: str) -> np.ndarray:
        """Return which instructions' opcodes begin with one of some texts."""
        if with_what not in self._begin:
            self._begin[with_what] = np.array([i.opcode.startswith(with_what) for i in self.instructions], bool)
        return self._begin[with_what]

    @cached_property
    def cooperates(self) -> bool:
        """Return whether its blocks synchronise as a grid: they ask for the workspace of that."""
        names = (operand.name for i in self.instructions for operand in i.operands if isinstance(operand, Special))
        return any(name.startswith("%envreg") for name in names)

    @cached_property
    def repeats(self) -> list[bool]:
        """Of each block whether a thread may run it again: some branch goes back over it, or there are functions."""
        found = [len(self.routines) > 1] * len(self.blocks)
        for here, following in enumerate(successors_of(self.entry, self.blocks, self.block_at)):
            for back in following:
                found[back : here + 1] = [True] * len(found[back : here + 1])
        return found

    @cached_property
    def counted(self) -> list[tuple[str, registry.Flops | None, bool]]:
        """Of each instruction: its class, its floating-point operations, and whether the threads that its guard lets
        through are counted, not those of its block."""
        pairs = zip(self.instructions, self.handlers, strict=True)
        return [(h.kind_of(i.fields), h.flops_of(i.fields), i.guard is not None and not h.ends_block) for i, h in pairs]

    def routine_at(self, index: int) -> Routine:
        """The function, or the kernel, that an instruction belongs to."""
        return next(r for r in self.routines if r.start <= index < r.end)


_TELLS = re.compile(
    r"(mbarrier|membar|fence|atom|red|cp\.async\.bulk|cp\.reduce|st\.async|red\.async)\."
    r"|(ld|st)\.(volatile|mmio|relaxed|acquire|release)"
)
"""Instructions by which warps and blocks tell one another something."""


_OF_WARPS = re.compile(r"(ld|st|mov)matrix\.|w?mma\.|wgmma\.(fence|commit|wait)")
"""Instructions at which the lanes of a warp wait for one another."""


CLOCKS = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")
"""Special registers that count instructions; 32-bit ones read the low half. The count steps on from block to block, so
that what reads it begins one."""


def _blocks(entry: Function, handlers: list[registry.Handler], fine: bool) -> list[Block]:
    """`fine`: with an end after each instruction that tells others something, so that they may run on at once."""
    count = len(entry.instructions)
    starts = {0} | {index for index in entry.labels.values() if index < count}
    waits: dict[int, Operand] = {}
    joins: set[int] = set()
    together = False  # lanes that have met in a block stay together to its end
    for i, handler in enumerate(handlers):
        told = entry.instructions[i]
        timed = any(isinstance(operand, Special) and operand.name in CLOCKS for operand in told.operands)
        if timed:
            starts.add(i)
        if (handler.ends_block or (fine and _TELLS.match(told.opcode))) and i + 1 < count:
            starts.add(i + 1)
        together &= i not in starts
        if handler.warpgroup:
            starts.add(i)
        elif _OF_WARPS.match(entry.instructions[i].opcode):
            if not together:
                starts.add(i)
                joins.add(i)
            together = True
        if handler.member_mask is not None:
            starts.add(i)
            if not (operands := entry.instructions[i].operands):
                raise PtxError(
                    f"PTX line {entry.instructions[i].ptx_line}: {entry.instructions[i].text!r} has no operands."
                )
            waits[i] = operands[handler.member_mask]
    order = sorted(starts)
    ends = [*order[1:], count]
    parts = enumerate(zip(order, ends, strict=True))
    return [Block(k, a, b, waits.get(a), handlers[a].warpgroup, a in joins) for k, (a, b) in parts]


def successors_of(entry: Function, blocks: list[Block], block_at: dict[int, int]) -> list[list[int]]:
    out: list[list[int]] = []
    count = len(entry.instructions)
    for block in blocks:
        last = entry.instructions[block.end - 1]
        labels: list[str] = []
        falls = True
        head = last.opcode.split(".")[0]
        if head == "bra":
            labels = [op.name for op in last.operands if isinstance(op, Symbol)]
            falls = last.guard is not None
        elif head == "brx":
            labels = [
                label for op in last.operands if isinstance(op, Symbol) for label in entry.tables.get(op.name, [])
            ]
            falls = last.guard is not None
        elif head in ("ret", "exit", "trap"):
            falls = last.guard is not None
        following = [block_at[entry.labels[label]] for label in labels if entry.labels.get(label, count) < count]
        if falls and block.index + 1 < len(blocks):
            following.append(block.index + 1)
        out.append(following)
    return out


def _readers(every: list[Effects]) -> dict[Register, tuple[int, ...]]:
    found: dict[Register, list[int]] = {}
    for index, (reads, _, _) in enumerate(every):
        for register in dict.fromkeys(reads):
            found.setdefault(register, []).append(index)
    return {register: tuple(indices) for register, indices in found.items()}


RED_ZONE = 256
"""Bytes between two shared variables, where that is asked for."""


def _handler(instruction: Instruction) -> registry.Handler:
    """Match an instruction, whose fields are then set. Raises PtxError and UnknownInstruction."""
    found = registry.find(instruction.opcode)
    if found is None:
        where = f"{instruction.location}, " if instruction.location else ""
        raise UnknownInstruction(
            f"{where}PTX line {instruction.ptx_line}: {instruction.text!r}: the emulator has no form "
            f"{instruction.opcode!r}; nothing is skipped."
        )
    if wrong := operand_types.check(instruction):
        raise PtxError(f"PTX line {instruction.ptx_line}: {instruction.text!r} {wrong}.")
    handler, instruction.fields = found
    return handler


RESERVED = 512
"""Bytes of shared memory that cooperative groups keep for tiles of several warps, where a kernel reads their place."""


def is_reserved(name: str) -> bool:
    """Return whether it is the special register that holds that place."""
    return name.startswith("%reserved_smem_offset_")


def decode(module: Module, entry_name: str, fine: bool = False, red_zones: bool = False) -> Code:
    """Decode one entry. `fine`: in smaller blocks, for other orders (orders.py). `red_zones`: as Code's.

    Raises PtxError when it is not there, UnknownInstruction for the first unknown form.
    """
    entry = module.entries.get(entry_name)
    if entry is None:
        raise PtxError(
            f"the PTX has no entry {entry_name!r}; it has {', '.join(module.entries) or 'none'}. "
            'Declare the kernel extern "C", or give its mangled name.'
        )
    if entry_name in module.refused:
        raise PtxError(module.refused[entry_name])
    if not entry.instructions:
        raise PtxError(f"entry {entry_name!r} has no instructions")
    linked: Linked = link(module, entry)
    entry = linked.entry
    handlers = [_handler(instruction) for instruction in entry.instructions]
    blocks = _blocks(entry, handlers, fine)
    block_at = {block.start: block.index for block in blocks}
    for name in {op.name for i in entry.instructions if i.opcode.startswith("bra") for op in i.operands
                 if isinstance(op, Symbol)}:  # fmt: skip
        if name not in entry.labels:
            raise PtxError(f"entry {entry_name!r} branches to the label {name!r}, which is nowhere")
    successors = successors_of(entry, blocks, block_at)
    every = [effects(*pair) for pair in zip(entry.instructions, handlers, strict=True)]
    ranges = live_ranges(every, blocks, successors)
    rows, counts = ranges.rows()
    calls = [block.index for block in blocks if entry.instructions[block.end - 1].opcode.startswith("call")]
    named = {symbol.name for symbol in symbols(op for i in entry.instructions for op in i.operands)}
    shared = [v for v in module.variables if v.space == "shared" and v.name in named]
    shared += [v for v in entry.variables if v.space == "shared"]
    specials = {op.name for i in entry.instructions for op in i.operands if isinstance(op, Special)}
    shared += [Variable(name, "shared", RESERVED, 16) for name in sorted(filter(is_reserved, specials))]
    gap = RED_ZONE if red_zones else 0
    static, size = place([v for v in shared if not v.extern], gap)
    for variable in shared:
        if variable.extern:
            static[variable.name] = -(-(size + gap) // variable.align) * variable.align
    return Code(
        module=module,
        entry=entry,
        handlers=handlers,
        readers=_readers(every),
        blocks=blocks,
        block_at=block_at,
        rows=rows,
        row_counts=counts,
        shared=static,
        local={name: at for routine in linked.routines for name, at in routine.local.items()},
        shared_sizes={v.name: v.size for v in shared if not v.extern},
        red_zones=red_zones,
        static_shared=size,
        local_bytes=linked.local_bytes,
        routines=linked.routines,
        arguments=linked.arguments,
        area_bytes=linked.area_bytes,
        live={index + 1: ranges.after(index) for index in calls},
        shared_granule=_granule(min(map(_shared_bytes, entry.instructions), default=_WIDEST)),
        products=find_in_flight(entry.instructions, every, blocks, successors),
    )


def _shared_bytes(instruction: Instruction) -> int:
    """The least that an instruction takes of shared memory, in bytes at a multiple of their number; 16 of none, too."""
    head, *parts = instruction.opcode.split(".")
    if head in ("ld", "ldu", "st", "atom", "red"):
        if _ELSEWHERE.search(instruction.opcode):
            return _WIDEST
        bits = int(re.sub(r"\D", "", parts[-1].removesuffix("x2")) or 0) * (2 if parts[-1].endswith("x2") else 1)
        vector = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
        return min(bits * vector // 8, _WIDEST)
    if head == "cp" and parts[:2] in (["async", "ca"], ["async", "cg"]):
        return constant(instruction.operands[2]) or 4 if len(instruction.operands) > 2 else 4
    if head == "mbarrier" or parts[:2] == ["async", "mbarrier"]:
        return 8
    return 4 if head in ("wmma", "multimem", "tensormap", "call") else _WIDEST


def _granule(least: int) -> int:
    return least if least in (4, 8, _WIDEST) else 1


def constant(operand: Operand) -> int | None:
    """The value of an immediate operand, else None."""
    return operand.bits if isinstance(operand, Immediate) else None
