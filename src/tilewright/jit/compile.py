"""From source to a compiled kernel: memory, then disk, then NVRTC."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ..errors import CompileError
from ..gpus import Resources
from . import limits, nvrtc
from .cache import ENVIRONMENT_VARIABLE, KernelCache, default_folder
from .launch import current_executor
from .limits import Recent
from .source import Constant, Library, Source, gather, render

# -lineinfo leaves the machine code as it is; it lets the emulator and profilers name lines of the source.
# --no-cache: where a driver is installed NVRTC keeps a cache of its own, and what it takes from there has no report.
BASE_OPTIONS = ("--std=c++17", "-default-device", "-lineinfo", "--no-cache", "--ptxas-options=-v")


@dataclass(frozen=True)
class Machine:
    """What ptxas makes of the PTX."""

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
    parts = [source.text, source.name, source.entry, arch, version, *options]
    parts += [part for header in source.headers for part in header]
    parts += [library.identity for library in libraries]
    parts += [source.expression] if source.expression else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_in_memory: Recent[tuple[str, str], CompiledKernel] = Recent(limits.kernels)
_locks: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""A lock for each kernel that is being had now: it goes with the last thread that holds or awaits it."""
_guard = threading.Lock()
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
    all_options = (*BASE_OPTIONS, *options)
    version = version or nvrtc.installed() or nvrtc.version()
    key = cache_key(source, target, all_options, version, libraries)
    cache = kernel_cache()
    place = (str(cache.folder), key)
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if (known := _in_memory.get(place)) is not None:
            return known
        start = time.perf_counter()
        whole = target == arch
        files = cache.load(key)
        if files is None and not whole:  # all of the kernel, whose PTX is the same, may be there
            files = cache.load(cache_key(source, arch, all_options, version, libraries))
        needed = {"kernel.ptx", "kernel.log", *(["kernel.cubin"] if whole else [])}
        needed |= {"kernel.entry"} if source.expression else set()
        from_cache = files is not None and needed <= files.keys()
        if files is None or not from_cache:
            if (loaded := nvrtc.version()) != version:
                kernel = _compile(source, arch, target, options, libraries, loaded)
                _in_memory.put(place, kernel)
                return kernel
            folders = [f"--include-path={folder}" for library in libraries for folder in library.folders]
            cubin, ptx, log, entry = nvrtc.build(source, target, (*all_options, *folders))
            files = {"kernel.ptx": ptx.encode(), "kernel.log": log.encode()}
            if source.expression:
                files["kernel.entry"] = entry.encode()
            if whole:
                files["kernel.cubin"] = cubin
                nvrtc.parse_resources(log, entry)  # an entry without a report must not be stored
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
        )
        _in_memory.put(place, kernel)
        return kernel


def _given(machine: Machine) -> Machine:
    return machine


def _later(source: Source, arch: str, options: Sequence[str], libraries: Sequence[Library]) -> Machine:
    return _compile(source, arch, arch, options, libraries).machine()


