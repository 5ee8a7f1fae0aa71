"""Run a kernel on the emulator: `run` on PTX and packed parameters, `emulate` on a source and NumPy arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigRejected, InvalidOperand, PtxError, TilewrightError
from ..gpus import DEFAULT_GPU, find_gpu
from ..jit.tensor_map import TensorMap
from . import tensor_maps
from .arguments import parse_argument, scalar_bytes
from .clusters import check_cluster
from .hazards import Hazard, Reporter, Sources
from .link import function_address
from .machine import Machine
from .memory import GlobalMemory
from .program import Program, decode
from .ptx import Module, Special, parse
from .trace import Counters, Trace

BATCH_LANES = 8192
"""Lanes run side by side: enough to make the cost of a NumPy call small, few enough to stay in cache."""
BATCH_BYTES = 1 << 28
"""Shared and local memory of one batch at most."""

LIMIT = 10**8
"""Instructions that blocks running side by side may take together; on the emulator that is most of an hour."""
GRID_WORKSPACE = 64
"""Bytes that blocks of a cooperative launch share to wait for one another."""
Triple = tuple[int, int, int]


@dataclass
class EmuResult:
    """One launch. `seconds` is the host's time for emulating it and says nothing about a GPU."""

    counters: Counters
    hazards: list[Hazard]
    seconds: float
    printed: str = ""
    """What printf wrote."""


@lru_cache(maxsize=64)
def _parsed(ptx: str) -> Module:
    return parse(ptx)


@lru_cache(maxsize=64)
def _decoded(ptx: str, entry: str) -> Program:
    try:
        return decode(_parsed(ptx), entry)
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


def _check_launch(
    program: Program, grid: Triple, block: Triple, params: bytes, shared_bytes: int, gpu_name: str
) -> None:
    arch = find_gpu(gpu_name).arch
    for name, value, most in (("grid", grid, (2**31 - 1, 65535, 65535)), ("block", block, (1024, 1024, 64))):
        if len(value) != 3 or any(not 0 < v <= m for v, m in zip(value, most, strict=False)):
            raise InvalidOperand(f"{name} {tuple(value)} is not within (1, 1, 1) and {most}")
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
    if program.static_shared > STATIC_SHARED:
        raise ConfigRejected(
            f"{program.static_shared} bytes of static shared memory: a kernel may declare {STATIC_SHARED}. Declare it "
            "`extern __shared__` and pass its size with the launch (shared_bytes, or --shared-bytes)"
        )
    if program.local_bytes > LOCAL_BYTES:
        raise ConfigRejected(f"{program.local_bytes} bytes of local memory a thread: a GPU gives {LOCAL_BYTES}")
    need = program.static_shared + shared_bytes
    if need > arch.shared_per_block:
        raise ConfigRejected(f"{need} bytes of shared memory a block: {arch} allows {arch.shared_per_block}")
    if len(params) != program.entry.parameter_bytes:
        raise InvalidOperand(
            f"{len(params)} bytes of parameters, but {program.entry.name} declares {program.entry.parameter_bytes}"
        )


def _place_variables(program: Program, memory: GlobalMemory) -> dict[str, int]:
    """Module variables become buffers, fresh for each launch."""
    places: dict[str, int] = {}
    variables = [v for v in program.module.variables if v.space in ("global", "const") and not v.extern]
    for variable in variables:
        data = variable.init if variable.init is not None else bytes(variable.size)
        places[variable.name] = memory.add(data, variable.name, read_only=variable.space == "const")
    for variable in variables:
        for offset, symbol, addend in variable.relocations:
            address = places.get(symbol, function_address(program.module, symbol))
            if address is not None:
                pointer = np.array([address + addend], np.uint64).view(np.uint8)
                memory.write(places[variable.name] + offset, pointer)
    return places


