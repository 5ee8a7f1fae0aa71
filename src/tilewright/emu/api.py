"""Run a launch on the emulator: PTX, a packed parameter buffer and memory. own_kernel.py takes sources and arrays."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from ..errors import ConfigRejected, InvalidOperand, PtxError, TilewrightError
from ..gpus import DEFAULT_GPU, Gpu, find_gpu
from ..words import Told
from .clusters import check_cluster
from .compiled import emulated
from .garbage import seldom_collected, uncollected
from .hazards import Hazard, Reporter, Sources
from .jobs import run_parts, why_alone
from .link import function_address
from .machine import Machine
from .memory import GlobalMemory
from .orders import Order
from .program import Code, decode
from .ptx import Module, Variable
from .ptx_parser import parse
from .recorder import Recorder
from .task import LIMIT, Task, Triple
from .textures import BoundSurface, Texture
from .trace import Counters, Trace

BATCH_LANES = 8192
"""Lanes run side by side: enough to make the cost of a NumPy call small, few enough to stay in cache."""
BATCH_BYTES = 1 << 28
"""Shared and local memory of one batch at most."""

GRID_WORKSPACE = 64
"""Bytes that blocks of a cooperative launch share to wait for one another."""


@dataclass(repr=False)
class EmuResult(Told):
    """One launch. `seconds` is the host's time for emulating it and says nothing about a GPU."""

    counters: Counters
    hazards: list[Hazard]
    seconds: float
    printed: str = ""
    """What printf wrote."""
    allowed: list[Hazard] = field(default_factory=list)
    """Hazards that a comment at their line allows: `// tilewright: allow(kind) reason`."""
    alone: str = ""
    """Why one process ran it although jobs= asks for more."""
    suspects: list[Hazard] = field(default_factory=list)
    """Uses of undefined values: hazards if the result depends on these (`run`'s `undefined`)."""

    def __str__(self) -> str:
        return "\n".join([str(self.counters), *map(str, self.hazards)] + ([self.printed] if self.printed else []))


@lru_cache(maxsize=64)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


@lru_cache(maxsize=64)
def decoded(ptx: str, entry: str, fine: bool = False, red_zones: bool = False) -> Code:
    try:
        with uncollected():
            return decode(_parsed(ptx), entry, fine, red_zones)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, TilewrightError):
            raise
        raise PtxError(
            f"the PTX of {entry!r} is not well formed ({type(error).__name__}: {error}). Assemble it with ptxas, which "
            "names the place."
        ) from error


STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel may declare with a size: the assembler refuses more on every architecture."""
LOCAL_BYTES = 512 * 1024
"""Local memory of a thread, on every architecture."""


def _check_launch(program: Code, grid: Triple, block: Triple, params: bytes, shared_bytes: int, gpu_name: str) -> None:
    arch = find_gpu(gpu_name).arch
    for name, value, most in (("grid", grid, (2**31 - 1, 65535, 65535)), ("block", block, (1024, 1024, 64))):
        if len(value) != 3 or any(not 0 < v <= m for v, m in zip(value, most, strict=False)):
            raise InvalidOperand(
                f"{name} {tuple(value)} is not within (1, 1, 1) and {most}"
                + (". Launch more blocks of fewer threads." if name == "block" else ".")
            )
    threads = block[0] * block[1] * block[2]
    if threads > arch.threads_per_block:
        raise ConfigRejected(f"a block of {threads} threads: {arch} allows {arch.threads_per_block}")
    for directive, least in (("maxntid", False), ("reqntid", True)):
        if text := program.entry.directives.get(directive):
            limit = int(np.prod([int(n) for n in text.split(",")]))
            if threads > limit or (least and threads != limit):
                raise ConfigRejected(
                    f"a block of {threads} threads, but {program.entry.name} was compiled for "
                    f"{'exactly' if least else 'at most'} {limit} (its __launch_bounds__)"
                )
    if program.static_shared > STATIC_SHARED and not program.red_zones:
        raise ConfigRejected(
            f"{program.static_shared} bytes of static shared memory: a kernel may declare {STATIC_SHARED}. Declare it "
            "`extern __shared__` and pass its size with the launch (shared_bytes, or --shared-bytes)"
        )
    if program.local_bytes > LOCAL_BYTES:
        raise ConfigRejected(f"{program.local_bytes} bytes of local memory a thread: a GPU gives {LOCAL_BYTES}")
    need = program.static_shared + shared_bytes
    if need > arch.shared_per_block and not program.red_zones:
        raise ConfigRejected(f"{need} bytes of shared memory a block: {arch} allows {arch.shared_per_block}")
    if len(params) != program.entry.parameter_bytes:
        raise InvalidOperand(
            f"{len(params)} bytes of parameters, but {program.entry.name} declares {program.entry.parameter_bytes}"
        )


def _variables(module: Module) -> list[Variable]:
    return [v for v in module.variables if v.space in ("global", "const") and not v.extern]


def find_variable(module: Module, name: str) -> Variable:
    """The variable in global or constant memory that C++ calls `name` (`table`, `ns::table`). Raises InvalidOperand."""
    mangled = re.compile(r"_ZN?.*?" + "L?".join(f"{len(part)}{re.escape(part)}" for part in name.split("::")) + "E?")
    variables = _variables(module)
    found = [v for v in variables if v.name == name] or [v for v in variables if mangled.fullmatch(v.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(v.name for v in found or variables) or "none"
    raise InvalidOperand(
        f"{name!r} is the name of {len(found)} variables in constant or global memory; the module has {names}. "
        "The compiler leaves out what no kernel of the file uses."
    )


def _place_variables(program: Code, memory: GlobalMemory, filled: Mapping[str, bytes]) -> dict[str, int]:
    """Module variables become buffers, fresh for each launch. `filled`: name -> what it holds instead."""
    places: dict[str, int] = {}
    variables = _variables(program.module)
    for variable in variables:
        data = filled.get(variable.name, variable.init)
        data = bytes(variable.size) if data is None else data
        places[variable.name] = memory.add(data, variable.name, read_only=variable.space == "const")
    for variable in variables:
        for offset, symbol, addend in variable.relocations:
            address = places.get(symbol, function_address(program.module, symbol))
            if address is not None:
                pointer = np.array([address + addend], np.uint64).view(np.uint8)
                memory.write(places[variable.name] + offset, pointer)
    return places


def _filled(module: Module, constants: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Variable's name in the PTX -> its bytes. Raises InvalidOperand for a size that is not the variable's."""
    filled = {}
    for name, array in constants.items():
        variable = find_variable(module, name)
        if array.nbytes != variable.size:
            raise InvalidOperand(
                f"constants[{name!r}] has {array.nbytes} bytes ({array.dtype.name} {array.shape}); the variable has "
                f"{variable.size}. Give all of it, in the type that the source declares."
            )
        filled[variable.name] = np.ascontiguousarray(array).tobytes()
    return filled


