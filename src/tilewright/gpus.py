"""The limits of architectures and the rates of named GPUs, as data.

`Arch` holds the limits of one compute capability: the table "Technical Specifications per Compute Capability" of the
CUDA C++ Programming Guide 13.0, section "Compute Capabilities"; those of 8.8, 10.3, 11.0 and 12.1 are `arch_traits` of
libcu++ 3.3 (cuda/__device/arch_traits.h), which gives the others as the guide does. `Gpu` adds what differs between
boards of one architecture; peaks are the vendor's (boost clock x units), each with its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from .errors import InvalidOperand, did_you_mean


@cache
def _compared(kind: type) -> attrgetter[Any]:
    """Return what reads the fields of a dataclass that count for equality."""
    return attrgetter(*(field.name for field in fields(kind) if field.compare))


class HashedOnce:
    """The __hash__ of frozen dataclasses that are keys of many caches: it is computed once."""

    def __hash__(self) -> int:
        try:
            found: int = self.__dict__["_hash"]
        except KeyError:
            found = self.__dict__["_hash"] = hash(_compared(type(self))(self))  # type: ignore[arg-type]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}  # hashes differ by process


@dataclass(frozen=True)
class Arch(HashedOnce):
    """Limits of one architecture. Sizes in bytes; `registers` are 32-bit."""

    name: str
    """The NVRTC target, as in `--gpu-architecture=`."""
    compute_capability: tuple[int, int]
    warps_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int
    """The opt-in limit of dynamic plus static shared memory of one block."""
    threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_unit: int = 256
    """Registers are handed to warps in multiples of this many."""
    shared_unit: int = 128
    shared_reserved: int = 1024
    """Bytes of shared memory that the system keeps of each block."""
    fp32_lanes_per_sm: int = 128
    warp_schedulers: int = 4

    __hash__ = HashedOnce.__hash__

    def __str__(self) -> str:
        return self.name

    @property
    def can_overlap_grids(self) -> bool:
        """Return whether a launch may start under the last blocks of the one ahead (programmatic dependent launch)."""
        return self.compute_capability >= (9, 0)


@dataclass(frozen=True)
class Gpu(HashedOnce):
    """One board. Rates: TFLOP/s dense; bandwidth: GB/s; l2: bytes."""

    name: str
    arch: Arch
    sm_count: int
    boost_mhz: int
    dram_gb_s: float
    l2: int
    bf16_tflops: float
    source: str

    __hash__ = HashedOnce.__hash__

    @property
    def ffma_tflops(self) -> float:
        """Peak of fused multiply-adds in fp32: SMs x lanes x 2 x clock."""
        return self.sm_count * self.arch.fp32_lanes_per_sm * 2 * self.boost_mhz * 1e-6

    def peak_tflops(self, dtype: str) -> float:
        """Dense peak of what multiplies `dtype` (or a precision): FFMA for "f32", tensor cores for 16 bits.

        "tf32" has half the rate of 16 bits, "fp32x3" a sixth (six products for one), fp8 ("fp8", "fast") twice that
        rate from compute capability 8.9 on. 0 where it is not known.
        """
        if dtype == "f32":
            return self.ffma_tflops
        if dtype in ("fp8", "fast") and self.arch.compute_capability >= (8, 9):
            return 2 * self.bf16_tflops
        return self.bf16_tflops / {"tf32": 2, "fp32x3": 6}.get(dtype, 1)

    def assumed_tflops(self, dtype: str) -> float:
        """peak_tflops, or where that is not known, as if tensor cores had four times FFMA's rate for 16 bits: to choose
        kernels by, never to quote."""
        known = self if self.bf16_tflops else replace(self, bf16_tflops=4 * self.ffma_tflops)
        return known.peak_tflops(dtype)


_KIB = 1024
_MIB = 1024 * 1024

ARCHS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("sm_80", (8, 0), 64, 32, 164 * _KIB, 163 * _KIB, fp32_lanes_per_sm=64),
        Arch("sm_86", (8, 6), 48, 16, 100 * _KIB, 99 * _KIB),
        Arch("sm_87", (8, 7), 48, 16, 164 * _KIB, 163 * _KIB),
        Arch("sm_88", (8, 8), 48, 16, 100 * _KIB, 99 * _KIB),
        Arch("sm_89", (8, 9), 48, 24, 100 * _KIB, 99 * _KIB),
        Arch("sm_90a", (9, 0), 64, 32, 228 * _KIB, 227 * _KIB),
        Arch("sm_100", (10, 0), 64, 32, 228 * _KIB, 227 * _KIB),
        Arch("sm_103", (10, 3), 64, 32, 228 * _KIB, 227 * _KIB),
        Arch("sm_110", (11, 0), 48, 24, 228 * _KIB, 227 * _KIB),
        Arch("sm_120", (12, 0), 48, 24, 100 * _KIB, 99 * _KIB),
        Arch("sm_121", (12, 1), 48, 24, 100 * _KIB, 99 * _KIB),
    )
}

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("RTX 3090", ARCHS["sm_86"], 82, 1695, 936.2, 6 * _MIB, 71.2, "GA102 whitepaper v2.1, appendix A"),
        Gpu("A100", ARCHS["sm_80"], 108, 1410, 1555.0, 40 * _MIB, 311.9, "A100 whitepaper v1.0, table 4 (40 GB SXM)"),
        Gpu("RTX 4090", ARCHS["sm_89"], 128, 2520, 1008.0, 72 * _MIB, 165.2, "Ada whitepaper v2.1, appendix A"),
        Gpu("RTX 5070 Ti", ARCHS["sm_120"], 70, 2452, 896.0, 48 * _MIB, 87.9, "RTX Blackwell whitepaper v1.1"),
        Gpu("H100", ARCHS["sm_90a"], 132, 1830, 3352.0, 50 * _MIB, 989.4, "H100 whitepaper v1.04 (SXM5)"),
        Gpu(
            "H200",
            ARCHS["sm_90a"],
            132,
            1980,
            4800.0,
            60 * _MIB,
            989.4,
            "H200 datasheet; clock and L2 as its driver says",
        ),
    )
}
DEFAULT_GPU = "H200"


def is_named(gpu: Gpu, driver_name: str) -> bool:
    """Return whether a driver's name, which begins with NVIDIA, is that of a board of the table."""
    named = rf"NVIDIA\b.*\b{re.escape(gpu.name)}\b"
    return re.match(named, driver_name, re.IGNORECASE) is not None


