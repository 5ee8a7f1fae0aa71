"""The parts of a compiled kernel: registers, spills, occupancy, and its machine code counted. Needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..attn.rung import AttentionRung
from ..errors import InvalidOperand, MissingDependency, TilewrightError, suggests
from ..gpus import DEFAULT_GPU, GPUS, Arch, Gpu, Resources, find_gpu
from ..gpus import occupancy as of_resources
from ..tuning.build import Builder, Built, cores
from . import sass_facts
from .sass import Instruction, listings, loops
from .shown import Grid, Shown
from .subject import D_HEAD, AnyConfig, AnyRung, Subject, named, problem_of, read_config, subject_of

WHOLE, REST = "all", "loop"
_GROUPS = (*sass_facts.GROUPS, sass_facts.OTHER)
_SHORT = 8
"""Loops of fewer instructions are not told apart."""
_ADDRESSED = ("LDGSTS", "LDSM", "LDS", "STS", "LDG", "STG")
_SPILLED = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


@dataclass(frozen=True)
class Part:
    """The whole kernel, or one of its loops: instructions by group, and what loads and addresses do in it."""

    name: str
    first: int
    """Address of its first instruction."""
    instructions: int
    groups: dict[str, int]
    address_registers: dict[str, dict[str, int]]
    """Opcode -> register -> how many of these instructions take their address from it."""
    distances: dict[str, tuple[int, float, int]]
    """Load -> least, median and most instructions until the first that needs what it brings."""


@dataclass(frozen=True)
class Board:
    """The blocks of a kernel that one board's SM holds."""

    gpu: str
    blocks: int
    fraction: float
    limiter: str


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """One kernel. Sizes in bytes; spills are per thread, as ptxas reports them (of a .cubin: counted in its code)."""

    name: str
    config: str
    arch: str
    entry: str
    threads: int
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    boards: tuple[Board, ...]
    """The board asked for, then the others."""
    seen: dict[str, int]
    """How often each of LDGSTS, LDSM, HMMA, HGMMA, UTMALDG and UTMASTG is in the code; 0: missing."""
    parts: tuple[Part, ...]
    """The whole kernel, then its loops in order. Empty, as `seen` is, where there is no disassembler."""
    called: str = ""
    """The kernel of a .cu file as its source names it."""
    without: str = ""
    """Why there is no machine code, and how to get it; "" where there is."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory per block, static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def main_loop(self) -> Part | None:
        """The loop that multiplies most; where none does, the one that loads most from global memory. Of equals the
        shorter. None without loops."""
        units = ("tensor", "fp32 and exp", "global loads")
        unit = next((unit for unit in units if any(part.groups.get(unit) for part in self.parts[1:])), "")
        return max(self.parts[1:], key=lambda part: (part.groups.get(unit, 0), -part.instructions), default=None)

    @property
    def title(self) -> str:
        """Its name with its config, or else its kernel's name."""
        return f"{self.name}: {self.config or self.called or self.entry}"

    def facts(self) -> dict[str, str]:
        """Return what the compiler and the boards say, as words."""
        facts = {
            "target": self.arch, "threads per block": str(self.threads or "-"),
            "registers": str(self.registers), "spill stores, B": str(self.spill_store_bytes),
            "spill loads, B": str(self.spill_load_bytes), "stack, B": str(self.stack_bytes),
            "shared, B": str(self.shared_bytes),
        }  # fmt: skip
        if self.boards:
            one = self.boards[0]
            facts |= {"GPU": one.gpu, "blocks per SM": str(one.blocks), "occupancy": f"{one.fraction:.0%}"}
            facts["limited by"] = one.limiter
        if self.seen:
            facts["seen"] = ", ".join(f"{name} {count}" for name, count in self.seen.items() if count) or "-"
            facts["missing"] = ", ".join(name for name, count in self.seen.items() if not count) or "-"
        return facts

    def grids(self) -> tuple[Grid, ...]:
        """The facts, the groups by loop, addresses, distances, and other boards."""
        facts = tuple(self.facts().items())
        made = [Grid(self.title, ("", "value"), facts, self.without)]
        if self.parts:
            made.append(_groups(self.parts))
            made += self._of_loop(self.main_loop or self.parts[0])
        if len(self.boards) > 1:
            rows = tuple((b.gpu, str(b.blocks), f"{b.fraction:.0%}", b.limiter) for b in self.boards)
            made.append(Grid("With these registers on", ("GPU", "blocks per SM", "occupancy", "limited by"), rows))
        return tuple(made)

    def _of_loop(self, loop: Part) -> list[Grid]:
        """Where the addresses of a loop come from, and how far its loads are from what needs them."""
        made = []
        rows = tuple(
            (opcode, str(sum(uses.values())), str(len(uses)), _histogram(uses))
            for opcode, uses in loop.address_registers.items()
        )
        if rows:
            made.append(
                Grid(
                    f"Address registers, {loop.name}",
                    ("access", "count", "registers", "instructions per register"),
                    rows,
                )
            )
        rows = tuple(
            (load, str(least), f"{middle:g}", str(most)) for load, (least, middle, most) in loop.distances.items()
        )
        if rows:
            title = f"Instructions from a load to its first use, {loop.name}"
            made.append(Grid(title, ("load", "least", "median", "most"), rows))
        return made


