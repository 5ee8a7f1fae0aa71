"""Counters: what a launch executed, by class, by memory and by instruction.

A guarded instruction counts the threads whose guard holds. Warp instructions count each warp that has a thread at the
instruction. Requests, sectors and wavefronts are those of emu/coalesce.py and emu/banks.py.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..words import Told
from .garbage import uncollected

if TYPE_CHECKING:
    from .hazards import Sources
    from .program import Code

MEMORY_FIELDS = ("requests", "sectors", "wavefronts", "ideal", "bytes")
FAR_SIDE = "async_copy_global"
"""Traffic of the global side of an asynchronous copy."""


@dataclass(slots=True)
class InstructionRow:
    """One instruction's counts. `warps`: executions by warps; the rest as in Counters, 0 where it does not apply."""

    file: str | None
    line: int | None
    ptx: str
    ptx_line: int
    kind: str
    warps: int
    threads: int
    requests: int = 0
    sectors: int = 0
    wavefronts: int = 0
    ideal: int = 0
    bytes: int = 0


@dataclass(repr=False)
class Counters(Told):
    """Exact counts of one launch. Local and asynchronous bytes are summed over threads."""

    threads: int = 0
    """Threads launched."""
    thread_instructions: int = 0
    warp_instructions: int = 0
    by_class: dict[str, int] = field(default_factory=dict)
    """Thread instructions of each class."""
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    global_atomic_requests: int = 0
    global_atomic_sectors: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_ideal: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_ideal: int = 0
    shared_atomic_requests: int = 0
    async_copy_requests: int = 0
    async_copy_sectors: int = 0
    async_copy_wavefronts: int = 0
    """Wavefronts of the shared-memory side."""
    async_copy_ideal: int = 0
    async_copy_bytes: int = 0
    bulk_load_requests: int = 0
    """Bulk copies into shared memory."""
    bulk_load_bytes: int = 0
    bulk_store_requests: int = 0
    bulk_store_bytes: int = 0
    local_load_bytes: int = 0
    local_store_bytes: int = 0
    flops: dict[str, int] = field(default_factory=dict)
    """Floating-point operations by pipe; a fused multiply-add is two."""
    barriers: int = 0
    """Barriers executed, counted by warp."""
    per_instruction: list[InstructionRow] = field(default_factory=list, repr=False)  # thousands: not in a repr

    @property
    def sectors_per_request(self) -> dict[str, float | None]:
        """Global sectors per request: of loads, stores and asynchronous copies; None where there was no request."""
        return {
            "load": _ratio(self.global_load_sectors, self.global_load_requests),
            "store": _ratio(self.global_store_sectors, self.global_store_requests),
            "async_copy": _ratio(self.async_copy_sectors, self.async_copy_requests),
        }

    @property
    def wavefronts_per_request(self) -> dict[str, float | None]:
        """Shared wavefronts per request: of loads, stores and asynchronous copies; None where there was no request."""
        return {
            "load": _ratio(self.shared_load_wavefronts, self.shared_load_requests),
            "store": _ratio(self.shared_store_wavefronts, self.shared_store_requests),
            "async_copy": _ratio(self.async_copy_wavefronts, self.async_copy_requests),
        }

    @property
    def per_thread(self) -> dict[str, float]:
        """Instructions a thread of each class."""
        return {kind: count / self.threads for kind, count in self.by_class.items()} if self.threads else {}

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict, the derived ratios among it."""
        out = asdict(self)
        out["sectors_per_request"] = self.sectors_per_request
        out["wavefronts_per_request"] = self.wavefronts_per_request
        out["per_thread"] = self.per_thread
        return out

    def __str__(self) -> str:
        def shown(ratios: dict[str, float | None]) -> str:
            return ", ".join(f"{name} {value:.2f}" for name, value in ratios.items() if value is not None) or "none"

        classes = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.by_class.items(), key=lambda i: -i[1]))
        bulk = (
            f"bulk copies: {self.bulk_load_requests:,} of {self.bulk_load_bytes:,} bytes into shared memory, "
            f"{self.bulk_store_requests:,} of {self.bulk_store_bytes:,} bytes out of it\n"
        )
        return (
            f"{self.thread_instructions:,} thread instructions ({classes})\n"
            f"global sectors per request: {shown(self.sectors_per_request)}\n"
            f"shared wavefronts per request: {shown(self.wavefronts_per_request)}\n"
            f"{bulk if self.bulk_load_requests or self.bulk_store_requests else ''}"
            f"floating-point operations: {', '.join(f'{k} {v:,}' for k, v in self.flops.items()) or 'none'}"
        )


def _ratio(a: int, b: int) -> float | None:
    return a / b if b else None


class Site:
    """A record of what one instruction did to one memory in a launch, and the address patterns it was seen with."""

    __slots__ = ("bytes", "fresh", "ideal", "patterns", "requests", "sectors", "wavefronts")

    def __init__(self, patterns: list[Any]) -> None:
        self.patterns = patterns
        self.fresh = 0
        """Accesses since one had the addresses of an earlier one."""
        self.requests = self.sectors = self.wavefronts = self.ideal = self.bytes = 0


@lru_cache(maxsize=64)
def _added_up(traffic: str) -> list[tuple[str, str]]:
    """What the sites of one kind of traffic count, each with the counter that they add up to, "" for none."""
    far = traffic == FAR_SIDE  # the near side counts the rest
    names = {name: f"{'async_copy' if far else traffic}_{name}" for name in (("sectors",) if far else MEMORY_FIELDS)}
    return [(name, total if hasattr(Counters, total) else "") for name, total in names.items()]


class Trace:
    """Accumulates counts over the batches of one launch; indices are those of the program's instructions."""

    def __init__(self, instructions: int, blocks: int) -> None:
        self.block_threads = [0] * blocks
        self.block_warps = [0] * blocks
        self.guarded = np.zeros(instructions, np.int64)
        """Threads whose guard held, of each guarded instruction."""
        self.sites: dict[int, dict[str, Site]] = {}
        self.patterns: dict[tuple[int, str], Any] = {}
        """Of each site the address patterns it was seen with."""

    def site(self, index: int, traffic: str) -> Site:
        """The site of an instruction for one kind of traffic, made when first asked for."""
        sites = self.sites.setdefault(index, {})
        if traffic not in sites:
            sites[traffic] = Site(self.patterns.setdefault((index, traffic), []))
        return sites[traffic]

    def counters(self, program: Code, threads: int, sources: Sources) -> Counters:
        """Sum up. `sources` names the files."""
        with uncollected():
            return self._counters(program, threads, sources)

    def _counters(self, program: Code, threads: int, sources: Sources) -> Counters:
        out = Counters(threads=threads)
        guarded, counted, place = self.guarded.tolist(), program.counted, sources.place
        instructions, by_class, sites, rows = program.instructions, out.by_class, self.sites, out.per_instruction
        totals: dict[str, int] = {}
        last, nowhere = None, (None, None)
        at: tuple[str | None, int | None] = nowhere
        for block in program.blocks:
            of_block, warps = self.block_threads[block.index], self.block_warps[block.index]
            out.warp_instructions += warps * (block.end - block.start)
            for i in range(block.start, block.end):
                instruction, (kind, flops, by_guard) = instructions[i], counted[i]
                count = guarded[i] if by_guard else of_block
                if (location := instruction.location) is not last:
                    last, at = location, place(location) if location else nowhere
                row = InstructionRow(*at, instruction.text, instruction.ptx_line, kind, warps, count)
                rows.append(row)
                by_class[kind] = by_class.get(kind, 0) + count
                if flops:
                    pipe, each = flops
                    out.flops[pipe] = out.flops.get(pipe, 0) + each * count
                if kind == "barrier":
                    out.barriers += warps
                for traffic, site in sites[i].items() if i in sites else ():
                    for name, total in _added_up(traffic):
                        if value := getattr(site, name):
                            setattr(row, name, getattr(row, name) + value)
                            if total:
                                totals[total] = totals.get(total, 0) + value
        for total, value in totals.items():
            setattr(out, total, value)
        out.thread_instructions = sum(by_class.values())
        out.by_class = {kind: count for kind, count in out.by_class.items() if count}
        out.flops = {pipe: count for pipe, count in out.flops.items() if count}
        return out