def find_gpu(name: str) -> Gpu:
    """The named board, whatever the case, blanks or hyphens, or by the driver's name for it ("NVIDIA H100 80GB HBM3").

    Raises InvalidOperand with the known names.
    """
    if isinstance(name, str) and name in GPUS:
        return GPUS[name]

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum()).removeprefix("nvidia").removeprefix("geforce")

    for gpu in GPUS.values():
        if isinstance(name, str) and (plain(gpu.name) == plain(name) or is_named(gpu, name)):
            return gpu
    raise InvalidOperand(f"GPU {name!r} is not known.{did_you_mean(str(name), GPUS)} Known: {', '.join(GPUS)}.")


def as_found(listed: Gpu, sm_count: int, dram_gb_s: float, l2: int) -> Gpu:
    """A listed board with what the driver says of the one that was found, where that differs by more than a tenth.

    Boards of one name differ: an H100 PCIe has 114 of the SXM's 132 SMs and slower memory, an A100 of 80 GB a faster
    one, a MIG slice fewer SMs. Blocks that stay are as many as there are SMs, so their count is always the driver's.
    0: the driver does not say.
    """

    def differs(found: float, known: float) -> bool:
        return found > 0 and abs(found / known - 1) > 0.1

    return replace(
        listed,
        sm_count=sm_count,
        bf16_tflops=listed.bf16_tflops * (sm_count / listed.sm_count),
        dram_gb_s=dram_gb_s if differs(dram_gb_s, listed.dram_gb_s) else listed.dram_gb_s,
        l2=l2 if differs(l2, listed.l2) else listed.l2,
    )


def unlisted(name: str, arch: Arch, sm_count: int, mhz: int, dram_gb_s: float, l2: int) -> Gpu:
    """A board that is not in the table, from what the driver says; its tensor peak is not known.

    What a driver does not say (0: boards whose memory is the host's) is taken to be 10 GB/s per SM, 1.5 GHz and 4 MiB,
    to choose kernels by.
    """
    return Gpu(name, arch, sm_count, mhz or 1500, dram_gb_s or 10.0 * sm_count, l2 or 4 * _MIB, 0.0, "the driver")