@dataclass(frozen=True, repr=False)
class InspectionDiff(Shown):
    """Two kernels side by side."""

    one: Inspection
    other: Inspection

    def grids(self) -> tuple[Grid, ...]:
        """Facts, then instructions of the whole kernel and of the main loop."""
        a, b = self.one, self.other
        names = ("", a.name, b.name) if a.name != b.name else ("", "first", "second")
        left, right = a.facts(), b.facts()
        rows = tuple((what, left.get(what, "-"), right.get(what, "-")) for what in left | right if what != "missing")
        made = [Grid(f"{a.title}\n{b.title}", names, rows, a.without or b.without)]
        first, second = (one.parts[0] if one.parts else None for one in (a, b))
        for title, x, y in (("All instructions", first, second), ("Main loop", a.main_loop, b.main_loop)):
            if x is None or y is None:
                continue
            groups = [name for name in _GROUPS if x.groups.get(name) or y.groups.get(name)]
            lines: list[tuple[str, int, int]] = [("instructions", x.instructions, y.instructions)]
            lines += [(name, x.groups.get(name, 0), y.groups.get(name, 0)) for name in groups]
            for opcode in _ADDRESSED:
                uses = [len(part.address_registers.get(opcode, ())) for part in (x, y)]
                if any(uses):
                    lines.append((f"address registers of {opcode}", uses[0], uses[1]))
            told = tuple((name, str(one), str(two), f"{two - one:+d}") for name, one, two in lines)
            made.append(Grid(title, (*names, "change"), told))
        return tuple(made)


@dataclass(frozen=True)
class SpaceRow:
    """One config of a table. `why_not`: why it cannot run; the figures are then None."""

    config: str
    registers: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    stack_bytes: int | None
    shared_bytes: int | None
    blocks: int | None
    fraction: float | None
    limiter: str
    why_not: str = ""


@dataclass(frozen=True, repr=False)
class SpaceTable(Shown):
    """A table of what the compiler says of several configs of one rung."""

    rung: str
    gpu: str
    arch: str
    rows: tuple[SpaceRow, ...]

    def grids(self) -> tuple[Grid, ...]:
        """One row per config."""
        names = (
            "config",
            "registers",
            "stores B",
            "loads B",
            "stack B",
            "shared B",
            "per SM",
            "occupancy",
            "limited by",
        )
        lines = []
        for row in self.rows:
            figures = (row.registers, row.spill_store_bytes, row.spill_load_bytes, row.stack_bytes, row.shared_bytes,
                       row.blocks)  # fmt: skip
            share = "-" if row.fraction is None else f"{row.fraction:.0%}"
            lines.append((row.config, *("-" if f is None else str(f) for f in figures), share, row.limiter or "-"))
        title = f"{self.rung}, compiled for {self.gpu} ({self.arch}); stores, loads: of spilled registers"
        refused = "\n".join(f"{row.config}: {row.why_not}" for row in self.rows if row.why_not)
        return (Grid(title, names, tuple(lines), refused),)


def _histogram(uses: dict[str, int]) -> str:
    """Return how many registers serve how many instructions: "4 x 8, 2 x 1"."""
    times: dict[int, int] = {}
    for count in uses.values():
        times[count] = times.get(count, 0) + 1
    return ", ".join(f"{registers} x {count}" for count, registers in sorted(times.items(), reverse=True)[:6])


