"""A person's own CUDA C++ file, compiled for a kernel of it as nvcc would compile it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ..errors import CompileError
from . import nvrtc, wheels
from .compile import CompiledKernel, compile_unit
from .entry import NAME_LINE
from .host_code import BRING_COMPLEX, BRING_HALF, COMPLEX, HALVES, HOST_HEADERS, device_part, is_program
from .source import CUDA_ROOT, Library, Source, gather

Headers = tuple[tuple[str, str], ...]

_BROUGHT = (
    (BRING_HALF, "cuda_bf16.h", re.compile(r"\bhalf2?\b|\b__half|\b__nv_bfloat16"), HALVES),
    (BRING_COMPLEX, "cuComplex.h", re.compile(r"\bcu(?:fft|Float|fftDouble|Double)?(?:Complex|Real)\b"), COMPLEX),
)
"""What headers of the host's libraries include that kernels use: (headers, what it needs, its names, text)."""
ROUNDS = 6
"""Compilations of a file whose host part is found by its errors."""
_ERROR = re.compile(r"^(.+?)\((\d+)\): (?:catastrophic )?error", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t]+\n")
"""A line that blanks keep from being continued: for nvcc's host compiler it is."""
_NOT_OF_STD = re.compile(r'namespace "std" has no member "(\w+)"')
_LAMBDA = re.compile(r"(?<=\])\s*(?:__(?:host|device)__\s*)+(?=[({])")
"""Where a lambda says that it runs: nvcc takes that by an option which run-time compilation lacks, and needs not."""
_CONSTEVAL = re.compile(r"\b__host__(?=(?:\s+(?:static|inline|__device__))*\s+consteval\b)")
"""Of a function that the compiler itself runs, wherever it says it belongs."""
_FIXED_WIDTH = re.compile(r"\bu?int(?:8|16|32|64)_t\b|\bUINT(?:8|16|32|64)_MAX\b")
_OF_SYSTEM = re.compile(r"\b__(?:linux(?:__)?|gnu_linux__|unix(?:__)?)\b")
"""What nvcc's host compiler defines, and run-time compilation does not."""
_NARROWING = 2361
"""Of a narrowing conversion within braces, which nvcc only warns of."""
_DOUBLE_MACRO = 47
"""The compiler's number for a macro that is defined twice, as libcu++ and the stand-ins for <limits.h> do."""


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
    result's `entry` is the latter. `include` names folders of headers, after which the package's own device code is
    searched. CUDA's headers come from installed wheels, for the C library's there are stand-ins (jit/wheels.py). A
    whole program is compiled without the host's part (jit/host_code.py), as is a file that does not compile with it.
    Raises CompileError with the compiler's log, or when the source has no such entry.
    """
    text = _as_nvcc_takes_it(text.removeprefix("\ufeff"))
    folders = [*(Path(folder) for folder in include), CUDA_ROOT]
    gathered = gather(text, folders, leave=True, not_in_brackets=wheels.STANDARD)
    headers = tuple((header, _as_nvcc_takes_it(body)) for header, body in gathered)
    libraries = wheels.toolkit() if wheels.needs_toolkit(text, headers) else ()
    headers += wheels.of_cub(text, headers, libraries)
    expression = "" if entry.startswith("_Z") else entry
    flags = (f"--pre-include={wheels.IMPLICIT}", "--device-int128", f"--diag-warn={_NARROWING}", *options)
    if libraries:
        flags = (*flags, f"--diag-suppress={_DOUBLE_MACRO}")
    bodies = [text, *(body for _, body in headers)]
    if any(map(_of_fixed_width, bodies)) and not wheels.STANDARD_INCLUDED.search("\n".join(bodies)):
        flags = (*flags, f"--pre-include={wheels.COMMON}")  # nvcc's own header brings these
    flags += tuple(f"-D{name}=1" for name in sorted(frozenset().union(*map(_of_system, bodies))))

    def compiled(text: str, headers: Headers) -> CompiledKernel:
        given = {header for header, _ in headers}
        standard = tuple(header for header in wheels.standard_headers() if header[0] not in given)
        source = Source(text, name, entry, (*standard, *headers), expression, apart=True)
        return compile_unit(source, arch, flags, libraries)

    program = any(is_program(body) for body in (text, *(body for _, body in headers)))
    device = _DevicePart(name, text, headers, libraries)
    attempt: tuple[str, Headers] | None = device.attempt() if program else (text, headers)
    failures: list[CompileError] = []
    while attempt is not None:
        try:
            return compiled(*attempt)
        except CompileError as error:
            failures.append(error.with_traceback(None))  # which would hold this frame, and it the error
        attempt = device.next(failures[-1], attempt) if len(failures) < ROUNDS else None
    told = failures[-1] if program or wheels.missing_header(failures[0].log) else failures[0]
    raise _explained(told, name, entry, text, device) from told


@lru_cache(maxsize=512)
def _of_fixed_width(text: str) -> bool:
    return _FIXED_WIDTH.search(text) is not None


@lru_cache(maxsize=512)
def _of_system(text: str) -> frozenset[str]:
    return frozenset(_OF_SYSTEM.findall(text))


@lru_cache(maxsize=512)
def _as_nvcc_takes_it(text: str) -> str:
    """Return what nvcc and its host compiler allow and run-time compilation does not, written so that it does."""
    text = _CONTINUED.sub("\\\\\n", text)
    for pattern in (_LAMBDA, _CONSTEVAL):
        text = pattern.sub(lambda found: re.sub(r"\S", " ", found[0]), text)
    return text


class _DevicePart:
    """A file without the host's part, as far as that is known: by its text, then by what does not compile."""

    def __init__(self, name: str, text: str, headers: Headers, libraries: Sequence[Library]) -> None:
        self.name, self.text, self.headers, self.libraries = name, text, headers, libraries
        self.programs = {name, *(header for header, body in headers if is_program(body))}
        """Files that lose all that is the host's. Another header may declare without a word what kernels use."""
        self.dropped: dict[str, None] = {}
        """Headers that are not there, or the host's."""
        self.wrong: dict[str, set[int]] = {}
        """File -> lines that do not compile."""
        self.stand_ins: Headers = ()
        """What the host's headers include that kernels use."""
        self.of_std: dict[str, None] = {}
        """Headers of the C++ library that libcu++ stands in for."""
        known = {*wheels.STANDARD, *(header for header, _ in headers)}
        bodies = [text, *(body for _, body in headers)]
        for header in wheels.includes(text, headers):
            there = header in known or wheels.holds(libraries, header)
            brought = [
                body if any(uses.search(one) for one in bodies) else "\n"
                for which, holds, uses, body in _BROUGHT
                if which.match(header) and wheels.holds(libraries, holds)
            ]
            if brought:
                self.stand_ins += ((header, "".join(brought)),)
            elif HOST_HEADERS.match(header) or not (there or wheels.is_of_cuda(header)):
                self.dropped[header] = None

    def attempt(self) -> tuple[str, Headers]:
        """The text and its headers."""
        bodies = [body for _, body in self.headers]
        texts = [
            (
                name,
                device_part(body, (self.text, *bodies), self.dropped, self.wrong.get(name, ()), name in self.programs),
            )
            for name, body in ((self.name, self.text), *self.headers)
        ]
        stand_ins = wheels.of_libcudacxx(tuple(self.of_std), self.libraries) if self.of_std else ()
        return texts[0][1], (*texts[1:], *self.stand_ins, *stand_ins)

    def next(self, error: CompileError, before: tuple[str, Headers]) -> tuple[str, Headers] | None:
        """The next attempt after this error of the one before; None where it would be the same."""
        missing = wheels.missing_header(error.log)
        # of CUDA's headers only what may be the host's; one in quotes may be part of the kernel
        if missing is not None and not wheels.is_of_cuda(missing):
            self.dropped[missing] = None
        known = len(self.of_std)
        if self.libraries and (members := _NOT_OF_STD.findall(error.log)):
            included = [header for header in self.dropped if header in wheels.OF_STD]
            self.of_std |= dict.fromkeys([*included, *map(wheels.std_header, members)])
        if len(self.of_std) == known and before != (self.text, self.headers):
            for file, line in _ERROR.findall(error.log):
                self.wrong.setdefault(file, set()).add(int(line))
        after = self.attempt()
        return None if after == before else after