def find_arch(name: str) -> Arch:
    """The architecture by its target name ("sm_90a"; "sm_90" means sm_90a). Raises InvalidOperand."""
    arch = ARCHS.get(name) or ARCHS.get(name + "a")
    if arch is None:
        raise InvalidOperand(
            f"architecture {name!r} is not known.{did_you_mean(name, ARCHS)} Known: {', '.join(ARCHS)}."
        )
    return arch


def arch_of(compute_capability: tuple[int, int]) -> Arch:
    """The newest known architecture whose machine code runs on a device of this compute capability.

    Machine code runs on devices of the same major version and an equal or higher minor one; "a" targets only on
    their own. Raises InvalidOperand when there is none.
    """
    fits = [
        arch
        for arch in ARCHS.values()
        if arch.compute_capability == compute_capability
        or (
            not arch.name.endswith("a")
            and arch.compute_capability[0] == compute_capability[0]
            and arch.compute_capability <= compute_capability
        )
    ]
    if not fits:
        major, minor = compute_capability
        raise InvalidOperand(
            f"compute capability {major}.{minor} is not supported. Supported: {', '.join(ARCHS)}. "
            "The emulator runs any kernel without a GPU: with tilewright.emulator(): ..."
        )
    return max(fits, key=lambda arch: arch.compute_capability)


# --- occupancy: how many blocks of a kernel an SM holds, and what limits them -----------------------------------------


@dataclass(frozen=True)
class Resources:
    """The report of ptxas on one entry. `registers` a thread; all else in bytes; shared bytes are the static ones."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    barriers: int


@dataclass(frozen=True)
class Occupancy:
    """`fraction`: resident warps of those an SM can hold. `limiter`: registers, shared memory, warps, or blocks."""

    blocks: int
    warps: int
    fraction: float
    limiter: str


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def block_limits(resources: Resources, threads: int, shared_bytes: int, arch: Arch) -> dict[str, int]:
    """Return how many blocks of a kernel each limit of an SM allows by itself; arguments as for `occupancy`."""
    warps = _up(threads, 32) // 32
    registers_a_warp = _up(resources.registers * 32, arch.register_unit)
    registers_a_scheduler = arch.registers_per_sm // arch.warp_schedulers  # a warp's registers lie in one of these
    shared_a_block = _up(resources.shared_bytes + shared_bytes + arch.shared_reserved, arch.shared_unit)
    limits = {  # of equal limits the first is named: full of warps is full
        "warps": arch.warps_per_sm // warps,
        "blocks": arch.blocks_per_sm,
        "registers": registers_a_scheduler // registers_a_warp * arch.warp_schedulers // warps
        if registers_a_warp
        else arch.blocks_per_sm,
        "shared memory": arch.shared_per_sm // shared_a_block,
    }
    if threads > arch.threads_per_block or resources.shared_bytes + shared_bytes > arch.shared_per_block:
        limits["shared memory" if threads <= arch.threads_per_block else "warps"] = 0
    return limits


def occupancy(resources: Resources, threads: int, shared_bytes: int, arch: Arch) -> Occupancy:
    """Return how many blocks fit, at `threads` per block and `shared_bytes` of dynamic shared memory per block.

    The rules are those of CUDA's cuda_occupancy.h: registers are handed out a warp at a time in units of
    `Arch.register_unit`, by each of an SM's warp schedulers from its own share; shared memory in units of
    `Arch.shared_unit` plus what the system keeps of each block. A kernel that does not fit at all has 0 blocks.
    """
    limits = block_limits(resources, threads, shared_bytes, arch)
    limiter = min(limits, key=lambda name: limits[name])
    blocks, warps = limits[limiter], _up(threads, 32) // 32
    return Occupancy(blocks, blocks * warps, blocks * warps / arch.warps_per_sm, limiter)


def shared_to_spread(blocks: int, resources: Resources, threads: int, shared_bytes: int, gpu: Gpu) -> int:
    """Return the dynamic shared memory with which `blocks` cannot lie less evenly than they must: as much as lets no
    more of them stay on an SM than it gets when all get the same; arguments else as for `occupancy`."""
    even = -(-blocks // gpu.sm_count)
    if even >= occupancy(resources, threads, shared_bytes, gpu.arch).blocks:
        return shared_bytes
    too_much_for_more = gpu.arch.shared_per_sm // (even + 1) // gpu.arch.shared_unit * gpu.arch.shared_unit + 1
    return too_much_for_more - gpu.arch.shared_reserved - resources.shared_bytes