def compile_source(
    text: str,
    *,
    entry: str,
    arch: str = "sm_90a",
    name: str = "kernel.cu",
    include: Sequence[str | Path] = (),
    options: Sequence[str] = (),
) -> CompiledKernel:
    """Compile a person's own CUDA C++, as a file of it would be by nvcc.

    `entry` is the kernel as C++ names it (`scale`, `ns::scale`, `scale<float, 4>`), or its name in the PTX; the
    result's `entry` is the latter. `include` names folders for quoted includes, before which the package's own device
    code is searched last. CUDA's headers come from installed wheels, for the C library's there are stand-ins
    (jit/wheels.py). Where that does not compile, it is tried without the host's part (jit/host_code.py).
    Raises CompileError with the compiler's log, or when the source has no such entry.
    """
    from .host_code import device_part
    from .source import CUDA_ROOT
    from .wheels import IMPLICIT, is_of_cuda, missing_header, needs_toolkit, standard_headers, toolkit

    folders = [*(Path(folder) for folder in include), CUDA_ROOT]
    headers = gather(text, folders, leave=True)
    libraries = toolkit() if needs_toolkit(text, headers) else ()
    expression = "" if entry.startswith("_Z") else entry

    def compiled(text: str, headers: tuple[tuple[str, str], ...]) -> CompiledKernel:
        source = Source(text, name, entry, (*standard_headers(), *headers), expression)
        return compile_unit(source, arch, (f"--pre-include={IMPLICIT}", "--device-int128", *options), libraries)

    def attempts() -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
        """The file as it is; then without its host part, as long as that makes a difference."""
        yield text, headers
        bodies, last = [body for _, body in headers], (text, headers)
        while True:
            missing = missing_header(failures[-1].log)
            # not one in quotes, which may be part of the kernel; of CUDA's only what may be the host's
            in_brackets = any(f"<{missing}>" in body for body in (text, *bodies))
            if missing is not None and in_brackets and (len(failures) > 1 or not is_of_cuda(missing)):
                dropped[missing] = None
            part = device_part(text, bodies, dropped)
            this = part, tuple((header, device_part(body, bodies, dropped)) for header, body in headers)
            if this == last:
                return
            yield this
            last = this

    failures: list[CompileError] = []
    dropped: dict[str, None] = {}
    for attempt in attempts():
        try:
            return compiled(*attempt)
        except CompileError as error:
            failures.append(error)
    raise _explained(failures[-1], name, entry, text, tuple(dropped)) from failures[-1]


def _explained(error: CompileError, name: str, entry: str, text: str, dropped: Sequence[str]) -> CompileError:
    """The error with what to try about it. `dropped`: headers that were not there and were done without."""
    from .wheels import advice

    refused, version = str(error), nvrtc.version()
    errors = [line for line in error.log.splitlines() if ": error:" in line]
    only_of_the_name = bool(errors) and all(nvrtc.NAME_LINE in line for line in errors)
    if only_of_the_name and "overloaded" in error.log:
        refused = f"{name}: {entry!r} is the name of more than one kernel."
    elif only_of_the_name or "reported no registers" in refused or "has no kernel named" in refused:
        return CompileError(
            f"{name} has no kernel {entry!r}{_others(text)}. Give its name as C++ knows it, a template's with its "
            f"arguments (scale<float, 4>).", error.log
        )  # fmt: skip
    hints = [hint for header in dropped if (hint := advice(f'cannot open source file "{header}"', version))]
    hints += [hint for hint in [advice(error.log, version)] if hint]
    return CompileError("\n".join([refused, *dict.fromkeys(hints)]), error.log)


def _others(text: str) -> str:
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", text)
    names = re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", plain)
    return f"; it has {', '.join(dict.fromkeys(names))}" if names else ", nor any other"


def compile_rung(
    include: str | Sequence[str], constants: Mapping[str, Constant], entry: str, arch: str,
    libraries: Sequence[Library] = (), generated: Mapping[str, str] | None = None,
) -> CompiledKernel:  # fmt: skip
    """Compile a rung's file or files with its constants and generated includes (see source.render).

    A kernel that was asked for before is found by these arguments: no source is rendered or hashed again.
    """
    executor = current_executor()
    key = (
        include if isinstance(include, str) else tuple(include), entry, arch,
        tuple((name, type(value), value) for name, value in constants.items()),  # 1 is not true in a source
        tuple(library.identity for library in libraries), tuple((generated or {}).items()),
        executor is not None and executor.runs_ptx, os.environ.get(ENVIRONMENT_VARIABLE, ""),
    )  # fmt: skip
    kernel = _by_arguments.get(key)
    if kernel is None:
        kernel = compile_unit(render(include, constants, entry, generated or {}), arch, libraries=libraries)
        _by_arguments.put(key, kernel)
    return kernel