def _cooperates(program: Program) -> bool:
    """Whether its blocks synchronise as a grid: they ask for the workspace of that."""
    names = (operand.name for i in program.instructions for operand in i.operands if isinstance(operand, Special))
    return any(name.startswith("%envreg") for name in names)


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
    limit: int = LIMIT,
    progress: Callable[[int, int], None] | None = None,
    sources: Mapping[str, str] | None = None,
) -> EmuResult:
    """Run one launch.

    params: the parameter buffer as the PTX lays it out (natural alignment); pointers are addresses in `memory`.
    shared_bytes: dynamic shared memory of a block. cluster: blocks of a cluster, where the kernel does not say.
    hazards: "raise" the first as EmulatorFault, or "collect" them all
    and go on as a GPU might. limit: instructions after which a batch of blocks counts as endless.
    progress(done, all) is called with numbers of blocks. sources: file name -> text, for the source lines in reports;
    files that can be read are found by themselves.

    Raises PtxError, UnknownInstruction, InvalidOperand, ConfigRejected, EmulatorFault. Module variables are set up
    afresh for each launch.
    """
    started = time.perf_counter()
    program = _decoded(ptx, entry)
    _check_launch(program, grid, block, params, shared_bytes, gpu)
    cluster = check_cluster(program.entry, grid, cluster)
    together = cluster[0] * cluster[1] * cluster[2] if cluster else 1
    reporter = Reporter(hazards, Sources(sources))
    trace = Trace(len(program.instructions), len(program.blocks))
    threads = block[0] * block[1] * block[2]
    warps = -(-threads // 32)
    count = grid[0] * grid[1] * grid[2]
    each = program.static_shared + shared_bytes + warps * 32 * program.local_bytes
    most = max(together, min(BATCH_LANES // (warps * 32), BATCH_BYTES // max(each, 1)))
    cooperates = _cooperates(program)
    if cooperates:  # its blocks wait for one another, so all of them have to be there
        most = max(most, find_gpu(gpu).sm_count * (find_gpu(gpu).arch.warps_per_sm // warps))
    ctas = min(count, max(1, most // together * together))
    symbols = _place_variables(program, memory)
    workspace = memory.add(np.zeros(GRID_WORKSPACE, np.uint8), "grid workspace") if cooperates else 0
    try:
        machine = Machine(
            program,
            grid=grid,
            block=block,
            params=params,
            memory=memory,
            symbols=symbols,
            shared_bytes=shared_bytes,
            gpu=find_gpu(gpu),
            reporter=reporter,
            trace=trace,
            ctas=ctas,
            limit=limit,
            cluster=cluster,
            grid_workspace=workspace,
        )
        with machine.underflow.watch():
            for first in range(0, count, ctas):
                machine.run(first)
                if progress is not None:
                    progress(min(first + ctas, count), count)
    finally:
        for address in (*symbols.values(), *([workspace] if workspace else [])):
            memory.release(address)
    return EmuResult(
        trace.counters(program, count * threads, reporter.sources),
        reporter.hazards,
        time.perf_counter() - started,
        "".join(reporter.printed),
    )


@dataclass
class EmulateResult:
    """What a launch left: `arrays`, one for each buffer argument in order, and what `run` reports of it."""

    arrays: list[np.ndarray]
    counters: Counters
    hazards: list[Hazard]
    seconds: float
    printed: str = ""


def _triple(value: int | Sequence[int], what: str) -> Triple:
    try:
        sizes = tuple(index(v) for v in value) if isinstance(value, Sequence | np.ndarray) else (index(value),)
    except TypeError as error:
        raise InvalidOperand(f"{what} {value!r} is not one to three whole numbers") from error
    if not 1 <= len(sizes) <= 3:
        raise InvalidOperand(f"{what} {value!r} has {len(sizes)} sizes; give one to three")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def emulate(
    source_or_ptx: str | Path,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    gpu: str = DEFAULT_GPU,
    shared_bytes: int = 0,
    cluster: int | Sequence[int] | None = None,
    include: Sequence[str | Path] = (),
    hazards: str = "raise",
    seed: int = 0,
    limit: int = LIMIT,
    progress: Callable[[int, int], None] | None = None,
) -> EmulateResult:
    """Run one kernel on NumPy arrays.

    source_or_ptx: CUDA C++ or PTX text, or the path of a file of either. entry: the kernel's name, as C++ knows it
    (`scale<float>`) or as the PTX does. grid, block: one to three sizes. args, one a kernel parameter: NumPy arrays
    (device buffers; the caller's stay as they are), numbers, or strings such as "f32[1024]=random", "f32[4,8]=nan" and
    "i32=1024" (see emu/arguments.py), and TensorMap for a CUtensorMap parameter: one made of an array (TensorMap.of)
    is over that array's buffer, which is a buffer argument of its own unless an earlier argument is the same array.
    cluster: blocks of a cluster, one to three sizes, where the kernel's __cluster_dims__ does not say.
    A string's bf16 buffers come back as uint16. include: folders for quoted includes. seed: of "random".
    limit: as for run.

    Raises CompileError, PtxError, UnknownInstruction, InvalidOperand, ConfigRejected, and EmulatorFault unless
    hazards="collect".
    """
    for told, value, kinds, wanted in (
        ("source_or_ptx", source_or_ptx, (str, Path), "text, or the path of a file"),
        ("entry", entry, str, "the kernel's name"),
        ("args", args, (list, tuple), "a list, one for each parameter of the kernel"),
        ("include", include, (list, tuple), "a list of folders"),
    ):
        if not isinstance(value, kinds):
            raise InvalidOperand(f"{told} is {value!r:.60}; pass {wanted}.")
    called = entry
    text, name, beside = str(source_or_ptx), "kernel.cu", []
    if isinstance(source_or_ptx, Path) or not ("{" in text or "\n" in text):  # a source has at least one brace
        path = Path(source_or_ptx)
        try:
            text, name, beside = path.read_text(encoding="utf-8"), str(path), [path.parent]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOperand(
                f"{path} could not be read as a source ({error}). Give the path of a text file in UTF-8."
            ) from error
    sources: dict[str, str] = {}
    if name.endswith(".ptx") or (".version" in text and ".address_size" in text):
        ptx = text
    else:
        from ..jit import compile_source

        folders = [*beside, *include]
        kernel = compile_source(text, entry=entry, arch=find_gpu(gpu).arch.name, name=name, include=folders)
        ptx, entry = kernel.ptx, kernel.entry
        sources = {**dict(kernel.source.headers), name: text}
    program = _decoded(ptx, entry)
    random = np.random.default_rng(seed)
    given = [value if isinstance(value, TensorMap) else parse_argument(value, random) for value in args]
    declared = program.entry.parameters
    if len(given) != len(declared):
        types = ", ".join(f".{p.kind}" if p.kind else f"{p.size} bytes" for p in declared) or "none"
        raise InvalidOperand(
            f"{len(given)} arguments, but {called} takes {len(declared)} ({types}). Give one for each, in order: "
            "f32[1024]=random for a pointer (.u64), i32=1024 for a number."
        )
    memory = GlobalMemory()
    params = bytearray(program.entry.parameter_bytes)
    buffers: list[tuple[int, np.ndarray]] = []
    shared_by: dict[int, int] = {}
    for number, (value, argument, parameter) in enumerate(zip(args, given, declared, strict=True)):
        if isinstance(argument, TensorMap):
            if parameter.size != tensor_maps.BYTES:
                raise InvalidOperand(
                    f"argument {number} is a TensorMap; the parameter has {parameter.size} bytes, where a "
                    "`const __grid_constant__ CUtensorMap` has 128"
                )
            if argument.array is not None:
                if id(argument.array) not in shared_by:
                    address = memory.add(argument.array, f"argument {number}")
                    shared_by[id(argument.array)] = address
                    buffers.append((address, np.ascontiguousarray(argument.array)))
                argument = argument.at(shared_by[id(argument.array)])
            data = tensor_maps.pack(argument)
        elif argument.array is not None:
            if parameter.size != 8:
                raise InvalidOperand(f"argument {number} ({argument.text}) is a buffer; the parameter is no pointer")
            address = memory.add(argument.array, f"argument {number}")
            shared_by[id(value)] = address
            buffers.append((address, argument.array))
            data = address.to_bytes(8, "little")
        else:
            data = scalar_bytes(argument, parameter.size, number, parameter.kind)
        params[parameter.offset : parameter.offset + parameter.size] = data
    result = run(
        ptx,
        entry,
        grid=_triple(grid, "grid"),
        block=_triple(block, "block"),
        params=bytes(params),
        memory=memory,
        shared_bytes=shared_bytes,
        cluster=None if cluster is None else _triple(cluster, "cluster"),
        gpu=gpu,
        hazards=hazards,
        limit=limit,
        progress=progress,
        sources=sources,
    )
    arrays = [memory.read(address, a.nbytes).view(a.dtype).reshape(a.shape) for address, a in buffers]
    return EmulateResult(arrays, result.counters, result.hazards, result.seconds, result.printed)
