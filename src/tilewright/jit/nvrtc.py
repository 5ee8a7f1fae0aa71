"""The NVRTC calls, through cuda.bindings. No driver is needed for any of them.

One compilation for a real architecture gives the cubin, the PTX it was made from, and ptxas's report in the log.
"""

from __future__ import annotations

import ctypes
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import CompileError, MissingDependency
from ..gpus import Resources
from . import workers
from .entry import NAME_LINE, ask
from .source import Source


@lru_cache(maxsize=1)
def bindings() -> Any:
    """The nvrtc module with its library loaded. Raises MissingDependency saying what to install."""
    try:
        from cuda.bindings import nvrtc

        _load_own_generation()
        nvrtc.nvrtcVersion()
    except Exception as error:
        raise MissingDependency(
            f"NVRTC could not be loaded ({type(error).__name__}: {error}). "
            "Install it with: pip install nvidia-cuda-nvrtc cuda-bindings"
        ) from error
    return nvrtc


@lru_cache(maxsize=1)
def version() -> str:
    """NVRTC's version as loaded, "major.minor"."""
    _, major, minor = bindings().nvrtcVersion()
    return f"{major}.{minor}"


WHEELS = {12: ("nvidia-cuda-nvrtc-cu12", "cuda_nvrtc"), 13: ("nvidia-cuda-nvrtc", "cu13")}
"""NVRTC's wheel and its folder in the package `nvidia`, by CUDA's generation."""


def _of_bindings_generation() -> list[Path]:
    """The part that NVRTC loads next to it, in each wheel of the generation that cuda.bindings are of.

    They say which generation is wanted: NVRTC 13 is always installed, and the extra `cu12` brings cuda.bindings 12.
    NVRTC's own file has the generation alone in its name; this one has the minor number too.
    """
    bindings = [file for folder in _folders_of("cuda") for file in folder.parent.glob("cuda_bindings-*.dist-info")]
    found = re.match(r"cuda_bindings-(\d+)\.", bindings[0].name) if len(bindings) == 1 else None
    if found is None or int(found[1]) not in WHEELS:
        return []
    pattern = f"{WHEELS[int(found[1])][1]}/lib/libnvrtc-builtins.so.{found[1]}.*"
    return [file for folder in _folders_of("nvidia") for file in folder.glob(pattern)]


@lru_cache(maxsize=1)
def installed() -> str:
    """The version of the wheel whose NVRTC will be loaded, "major.minor", found without loading it.

    "" unless there is exactly one. What `version` says may be another, where another copy is loaded: a key by this one
    finds what this one compiled, all the same.
    """
    beside = _of_bindings_generation()
    named = re.fullmatch(r"libnvrtc-builtins\.so\.(\d+\.\d+)", beside[0].name) if len(beside) == 1 else None
    return named[1] if named else ""


def _load_own_generation() -> None:
    """Load NVRTC 12 where cuda.bindings 12 are, which by themselves take the newest NVRTC that is installed."""
    for builtins in _of_bindings_generation():
        if builtins.name.startswith("libnvrtc-builtins.so.12."):
            ctypes.CDLL(str(builtins))
            ctypes.CDLL(str(builtins.with_name("libnvrtc.so.12")))


