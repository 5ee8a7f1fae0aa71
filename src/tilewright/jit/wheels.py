"""Headers in installed wheels: CUDA's own, for the sources that include them."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from .source import CUDA_ROOT, Library

TOOLKIT = (
    ("nvidia-cuda-runtime", ("nvidia/cu13/include",)),
    ("nvidia-cuda-crt", ("nvidia/cu13/include",)),
    ("nvidia-cuda-cccl", ("nvidia/cu13/include/cccl",)),
)
"""(wheel, its include folders), in the order in which they are searched."""

STANDARD = (
    "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring",
    "cuda_runtime.h", "device_launch_parameters.h", "float.h", "inttypes.h", "limits.h", "math.h", "stddef.h",
    "stdint.h", "stdio.h", "stdlib.h", "string.h",
)  # fmt: skip
"""Host headers that kernels include out of habit: run-time compilation has no host's, and knows most of them itself."""

IMPLICIT, _COMMON = "tilewright/implicit.h", "tilewright/standard.h"
_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]""", re.MULTILINE)
_NOT_FOUND = re.compile(r'(?:could not|cannot) open source file "([^"]+)"')


@lru_cache(maxsize=1)
def standard_headers() -> tuple[tuple[str, str], ...]:
    """(name, text) of what stands in for host headers: macros every CUDA source may use, and STANDARD."""
    implicit, common = ((CUDA_ROOT / "host" / Path(name).name).read_text() for name in (IMPLICIT, _COMMON))
    return ((IMPLICIT, implicit), (_COMMON, common), *((name, f"#include <{_COMMON}>\n") for name in STANDARD))


def needs_toolkit(text: str, headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether the text or one of its headers (name, text) includes what is neither among them nor standard."""
    known = {*STANDARD, *(name for name, _ in headers)}
    return any(name not in known for body in (text, *(t for _, t in headers)) for name in _INCLUDE.findall(body))


@lru_cache(maxsize=1)
def toolkit() -> tuple[Library, ...]:
    """The CUDA headers that are installed; perhaps none."""
    found = []
    for name, inner in TOOLKIT:
        try:
            found.append(library(name, inner))
        except (metadata.PackageNotFoundError, FileNotFoundError):
            continue
    return tuple(found)


def library(name: str, inner: tuple[str, ...]) -> Library:
    """A wheel's include folders; its identity hashes what its RECORD says of every file in them.

    Raises PackageNotFoundError, or FileNotFoundError for a wheel without the folders.
    """
    package = metadata.distribution(name)
    digest, folders = hashlib.sha256(), []
    for folder in inner:
        lines = sorted(
            f"{file.as_posix()} {file.hash.value if file.hash else file.size}"
            for file in package.files or ()
            if file.as_posix().startswith(folder + "/")
        )
        path = Path(str(package.locate_file(folder)))
        if not lines or not path.is_dir():
            raise FileNotFoundError(f"{package.version} holds no {folder}")
        digest.update("\n".join(lines).encode())
        folders.append(path)
    return Library(tuple(folders), f"{name} {package.version} {digest.hexdigest()}")


def missing_header(log: str) -> str | None:
    """The header that a compiler's log says it did not find."""
    found = _NOT_FOUND.search(log)
    return found[1] if found else None


def is_of_cuda(header: str) -> bool:
    """Whether it is one of the CUDA toolkit's."""
    return header.startswith(("cu", "crt/", "nv/", "thrust/", "mma.h", "cooperative_groups"))


def advice(log: str, version: str) -> str:
    """What to try about a compiler's log, where that is known; else "". `version`: of NVRTC, as "13.0"."""
    if "is not allowed in JIT mode" in log:
        return (
            "Run-time compilation takes device code alone, and a header holds host code. Of cub include the header of "
            "the algorithm, such as cub/block/block_reduce.cuh; in headers of your own put host code between #ifndef "
            "__CUDACC_RTC__ and #endif."
        )
    if name := missing_header(log):
        if "." not in name and "/" not in name:
            return (
                f"<{name}> is of the host's C++ library, which run-time compilation does not have. Code that needs it "
                "goes between #ifndef __CUDACC_RTC__ and #endif."
            )
        if is_of_cuda(name):
            wheels = " ".join(f"'{wheel}=={version}.*'" for wheel, _ in TOOLKIT)
            return f"{name} is one of CUDA's headers. They are wheels: pip install {wheels}"
        return f"Name the folder of {name} with include= (on the command line --include)."
    if "which instance of overloaded function" in log:
        return "Several kernels have this name: rename one, or give the name of one of them in the PTX (_Z...)."
    return ""