def _groups(parts: Sequence[Part]) -> Grid:
    shown = [name for name in _GROUPS if parts[0].groups.get(name)]
    lines = [("instructions", *(str(part.instructions) for part in parts))]
    lines += [(name, *(str(part.groups.get(name, 0)) for part in parts)) for name in shown]
    return Grid("Machine code, by what it does", ("group", *(part.name for part in parts)), tuple(lines))


def _part(name: str, body: Sequence[Instruction], again: bool) -> Part:
    groups = sass_facts.by_group(body)
    ordered = {group: groups[group] for group in _GROUPS if groups[group]}
    registers = {op: dict(found) for op in _ADDRESSED if (found := sass_facts.address_registers(body, op))}
    spreads = {
        load: spread
        for load in sass_facts.LOADS
        if (spread := sass_facts.spread_of(sass_facts.distances(body, load, again)))
    }
    return Part(name, body[0].address, len(body), ordered, registers, spreads)


def _parts(code: Sequence[Instruction]) -> tuple[Part, ...]:
    found = [body for body in loops(code) if len(body) >= _SHORT]
    return (_part(WHOLE, code, False), *(_part(f"{REST} {n}", body, True) for n, body in enumerate(found, 1)))


def _spilled(code: Sequence[Instruction], opcode: str) -> int:
    """Bytes that instructions such as STL.64 move, each once."""
    found = (i.opcode.split(".") for i in code if i.opcode.split(".")[0] == opcode)
    return sum(next((_SPILLED[part] for part in parts if part in _SPILLED), 4) for parts in found)


def _boards(resources: Resources, threads: int, dynamic: int, first: Gpu, every: bool) -> tuple[Board, ...]:
    if not threads:
        return ()
    others = [gpu for gpu in GPUS.values() if gpu.name != first.name] if every else []
    return tuple(
        Board(gpu.name, fits.blocks, fits.fraction, fits.limiter)
        for gpu in (first, *others)
        for fits in (of_resources(resources, threads, dynamic, gpu.arch),)
    )


def _inspected(subject: Subject, gpu: Gpu, boards: bool) -> Inspection:
    without = ""
    try:
        code = listings(subject.cubin).get(subject.entry) or []
    except MissingDependency as missing:
        if subject.kernel is None:  # of machine code, spills are counted in it
            raise
        code, without = [], f"No machine code: {missing}"
    if not code and not without:
        raise TilewrightError(f"the disassembler shows no instruction of {subject.entry!r} in {subject.name}.")
    resources = subject.resources
    stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
    if subject.kernel is None and not stored:
        stored, loaded = _spilled(code, "STL"), _spilled(code, "LDL")
    opcodes = [instruction.opcode.split(".")[0] for instruction in code]
    return Inspection(
        subject.name, subject.config, subject.arch, subject.entry, subject.threads, resources.registers, stored, loaded,
        resources.stack_bytes, resources.shared_bytes, subject.dynamic_shared,
        _boards(resources, subject.threads, subject.dynamic_shared, gpu, boards),
        {name: opcodes.count(name) for name in sass_facts.WATCHED if code}, _parts(code) if code else (),
        subject.called, without,
    )  # fmt: skip


@suggests
def inspect(
    what: str | Path,
    *,
    config: str | AnyConfig | None = None,
    gpu: str = DEFAULT_GPU,
    dtype: str | None = None,
    d_head: int = D_HEAD,
    entry: str = "",
    threads: int = 0,
    shared: int = 0,
    include: Sequence[str | Path] = (),
    boards: bool = False,
) -> Inspection:
    """Return what a compiled kernel is made of. Needs no GPU; machine code needs a disassembler (the extra
    `disassembler`), without which the result has what the compiler says, and says so.

    what: a rung ("f09", "a17"; "f09:tile_k=8" with another config), or a .cu, .ptx or .cubin file. config: of a rung,
    a config or words (see subject.read_config). dtype, d_head: of a rung's operands. entry, threads, shared, include:
    of a file: its kernel, the launch's threads per block and bytes of dynamic shared memory, and folders of headers.
    boards: occupancy on all known boards. Raises InvalidOperand, ConfigRejected, CompileError and MissingDependency.
    """
    board = find_gpu(gpu)
    subject = subject_of(
        what, board.arch, config=config, dtype=dtype, d_head=d_head, entry=entry, threads=threads, shared=shared,
        include=include,
    )  # fmt: skip
    return _inspected(subject, board, boards)