def run(
    ptx: str,
    entry: str,
    *,
    grid: Triple,
    block: Triple,
    params: bytes,
    memory: GlobalMemory,
    shared_bytes: int = 0,
    cluster: Triple | None = None,
    gpu: str = DEFAULT_GPU,
    hazards: str = "raise",
    limit: int | None = LIMIT,
    constants: Mapping[str, np.ndarray] | None = None,
    images: Mapping[int, Texture | BoundSurface] | None = None,
    progress: Callable[[int, int], None] | None = None,
    sources: Mapping[str, str] | None = None,
    order: Order | None = None,
    red_zones: bool = False,
    strict: bool = False,
    recorder: Recorder | None = None,
    jobs: int = 1,
    undefined: int | None = None,
) -> EmuResult:
    """Run one launch.

    params: the parameter buffer as the PTX lays it out (natural alignment); pointers are addresses in `memory`.
    shared_bytes: dynamic shared memory of a block. cluster: blocks of a cluster, where the kernel does not say.
    hazards: "raise" the first as EmulatorFault, or "collect" them all and go on as a GPU might. limit: instructions
    after which the launch counts as endless; those of blocks that run side by side are counted once. None: LIMIT for
    each batch of such blocks. constants: what a __constant__ or __device__ variable holds at the start, by its name.
    images: handle -> texture or surface.
    progress(done, all) is called with numbers of blocks, each second if nothing else has happened. sources: file
    name -> text, for the source lines in reports; files that can be read are found by themselves. order: another
    legal order of warps, blocks and completions than the usual one. red_zones: shared variables lie 256 bytes
    apart, so that an access past the end of one is out of bounds. strict: warnings are errors. recorder: is told
    what one block does. jobs: processes that may share the blocks; what comes of it is the same for any number (see
    jobs.py). undefined: the bits of values that are undefined (Machine.undefined).

    Raises PtxError, UnknownInstruction, InvalidOperand, ConfigRejected, EmulatorFault. Module variables are set up
    afresh for each launch.
    """
    started = time.perf_counter()
    program = decoded(ptx, entry, order is not None, red_zones)
    _check_launch(program, grid, block, params, shared_bytes, gpu)
    cluster = check_cluster(program.entry, grid, cluster, find_gpu(gpu))
    reporter = Reporter(hazards, Sources(sources), {} if order is None else {"order": str(order)}, strict=strict)
    trace = Trace(len(program.instructions), len(program.blocks))
    cooperates = program.cooperates
    symbols = _place_variables(program, memory, _filled(program.module, constants or {}))
    workspace = memory.add(np.zeros(GRID_WORKSPACE, np.uint8), "grid workspace") if cooperates else 0
    task = Task(
        ptx, entry, grid, block, params, symbols, shared_bytes, gpu,
        _side_by_side(program, grid, block, shared_bytes, cluster, find_gpu(gpu) if cooperates else None),
        limit, cluster, red_zones, strict, sources,
    )  # fmt: skip
    alone, done = "", 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(min(done * task.ctas, task.blocks), task.blocks)

    try:
        if jobs > 1:
            alone = why_alone(program, len(task.batches), {"order": order, "recorder": recorder})
            alone = alone or run_parts(task, memory, jobs, trace, reporter, told)
        if jobs == 1 or alone:
            done = 0
            with seldom_collected():
                machine = machine_for(task, memory, reporter, trace, images, workspace, order, recorder)
                machine.undefined = undefined
                machine.alive = None if progress is None else lambda: told(0)
                with machine.underflow.watch():
                    for first in task.batches:
                        machine.run(first)
                        told(1)
                    machine.finish()
                machine.take_apart()
                del machine
    finally:
        for address in (*symbols.values(), *([workspace] if workspace else [])):
            memory.release(address)
    emulated(time.perf_counter() - started)
    return EmuResult(
        trace.counters(program, task.blocks * task.threads, reporter.sources),
        reporter.hazards,
        time.perf_counter() - started,
        "".join(reporter.printed),
        reporter.allowed,
        alone,
        reporter.suspects,
    )


def _side_by_side(
    program: Code, grid: Triple, block: Triple, shared_bytes: int, cluster: Triple | None, waits_on: Gpu | None
) -> int:
    """Blocks of a batch: whole clusters, as many as BATCH_LANES and BATCH_BYTES allow. `waits_on`: the GPU that all
    blocks have to be on at once, as those of a cooperative launch wait for one another."""
    warps = -(-prod(block) // 32)
    together = prod(cluster) if cluster else 1
    each = program.static_shared + shared_bytes + warps * 32 * program.local_bytes
    most = max(together, min(BATCH_LANES // (warps * 32), BATCH_BYTES // max(each, 1)))
    if waits_on is not None:
        most = max(most, waits_on.sm_count * (waits_on.arch.warps_per_sm // warps))
    return min(prod(grid), max(1, most // together * together))


def machine_for(
    task: Task, memory: GlobalMemory, reporter: Reporter | None = None, trace: Trace | None = None,
    images: Mapping[int, Texture | BoundSurface] | None = None, grid_workspace: int = 0, order: Order | None = None,
    recorder: Recorder | None = None,
) -> Machine:  # fmt: skip
    """The machine of a launch; without a reporter it collects what it finds."""
    program = decoded(task.ptx, task.entry, order is not None, task.red_zones)
    reporter = reporter or Reporter("collect", Sources(task.sources), strict=task.strict)
    trace = trace or Trace(len(program.instructions), len(program.blocks))
    return Machine(program, task, memory, reporter, trace, images or {}, grid_workspace, order, recorder)
