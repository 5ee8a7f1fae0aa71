"""From source to a compiled kernel: memory, then disk, then NVRTC."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ..errors import CompileError
from ..gpus import Resources
from . import limits, nvrtc
from .cache import ENVIRONMENT_VARIABLE, KernelCache, default_folder
from .entry import ParameterType, answer, types_of
from .launch import current_executor
from .limits import Recent
from .locks import lock
from .source import Constant, Library, Source, render

# -lineinfo leaves the machine code as it is; it lets the emulator and profilers name lines of the source.
# --no-cache: where a driver is installed NVRTC keeps a cache of its own, and what it takes from there has no report.
BASE_OPTIONS = ("--std=c++17", "-default-device", "-lineinfo", "--no-cache", "--ptxas-options=-v")


@dataclass(frozen=True)
class Machine:
    """The machine code that ptxas makes of the PTX."""

    cubin: bytes
    log: str
    resources: Resources


@dataclass(frozen=True)
class CompiledKernel:
    """One entry, compiled for one architecture; on the emulator to PTX only, until the machine's code is asked for."""

    entry: str
    arch: str
    ptx: str = field(repr=False)
    source: Source = field(repr=False)
    key: str
    seconds: float
    """What getting it took: compiling, or loading from the cache."""
    from_cache: bool
    machine: Callable[[], Machine] = field(repr=False, compare=False)
    """Gets what the properties below give."""
    types: tuple[ParameterType, ...] | None = None
    """The types of the parameters; None where the kernel was not asked for by its C++ name."""

    @property
    def cubin(self) -> bytes:
        return self.machine().cubin

    @property
    def log(self) -> str:
        """The compiler's, with ptxas's report."""
        return self.machine().log

    @property
    def resources(self) -> Resources:
        return self.machine().resources


def cache_key(
    source: Source, arch: str, options: Sequence[str], version: str, libraries: Sequence[Library] = ()
) -> str:
    """Hash of the text, every included file, options, target and the compiler's version: no path, no pointer.

    Of libraries their identities, in the order in which they are searched.
    """
    parts: list[str] = [source.text, source.name, source.entry, arch, version, *options]
    parts += [part for header in source.headers for part in header]
    parts += [library.identity for library in libraries]
    parts += [source.expression] if source.expression else []
    return _digest(tuple(parts))


