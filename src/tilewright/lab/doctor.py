"""What a machine has for tilewright, and how to get what it lacks."""

from __future__ import annotations

import sysconfig
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import CacheError, TilewrightError
from ..jit import nvrtc
from ..jit.compile import kernel_cache
from ..jit.source import CUDA_ROOT
from .sass import find_disassembler


@dataclass(frozen=True)
class Finding:
    """`required`: without it nothing runs. `advice` is "" when all is well."""

    name: str
    found: bool
    detail: str
    advice: str = ""
    required: bool = False


def _gpus() -> list[Finding]:
    from ..jit.device import device, driver, gpu_count
    from .bench import Conditions, pci_bus_id
    from .climb_gpu import driver_version

    try:
        driver()
    except TilewrightError as error:
        advice = "kernels run on the emulator; for a GPU install NVIDIA's driver (CUDA 13: 580 or newer)"
        return [Finding("CUDA driver", False, str(error).split(". ")[0], advice), Finding("GPU", False, "none", "")]
    findings = [Finding("CUDA driver", True, driver_version())]
    if gpu_count() == 0:
        findings.append(Finding("GPU", False, "the driver sees none", "check nvidia-smi and CUDA_VISIBLE_DEVICES"))
    for ordinal in range(gpu_count()):
        try:
            one = device(ordinal)
            now = ", ".join(f"{name} {value:g}" for name, value in Conditions(pci_bus_id(ordinal)).read().items())
            findings.append(Finding(f"GPU {ordinal}", True, f"{one.name}, compiled for as {one.arch}; {now}"))
        except TilewrightError as error:
            findings.append(Finding(f"GPU {ordinal}", False, str(error), ""))
    return findings


def _nvrtc() -> Finding:
    try:
        version = nvrtc.version()
    except TilewrightError as error:
        return Finding("NVRTC", False, str(error), "pip install nvidia-cuda-nvrtc cuda-bindings", required=True)
    try:
        package = f"nvidia-cuda-nvrtc {metadata.version('nvidia-cuda-nvrtc')}"
    except metadata.PackageNotFoundError:
        package = "not from the wheel nvidia-cuda-nvrtc"
    return Finding("NVRTC", True, f"{version} ({package})", required=True)


def _headers() -> list[Finding]:
    own = Finding("own device code", CUDA_ROOT.is_dir(), str(CUDA_ROOT), required=True)
    folders = [
        p for p in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include")) if (p / "cuda.h").is_file()
    ]
    detail = ", ".join(map(str, folders)) or "none; the rungs include none"
    advice = "" if folders else "only for your own kernels that include them: pip install nvidia-cuda-runtime"
    return [own, Finding("toolkit headers", bool(folders), detail, advice)]


def _disassembler() -> Finding:
    try:
        return Finding("disassembler", True, str(find_disassembler()))
    except TilewrightError as error:
        return Finding("disassembler", False, str(error).split(". ")[0], "pip install 'tilewright[disassembler]'")


def _cache() -> Finding:
    cache = kernel_cache()
    probe = cache.folder
    try:
        while not probe.exists():
            probe = probe.parent
        with tempfile.TemporaryFile(dir=probe):
            writable = True
        detail = f"{cache.folder}: {len(cache.keys())} kernels, {cache.size() / 1e6:.1f} MB"
    except OSError as error:  # a file in the folder's place, too
        writable, detail = False, f"{cache.folder}: {error.strerror}"
    except CacheError as error:
        writable, detail = False, str(error)
    return Finding(
        "kernel cache", writable, detail, "" if writable else "set TILEWRIGHT_CACHE to a folder you may write"
    )


def _packages() -> list[Finding]:
    findings = []
    installed = metadata.packages_distributions()  # reads every package there is
    for name, use in (
        ("torch", "tensors, and cuBLAS to compare with: pip install 'tilewright[bench]'"),
        ("cupy", "arrays, and cuBLAS to compare with: pip install cupy-cuda13x"),
        ("jax", "arrays: pip install 'jax[cuda13]'"),
    ):
        names = installed.get(name, [])
        if names:
            findings.append(Finding(name, True, metadata.version(names[0])))
        else:
            findings.append(Finding(name, False, "not installed", use))
    return findings


def examine() -> list[Finding]:
    """Everything, required things first."""
    return [_nvrtc(), *_headers(), *_gpus(), _disassembler(), _cache(), *_packages()]
