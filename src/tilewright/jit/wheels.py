"""Headers in installed wheels: CUDA's own, for the sources that include them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from . import nvrtc
from .entry import HEADER
from .source import CUDA_ROOT, Library

TOOLKITS = {
    12: (
        ("nvidia-cuda-runtime-cu12", ("nvidia/cuda_runtime/include",)),
        ("nvidia-cuda-nvcc-cu12", ("nvidia/cuda_nvcc/include",)),
        ("nvidia-cuda-cccl-cu12", ("nvidia/cuda_cccl/include",)),
        ("nvidia-curand-cu12", ("nvidia/curand/include",)),
        ("nvidia-cublas-cu12", ("nvidia/cublas/include",)),
    ),
    13: (
        ("nvidia-cuda-runtime", ("nvidia/cu13/include",)),
        ("nvidia-cuda-crt", ("nvidia/cu13/include",)),
        ("nvidia-cuda-cccl", ("nvidia/cu13/include/cccl", "nvidia/cu13/include")),
        ("nvidia-curand", ("nvidia/cu13/include",)),
        ("nvidia-cublas", ("nvidia/cu13/include",)),
    ),
}
"""(wheel, its include folders), in the order in which they are searched, by CUDA's generation. The first three are what
device code includes: the headers of one need the others'."""

_LIBRARIES = {
    "cublas": "nvidia-cublas", "nvblas.h": "nvidia-cublas", "curand": "nvidia-curand", "cufft": "nvidia-cufft",
    "cudalibxt.h": "nvidia-cufft", "cusparse": "nvidia-cusparse", "cusolver": "nvidia-cusolver",
    "cudnn": "nvidia-cudnn", "cupti": "nvidia-cuda-cupti", "cufile.h": "nvidia-cufile",
    "cuda_profiler_api.h": "nvidia-cuda-profiler-api", "cudaProfiler.h": "nvidia-cuda-profiler-api",
    "nvml.h": "nvidia-nvml-dev", "nvtx3/": "nvidia-nvtx", "nvJitLink.h": "nvidia-nvjitlink",
    "nvjpeg.h": "nvidia-nvjpeg", "npp": "nvidia-npp",
}  # fmt: skip
"""How the names of a library's headers begin, and its wheel; with "-cu12" that of CUDA 12."""
_CUTLASS = ("cutlass/", "cute/")

STANDARD = (
    "assert.h", "cassert", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring",
    "cuda_runtime.h", "device_launch_parameters.h", "float.h", "inttypes.h", "limits.h", "math.h", "stddef.h",
    "stdint.h", "stdio.h", "stdlib.h", "string.h",
)  # fmt: skip
"""Host headers that kernels include out of habit: run-time compilation has no host's, and knows most of them itself."""

IMPLICIT, COMMON = "tilewright/implicit.h", "tilewright/standard.h"
CUB = "cub/cub.cuh"
OF_STD = {
    "algorithm": "min max clamp swap", "limits": "numeric_limits", "array": "array", "bit": "bit_cast",
    "tuple": "tuple get tie make_tuple", "functional": "plus multiplies less greater minus", "complex": "complex",
    "utility": "pair make_pair index_sequence make_index_sequence integer_sequence exchange declval",
    "cmath": "abs sqrt exp log pow isnan isinf fabs fmax fmin floor ceil sin cos tanh", "numeric": "gcd lcm accumulate",
    "cstdint": "int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t", "type_traits": "",
    "cstddef": "size_t byte ptrdiff_t nullptr_t",
}  # fmt: skip
"""Headers of the C++ library that libcu++ has for kernels, and what is looked for there; all else in type_traits."""
STANDARD_INCLUDED = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{'|'.join(map(re.escape, STANDARD))})>", re.MULTILINE)
_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]""", re.MULTILINE)
_NOT_FOUND = re.compile(r'(?:could not|cannot) open source file "([^"]+)"')


@lru_cache(maxsize=1)
def standard_headers() -> tuple[tuple[str, str], ...]:
    """(name, text) of what stands in for host headers: macros every CUDA source may use, and STANDARD."""
    texts = ((name, (CUDA_ROOT / "host" / Path(name).name).read_text()) for name in (IMPLICIT, COMMON, HEADER))
    return (*texts, *((name, f"#include <{COMMON}>\n") for name in STANDARD))


def needs_toolkit(text: str, headers: tuple[tuple[str, str], ...]) -> bool:
    """Return whether the text or one of its headers (name, text) includes what is neither among them nor standard."""
    known = {*STANDARD, *(name for name, _ in headers)}
    return any(name not in known for name in includes(text, headers))


def includes(text: str, headers: tuple[tuple[str, str], ...]) -> list[str]:
    """The names that the text and its headers (name, text) include, in either spelling."""
    return list(dict.fromkeys(name for body in (text, *(t for _, t in headers)) for name in _included(body)))


@lru_cache(maxsize=512)
def _included(text: str) -> tuple[str, ...]:
    return tuple(_INCLUDE.findall(text))


def holds(libraries: Sequence[Library], header: str) -> bool:
    """Return whether a header is in one of the libraries."""
    return any((folder / header).is_file() for library in libraries for folder in library.folders)


def std_header(member: str) -> str:
    """The header of the C++ library that a member of std is looked for in."""
    return next((header for header, members in OF_STD.items() if member in members.split()), "type_traits")


def of_cub(
    text: str, headers: tuple[tuple[str, str], ...], libraries: Sequence[Library]
) -> tuple[tuple[str, str], ...]:
    """(name, text) of what stands in for <cub/cub.cuh>, which holds host code: the parts that kernels name."""
    if CUB not in includes(text, headers) or not holds(libraries, CUB):
        return ()
    folders = [
        folder / "cub" / part for library in libraries for folder in library.folders for part in ("block", "warp")
    ]
    named = set(re.findall(r"\b(?:Block|Warp)\w+", " ".join([text, *(body for _, body in headers)])))
    parts = [path for folder in folders for path in sorted(folder.glob("*.cuh"))]
    lines = [
        f"#include <cub/{path.parent.name}/{path.name}>\n"
        for path in parts
        if "".join(word.capitalize() for word in path.stem.split("_")) in named
    ]
    return ((CUB, "".join(lines)),)


def of_libcudacxx(names: Sequence[str], libraries: Sequence[Library]) -> tuple[tuple[str, str], ...]:
    """(name, text) of what gives a kernel std's members of these headers, as libcu++ has them."""
    # libcu++ of CUDA 13.0 has no <algorithm>; its <functional> brings min, max and their like
    there = [name if holds(libraries, f"cuda/std/{name}") else "functional" for name in names]
    lines = [f"#include <cuda/std/{name}>" for name in dict.fromkeys(there)]
    lines += ["namespace std { using namespace cuda::std; }", ""]
    implicit = dict(standard_headers())[IMPLICIT]
    return ((IMPLICIT, implicit + "\n".join(lines)), *((name, "\n") for name in names if name not in STANDARD))