@lru_cache(maxsize=64)
def _digest(parts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_in_memory: Recent[tuple[str, str], CompiledKernel] = Recent(limits.kernels)
_locks: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""A lock for each kernel that is being had now: it goes with the last thread that holds or awaits it."""
_guard = lock()
_by_arguments: Recent[tuple[Any, ...], CompiledKernel] = Recent(limits.kernels)
"""What compile_rung was asked for."""


@lru_cache(maxsize=8)
def _cache_at(folder: Path) -> KernelCache:
    return KernelCache(folder)


def kernel_cache() -> KernelCache:
    """The cache at the folder in force now."""
    return _cache_at(default_folder())


def compile_unit(
    source: Source, arch: str, options: Sequence[str] = (), libraries: Sequence[Library] = ()
) -> CompiledKernel:
    """Compile `source` for `arch`, or take it from the cache. Raises CompileError with the compiler's log.

    Where the executor in force runs PTX, machine code is not made, which takes half of a compilation or more.
    """
    executor = current_executor()
    if executor is not None and executor.runs_ptx:
        kernel = _compile(source, arch, arch.replace("sm_", "compute_", 1), options, libraries)
        if f".entry {kernel.entry}(" in kernel.ptx:
            return kernel
    return _compile(source, arch, arch, options, libraries)


def _compile(
    source: Source, arch: str, target: str, options: Sequence[str], libraries: Sequence[Library], version: str = ""
) -> CompiledKernel:
    """`target`: the architecture, for all of a kernel, or its virtual one ("compute_90a"), for PTX only.

    `version`: of NVRTC; by default that of its wheel, so that a cached kernel is had without loading NVRTC.
    """
    own_standard = any(option.startswith(("--std", "-std")) for option in options)
    base = tuple(option for option in BASE_OPTIONS if not (own_standard and option.startswith("--std")))
    all_options = (*base, *options)
    version = version or nvrtc.installed() or nvrtc.version()
    key = cache_key(source, target, all_options, version, libraries)
    cache = kernel_cache()
    place = (str(cache.folder), key)
    with _guard:
        own = _locks.setdefault(key, lock())
    with own:
        if (known := _in_memory.get(place)) is not None:
            return known
        start = time.perf_counter()
        whole = target == arch
        files = _cached(cache, key, source, whole)
        if files is None and not whole:  # all of the kernel, whose PTX is the same, may be there
            files = _cached(cache, cache_key(source, arch, all_options, version, libraries), source, whole)
        from_cache = files is not None
        if files is None:
            if (loaded := nvrtc.version()) != version:
                kernel = _compile(source, arch, target, options, libraries, loaded)
                _in_memory.put(place, kernel)
                return kernel
            files = _built(source, target, all_options, libraries, whole)
            cache.store(key, files)
        entry = files["kernel.entry"].decode() if "kernel.entry" in files else source.entry
        if whole:
            log = files["kernel.log"].decode()
            made = Machine(files["kernel.cubin"], log, nvrtc.parse_resources(log, entry))
            machine: Callable[[], Machine] = partial(_given, made)
        else:
            machine = partial(_later, source, arch, options, libraries)
        kernel = CompiledKernel(
            entry=entry,
            arch=arch,
            ptx=files["kernel.ptx"].decode(),
            source=source,
            key=key,
            seconds=time.perf_counter() - start,
            from_cache=from_cache,
            machine=machine,
            types=types_of(files["kernel.types"].decode()) if source.expression else None,
        )
        _in_memory.put(place, kernel)
        return kernel


def _cached(cache: KernelCache, key: str, source: Source, whole: bool) -> dict[str, bytes] | None:
    """The files of an entry; None where it is not there, or lacks one that is needed."""
    needed = {"kernel.ptx", "kernel.log", *(["kernel.cubin"] if whole else [])}
    needed |= {"kernel.entry", "kernel.types"} if source.expression else set()
    files = cache.load(key)
    return files if files is not None and needed <= files.keys() else None


def _built(
    source: Source, target: str, options: Sequence[str], libraries: Sequence[Library], whole: bool
) -> dict[str, bytes]:
    """The files of a new entry. Raises CompileError with the log."""
    folders = [f"--include-path={folder}" for library in libraries for folder in library.folders]
    cubin, ptx, log = nvrtc.build(source, target, (*options, *folders))
    entry, files = source.entry, {"kernel.log": log.encode()}
    if source.expression:
        ptx, entry, types = answer(ptx)
        if not entry:
            raise CompileError(f"{source.name} has no kernel named {source.expression!r}", log)
        files |= {"kernel.entry": entry.encode(), "kernel.types": types.encode()}
    files["kernel.ptx"] = ptx.encode()
    if whole:
        files["kernel.cubin"] = cubin
        nvrtc.parse_resources(log, entry)  # an entry without a report must not be stored
    return files


def _given(machine: Machine) -> Machine:
    return machine


def _later(source: Source, arch: str, options: Sequence[str], libraries: Sequence[Library]) -> Machine:
    return _compile(source, arch, arch, options, libraries).machine()


def circumstances() -> tuple[bool, str]:
    """Return what decides a kernel besides what is compiled: whether PTX is enough here, and the cache's folder."""
    executor = current_executor()
    return executor is not None and executor.runs_ptx, os.environ.get(ENVIRONMENT_VARIABLE, "")


def is_cached(
    include: str | Sequence[str], constants: Mapping[str, Constant], entry: str, arch: str,
    generated: Mapping[str, str],
) -> bool:  # fmt: skip
    """Return whether the cache has all of a rung's kernel: what `compile_rung` would not compile."""
    source = render(include, constants, entry, generated)
    key = cache_key(source, arch, BASE_OPTIONS, nvrtc.installed() or nvrtc.version())
    return _cached(kernel_cache(), key, source, True) is not None


def compile_rung(
    include: str | Sequence[str], constants: Mapping[str, Constant], entry: str, arch: str,
    libraries: Sequence[Library] = (), generated: Mapping[str, str] | None = None,
) -> CompiledKernel:  # fmt: skip
    """Compile a rung's file or files with its constants and generated includes (see source.render).

    A kernel that was asked for before is found by these arguments: no source is rendered or hashed again.
    """
    key = (
        include if isinstance(include, str) else tuple(include), entry, arch,
        tuple((name, type(value), value) for name, value in constants.items()),  # 1 is not true in a source
        tuple(library.identity for library in libraries), tuple((generated or {}).items()), circumstances(),
    )  # fmt: skip
    kernel = _by_arguments.get(key)
    if kernel is None:
        kernel = compile_unit(render(include, constants, entry, generated or {}), arch, libraries=libraries)
        _by_arguments.put(key, kernel)
    return kernel