def _folders_of(package: str) -> list[Path]:
    try:
        spec = find_spec(package)
    except ValueError:  # somebody made a module of that name up
        return []
    return [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []


def _encoded(text: str) -> bytes:
    """UTF-8 whatever the locale; a file's name that is not text there keeps its bytes."""
    return text.encode("utf-8", "surrogateescape")


def _bytes(program: Any, size: Any, get: Any) -> bytes:
    """Return what `get` writes, with its terminating zero where it has one."""
    status, length = size(program)
    if int(status) or length == 0:
        return b""
    buffer = bytes(bytearray(length + 1))  # written in place: never a bytes object that Python may share
    get(program, buffer)
    return buffer[:length]


def _text(program: Any, size: Any, get: Any) -> str:
    return _bytes(program, size, get).rstrip(b"\0").decode(errors="replace")


def _of_source(log: str) -> str:
    """A log without what is said of the lines that ask for a kernel's name, which nobody wrote; warnings come last."""
    reports = re.split(r"\n\s*\n", log)  # blank lines part them
    kept = [report for report in reports if not report.lstrip().startswith(NAME_LINE)]
    if len(kept) < len(reports) and re.match(r"\d+ errors? detected", kept[-1]):
        kept.pop()  # the number is not that of what is left
    kept.sort(key=lambda report: bool(re.match(r".*: (?:warning|remark) #", report)))
    return "\n\n".join(kept) or log


def build(source: Source, arch: str, options: Sequence[str]) -> tuple[bytes, str, str]:
    """(cubin, PTX, log) of a source. Raises CompileError with the compiler's log.

    A stranger's source is compiled in another process: NVRTC dies of some, and must not take its caller along.
    """
    if source.apart:
        return _build_apart(replace(source, apart=False), arch, tuple(options))
    nvrtc = bindings()
    _require_target(arch)
    names = [_encoded(name) for name, _ in source.headers]
    texts = [_encoded(text) for _, text in source.headers]
    text = ask(source.text, source.expression) if source.expression else source.text
    name = _encoded(f"./{source.name}" if source.name.startswith("-") else source.name)  # NVRTC takes -x for an option
    status, program = nvrtc.nvrtcCreateProgram(_encoded(text), name, len(names), texts, names)
    if int(status):
        raise CompileError(f"NVRTC could not create a program for {source.name}: {status!r}")
    try:
        arguments = [f"--gpu-architecture={arch}".encode(), *(_encoded(option) for option in options)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).strip()
        if int(status):
            raise CompileError(f"{source.name} does not compile for {arch} ({status.name}):\n{_of_source(log)}", log)
        cubin = _bytes(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, ptx, log


SERVER = __name__
"""The module whose `serve` another process runs."""


def _build_apart(*question: Any) -> tuple[bytes, str, str]:
    """Do what `build` does with the same arguments, in a worker; here where no worker can be had."""
    ready = False
    try:
        with workers.borrow(SERVER, 1) as (worker,):
            worker.tell(question)
            ready = worker.hear()
            answer = worker.hear()
    except (OSError, EOFError):
        if ready:
            raise _died(question[0].name, question[1], worker.process.returncode) from None
        return build(*question)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _died(name: str, arch: str, status: int) -> CompileError:
    try:
        how = f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        how = f"ended with status {status}"
    return CompileError(
        f"{name} does not compile for {arch}: NVRTC {version()} itself {how}, without a message. That is a defect of "
        f"the compiler. It ran in a process of its own, so that this one goes on. Try another release "
        f"(pip install 'nvidia-cuda-nvrtc!={version()}.*'), or emulate the PTX that `nvcc -ptx` makes. To find the "
        f"lines that it dies of, omit parts of the source, inline PTX first."
    )


def serve() -> None:
    """Compile for the process that started this one, until it closes the pipe."""
    next_question, back = workers.questions()
    while True:
        question = next_question()
        bindings()
        workers.say(back, True)  # from here on it is NVRTC that ends this process
        try:
            workers.say(back, build(*question))
        except Exception as error:
            workers.say(back, error)


def _require_target(arch: str) -> None:
    """Raise CompileError for an architecture ("sm_90a", "compute_90a") that the loaded NVRTC does not know."""
    _, targets = bindings().nvrtcGetSupportedArchs()
    number = re.fullmatch(r"(?:sm|compute)_(\d+)[af]?", arch)
    if number and int(number[1]) not in targets:
        known = ", ".join(f"sm_{target}" for target in targets)
        raise CompileError(f"NVRTC {version()} does not compile for {arch}, but for {known}. Install a newer one.")


def parse_resources(log: str, entry: str) -> Resources:
    """The numbers of `entry` in ptxas's verbose report. Raises CompileError if the report lacks them."""
    numbers: dict[str, dict[str, int]] = {}
    current = ""
    for line in log.splitlines():
        if match := re.search(r"(?:Compiling entry function|Function properties for) '?([\w$]+)'?", line):
            current = match[1]
        found = numbers.setdefault(current, {})
        for key, pattern in (
            ("stack_bytes", r"(\d+) bytes stack frame"),
            ("spill_store_bytes", r"(\d+) bytes spill stores"),
            ("spill_load_bytes", r"(\d+) bytes spill loads"),
            ("registers", r"Used (\d+) registers"),
            ("barriers", r"used (\d+) barriers"),
            ("shared_bytes", r"(\d+) bytes smem"),
        ):
            if match := re.search(pattern, line):
                found[key] = int(match[1])
    values = numbers.get(entry, {})
    if "registers" not in values:
        raise CompileError(f"ptxas reported no registers for entry {entry!r}; its report:\n{log}", log)
    return Resources(**{name: values.get(name, 0) for name in Resources.__dataclass_fields__})