def _explained(error: CompileError, name: str, entry: str, text: str, device: _DevicePart) -> CompileError:
    """The error with what to try about it."""
    refused, version = str(error), nvrtc.version()
    errors = [line for line in error.log.splitlines() if ": error:" in line]
    only_of_the_name = bool(errors) and all(line.startswith(NAME_LINE) for line in errors)
    if only_of_the_name and "overloaded" in error.log:
        refused = f"{name}: {entry!r} is the name of more than one kernel."
    elif only_of_the_name or "reported no registers" in refused or "has no kernel named" in refused:
        return CompileError(
            f"{name} has no kernel {entry!r}{_others(text)}. Give its name as C++ knows it, a template's with its "
            f"arguments (scale<float, 4>).", error.log
        )  # fmt: skip
    logs = [*(f'cannot open source file "{header}"' for header in device.dropped), error.log]
    hints = [hint for log in logs if (hint := wheels.advice(log, version, device.libraries))]
    return CompileError("\n".join([refused, *dict.fromkeys(hints)]), error.log)


def _others(text: str) -> str:
    plain = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", text)
    names = re.findall(r"__global__[^;{(]*?\b(\w+)\s*\(", plain)
    return f"; it has {', '.join(dict.fromkeys(names))}" if names else ", nor any other"