def _taken(rung: AnyRung | None) -> tuple[str, ...]:
    """The options of `inspect` that go for a rung, or for a file alone."""
    if rung is None:
        return "entry", "threads", "shared", "include"
    return ("config", "dtype", "d_head") if isinstance(rung, AttentionRung) else ("config", "dtype")


def inspect_diff(what: str | Path, other: str | Path, *, other_entry: str = "", **options: Any) -> InspectionDiff:
    """Return two kernels side by side; the options of `inspect` go for both. Raises what it raises.

    other_entry: the kernel of the other file, where it is not called as that of the first.
    Next to a rung, those of files (entry, threads, shared, include) go for the file alone, and those of rungs (config,
    dtype, d_head) for the rung alone; d_head goes for attention alone.
    """
    of_one, of_other = (_taken(named(each)[0]) for each in (what, other))

    def meant(here: tuple[str, ...], there: tuple[str, ...]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name in here or name not in there}

    own = {"entry": other_entry} if other_entry else {}
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(inspect, what, **meant(of_one, of_other))
        two = pool.submit(inspect, other, **meant(of_other, of_one) | own)
        return InspectionDiff(one.result(), two.result())


@suggests
def inspect_space(
    what: str,
    configs: Sequence[str | AnyConfig] | None = None,
    *,
    gpu: str = DEFAULT_GPU,
    dtype: str | None = None,
    d_head: int = D_HEAD,
    say: Callable[[float | None, str], None] | None = None,
) -> SpaceTable:
    """Return what the compiler says of several configs of a rung; by default of all in its space that may run.

    Each compiles in a process of its own, one per core at a time; Ctrl-C ends these.
    say: is told what share is done, also in words. Raises InvalidOperand for what is not a rung, and ConfigRejected.
    """
    (rung, words), board = named(what), find_gpu(gpu)
    if rung is None or words is not None:
        raise InvalidOperand(f"{what!r} is not a rung: only a rung has a space of configs. See: tilewright rungs.")
    problem: Any = problem_of(rung, dtype, d_head)
    if configs is None:
        every: Sequence[Any] = rung.space(d_head) if isinstance(rung, AttentionRung) else rung.space()
        chosen = [c for c in every if rung.why_not(problem, c, board.arch) is None]
    else:
        chosen = [read_config(rung, config, board.arch, d_head) for config in configs]
    rows = []
    with Builder(cores()) as builder:
        built = [_built(builder, rung, problem, config, board.arch) for config in chosen]
        for config, kernel in zip(chosen, built, strict=True):
            rows.append(_row(rung, problem, config, board.arch, kernel))
            if say is not None:
                say(len(rows) / len(chosen), f"{len(rows)} of {len(chosen)} configs")
    return SpaceTable(rung.id, board.name, board.arch.name, tuple(rows))


def _built(builder: Builder, rung: Any, problem: Any, config: Any, arch: Arch) -> Future[Built] | tuple[str, str]:
    """Let a config's kernel be compiled, or return ("config", why it cannot run)."""
    if reason := rung.why_not(problem, config, arch):
        return "config", reason
    return builder.submit(rung.include, rung.constants(problem, config), rung.entry, arch.name)


def _row(rung: Any, problem: Any, config: Any, arch: Arch, kernel: Future[Built] | tuple[str, str]) -> SpaceRow:
    built = kernel.result() if isinstance(kernel, Future) else kernel
    if isinstance(built, tuple):
        return SpaceRow(str(config), None, None, None, None, None, None, None, "", built[1])
    resources = built.resources
    launch = rung.shape(problem, config)
    fits = of_resources(resources, launch.block[0], launch.shared_bytes, arch)
    shared = resources.shared_bytes + launch.shared_bytes
    return SpaceRow(
        str(config), resources.registers, resources.spill_store_bytes, resources.spill_load_bytes,
        resources.stack_bytes, shared, fits.blocks, fits.fraction, fits.limiter,
    )  # fmt: skip
