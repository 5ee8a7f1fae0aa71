"""The number of a kernel's blocks that an SM holds at once, what limits them, and what would allow more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidOperand, did_you_mean, suggests
from ..gpus import ARCHS, DEFAULT_GPU, GPUS, Arch, Occupancy, Resources, block_limits, find_arch, find_gpu
from ..gpus import occupancy as of_resources
from .shown import Grid, Shown
from .subject import subject_of


@dataclass(frozen=True, repr=False)
class OccupancyReport(Shown):
    """Occupancy of one kernel on one board. `shared_bytes`: static and dynamic, per block."""

    gpu: str
    arch: str
    threads: int
    registers: int
    shared_bytes: int
    blocks: int
    """Blocks that an SM holds at once."""
    warps: int
    warps_per_sm: int
    fraction: float
    """Resident warps as a share of those that an SM can hold."""
    limiter: str
    limits: dict[str, int]
    """How many blocks each limit allows by itself."""
    hints: tuple[str, ...]
    """What would raise the occupancy, one change at a time."""
    kernel: str = ""
    """The rung with its config, or the file, whose registers and shared memory these are."""

    def grids(self) -> tuple[Grid, ...]:
        """Return what an SM holds, and each limit."""
        asked = f"{self.threads} threads, {self.registers} registers per thread, {self.shared_bytes} B of shared memory"
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        held = f"{blocks}, {self.warps} of {self.warps_per_sm} warps per SM: {self.fraction:.1%}"
        rows = tuple((name, str(n), "<- limits" if name == self.limiter else "") for name, n in self.limits.items())
        title = f"{self.gpu}: {asked}\n{held}"
        return (Grid(f"{self.kernel}\n{title}".lstrip(), ("limited by", "blocks", ""), rows, "\n".join(self.hints)),)


def place_of(gpu: str) -> tuple[str, Arch]:
    """The name and architecture of a board ("RTX 4090") or of an architecture ("sm_89"). Raises InvalidOperand."""
    if isinstance(gpu, str) and gpu.lower().startswith("sm_"):
        arch = find_arch(gpu.lower())
        return arch.name, arch
    try:
        board = find_gpu(gpu)
    except InvalidOperand:
        raise InvalidOperand(
            f"GPU {gpu!r} is not known.{did_you_mean(str(gpu), GPUS)} Known: {', '.join(GPUS)}; or an architecture: "
            f"{', '.join(ARCHS)}."
        ) from None
    return board.name, board.arch


@suggests
def occupancy(threads: int, registers: int = 32, shared: int = 0, gpu: str = DEFAULT_GPU) -> OccupancyReport:
    """Return how many blocks of `threads` threads an SM of `gpu` holds, what limits them, and what would allow more.

    registers: per thread. shared: bytes per block, static and dynamic together. gpu: a board ("RTX 4090") or an
    architecture ("sm_89"). Raises InvalidOperand for a value that no kernel can have.
    """
    name, arch = place_of(gpu)
    for what, value, least, most in (
        ("threads", threads, 1, arch.threads_per_block),
        ("registers", registers, 0, arch.registers_per_thread),
        ("shared", shared, 0, arch.shared_per_block),
    ):
        if not isinstance(value, int) or not least <= value <= most:
            kernel = f" A kernel's: occupancy_of({value!r})." if isinstance(value, str) else ""
            raise InvalidOperand(
                f"{what}={value!r} is not a whole number from {least} to {most}, which {arch} allows.{kernel}"
            )
    found = _found(threads, registers, shared, arch)
    limits = block_limits(_resources(registers), threads, shared, arch)
    return OccupancyReport(
        name, arch.name, threads, registers, shared, found.blocks, found.warps, arch.warps_per_sm, found.fraction,
        found.limiter, limits, _hints(threads, registers, shared, arch),
    )  # fmt: skip


def occupancy_of(what: str | Path, *, gpu: str = DEFAULT_GPU, **options: Any) -> OccupancyReport:
    """Return the occupancy of a rung ("f09", "f09:tile_k=8") or of a .cu, .ptx or .cubin file, compiled for `gpu`.

    gpu: as in `occupancy`. options: config, dtype, d_head, entry, threads, shared and include, as in `inspect`. Raises
    what both raise, and InvalidOperand for a file that does not say how many threads its blocks have.
    """
    _, arch = place_of(gpu)
    found = subject_of(what, arch, **options)
    if not found.threads:
        raise InvalidOperand(f"{what} does not say how many threads a block has. Give threads, or // check: block 256.")
    shared = found.resources.shared_bytes + found.dynamic_shared
    return replace(
        occupancy(found.threads, found.resources.registers, shared, gpu), kernel=f"{found.name} {found.config}".strip()
    )


def _resources(registers: int) -> Resources:
    return Resources(registers, 0, 0, 0, 0, 0)


def _found(threads: int, registers: int, shared: int, arch: Arch) -> Occupancy:
    return of_resources(_resources(registers), threads, shared, arch)


def _hints(threads: int, registers: int, shared: int, arch: Arch) -> tuple[str, ...]:
    """The least change of registers, of shared memory and of threads that raises occupancy, each by itself."""
    now = _found(threads, registers, shared, arch).fraction
    told = []

    def told_of(text: str, fraction: float) -> str:
        return f"{text}: {fraction:.1%}"

    for fewer in range(registers - 1, 15, -1):
        if (share := _found(threads, fewer, shared, arch).fraction) > now:
            told.append(told_of(f"{fewer} registers or fewer", share))
            break
    for less in range((shared - 1) // arch.shared_unit * arch.shared_unit, -1, -arch.shared_unit):
        if (share := _found(threads, registers, less, arch).fraction) > now:
            told.append(told_of(f"{less} B of shared memory or less", share))
            break
    sizes = [size for size in range(32, arch.threads_per_block + 1, 32) if size != threads]
    for size in sorted(sizes, key=lambda size: abs(size - threads)):
        if (share := _found(size, registers, shared, arch).fraction) > now:
            told.append(told_of(f"{size} threads per block", share))
            break
    return tuple(told)