def _generation() -> int:
    """CUDA's, of the NVRTC in use."""
    return int((nvrtc.installed() or nvrtc.version()).partition(".")[0])


@lru_cache(maxsize=1)
def toolkit() -> tuple[Library, ...]:
    """The CUDA headers that are installed for the NVRTC in use; perhaps none."""
    found = []
    for name, inner in TOOLKITS.get(_generation(), ()):
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
    """Return whether it is one of the CUDA toolkit's, or of a library's on top of it."""
    return bool(_OF_DEVICE.match(header)) or header.startswith((*_CUTLASS, *_LIBRARIES))


_OF_DEVICE = re.compile(
    r"(?:cub|cuda|crt|nv|thrust|cooperative_groups)/|(?:cuda|mma|cuComplex|cooperative_groups|vector_types|math_constants)"
    r"\.h|cuda(?:rt|[A-Z])\w*\.h|cuda_(?:awbarrier|bf16|d3d|device_runtime|egl|fp\d|gl_|occupancy|pipeline|runtime|"
    r"stdint|surface|texture|vdpau)\w*\.h"
)
"""Headers of the toolkit itself. A person's own may begin with "cuda_", too."""


def _install(header: str, version: str, searched: Sequence[Library]) -> str:
    """Return which wheels hold one of CUDA's headers, for NVRTC's `version`."""
    generation = int(version.partition(".")[0])
    for beginning, wheel in _LIBRARIES.items():
        if header.startswith(beginning):
            if wheel == "nvidia-cudnn":
                wheel += f"-cu{generation}"
            elif generation == 12:
                wheel += "-cu12"
            return f"{header} is in the wheel {wheel}. If kernels use it: pip install {wheel}"
    names = [name for name, _ in TOOLKITS.get(generation, TOOLKITS[13])[:3]]
    if {library.identity.partition(" ")[0] for library in searched}.issuperset(names):
        return f"{header} is not in the wheels of CUDA's headers that are installed ({', '.join(names)})."
    # the runtime's headers are released with every NVRTC, those of CCCL have versions of their own
    newest = f"{generation}.0,<{generation + 1}"
    wanted = [f"'{name}>={newest}'" if "cccl" in name else f"'{name}=={version}.*'" for name in names]
    return f"{header} is one of CUDA's headers. They are wheels: pip install {' '.join(wanted)}"


def advice(log: str, version: str, libraries: Sequence[Library] = ()) -> str:
    """Return what to try about a compiler's log, where that is known; else "". `version`: of NVRTC, as "13.0".

    libraries: those that were searched.
    """
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
        if name.startswith(_CUTLASS):
            return (
                f"{name} is one of CUTLASS's headers. Name its folder with include= (on the command line --include). "
                "The wheel nvidia-cutlass has them in cutlass_library/source/include."
            )
        if is_of_cuda(name):
            return _install(name, version, libraries)
        return (
            f"{name} was not found. Name its folder with include= (on the command line --include; in a file that "
            "tilewright check takes, by a line // check: include FOLDER)."
        )
    if "which instance of overloaded function" in log:
        return "Several kernels have this name: rename one, or give the name of one of them in the PTX (_Z...)."
    if found := _BUILTIN.search(log):
        name = found[1].rstrip("l")
        instead = f": write {_ON_DEVICE[name]}" if name in _ON_DEVICE else ""
        return f"__builtin_{found[1]} is of the host's compiler; device code has intrinsics of its own{instead}."
    return ""


_BUILTIN = re.compile(r'identifier "__builtin_(\w+)" is undefined')
_ON_DEVICE = {
    "ctz": "__ffs(x) - 1 (__ffsll for 64 bits)", "clz": "__clz(x) (__clzll)", "popcount": "__popc(x) (__popcll)",
    "ffs": "__ffs(x) (__ffsll)", "bswap32": "__byte_perm(x, 0, 0x0123)",
}  # fmt: skip
"""What host compilers spell __builtin_..., as device code spells it."""
