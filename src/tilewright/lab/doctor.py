"""The parts that a machine has for tilewright, and how to get what it lacks."""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import CacheError, TilewrightError, install
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
    from ..jit.device import DRIVERS, device, driver, driver_shortfall, gpu_count
    from .bench import Conditions, pci_bus_id
    from .climb_gpu import driver_version

    needed = " or ".join(f"{driver} (CUDA {cuda})" for cuda, driver in DRIVERS.items())
    try:
        driver()
    except TilewrightError as error:
        advice = f"kernels run on the emulator; for a GPU install NVIDIA's driver, {needed} or newer"
        reason = str(error).removesuffix(". Kernels run without a GPU on the emulator: with tilewright.emulator(): ...")
        return [Finding("CUDA driver", False, reason, advice), Finding("GPU", False, "none", "")]
    try:
        shortfall = driver_shortfall()
    except TilewrightError:  # no NVRTC, which has a finding of its own
        shortfall = ""
    findings = [Finding("CUDA driver", not shortfall, driver_version(), shortfall)]
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
    package, _ = nvrtc.WHEELS.get(int(version.partition(".")[0]), ("its wheel", ""))
    try:
        where = f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        where = f"not from {package}"
    return Finding("NVRTC", True, f"{version} ({where})", required=True)


def _headers() -> list[Finding]:
    own = Finding("own device code", CUDA_ROOT.is_dir(), str(CUDA_ROOT), required=True)
    folders = [
        p for p in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include")) if (p / "cuda.h").is_file()
    ]
    detail = ", ".join(map(str, folders)) or "none; the rungs include none"
    advice = "" if folders else f"only for your own kernels that include them: {install('headers')}"
    return [own, Finding("toolkit headers", bool(folders), detail, advice)]


def _disassembler() -> Finding:
    try:
        return Finding("disassembler", True, str(find_disassembler()))
    except TilewrightError as error:
        return Finding("disassembler", False, str(error).split(". ")[0], install("disassembler"))


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
        ("torch", f"tensors, and cuBLAS to compare with: {install('bench')}"),
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
    """Everything, required things first, the verdict last."""
    findings = [_nvrtc(), *_headers(), *_gpus(), _disassembler(), _cache(), *_packages()]
    return [*findings, verdict(findings)]


def verdict(findings: Sequence[Finding]) -> Finding:
    """Return what runs here, by what was found."""
    missing = [finding for finding in findings if finding.required and not finding.found]
    if missing:
        names = " and ".join(finding.name for finding in missing)
        return Finding("verdict", False, f"not ready: {names} missing", required=True)
    by_name = {finding.name: finding for finding in findings}
    if not by_name["CUDA driver"].found:
        why = "the driver is too old" if "GPU 0" in by_name else "no CUDA driver"
        return Finding("verdict", True, f"ready: emulator only ({why})")
    gpu = by_name.get("GPU 0")
    if gpu is None or not gpu.found:
        why = "no GPU" if gpu is None else "the GPU is not supported or cannot be used"
        return Finding("verdict", True, f"ready: emulator only ({why})")
    return Finding("verdict", True, "ready: GPU")
