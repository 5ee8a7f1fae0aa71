"""The refusals of the emulator: the kinds, one report of each, and how it reaches the caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import EmulatorFault, InvalidOperand
from .ptx import Instruction, Location

KINDS = {
    "out_of_bounds": "Check the index against the size that was passed, and the predicate of the edge path.",
    "misaligned": "An access of N bytes needs an address that is a multiple of N: check the base and the stride.",
    "uninitialised_shared_read": "Write the bytes first, or check that the loop fills the whole tile.",
    "uninitialised_read": "Write the bytes first; memory of malloc and local arrays hold anything at first.",
    "matrix_alignment": "wmma asks for pointers that are multiples of 32 bytes: let tiles begin at multiples of 16 "
    "elements of fp16, of 8 of fp32.",
    "dead_local": "A local variable ends with its function, and is its own thread's: return a value, let the caller "
    "pass the array, or hand it to other threads by shared memory.",
    "leak": "Free it, or store its address where a later kernel finds it.",
    "shared_race": "Put __syncthreads() (or a named barrier of both warps) between the two.",
    "global_race": "Blocks run in any order: give each its own place, use atomics, let one launch end before the other "
    "begins, or tell of the write by __threadfence() and an atomic flag.",
    "lost_update": "Use an atomic (atomicAdd, or cuda::atomic_ref): of two equal reads one update is lost.",
    "fence_missing": "Put __threadfence() between the write and the flag or atomic that tells of it; a scope of .cta "
    "(__threadfence_block, cuda::thread_scope_block) does not reach other blocks.",
    "stale_read": "Put __threadfence() (or an acquire) between the flag that told of the write and this read, or "
    "read by a volatile or relaxed load: the first-level cache may hold what the block has read there before.",
    "acquire_missing": "Works on GPUs of today where the block has not read these bytes before, but the compiler, or a "
    "GPU, may run this read before the flag's: put __threadfence() (or an acquire) between the two.",
    "flag_race": "Works on GPUs of today, but the compiler may keep the value in a register: use volatile, atomics or "
    "cuda::atomic_ref on both sides.",
    "fixed_read": "Read it by an ordinary load: without __ldg(), and without `const` and __restrict__ on a pointer to "
    "memory that the kernel writes.",
    "lane_race": "Put __syncwarp() between the two: lanes of a warp need not run in step.",
    "warp_synchronous": "Works where lanes run in step and the compiler moves nothing, which nobody promises: put "
    "__syncwarp() after each step, or pass the values by shuffles.",
    "async_copy_not_waited": "Put cp.async.wait_group (or wait_all), then __syncthreads(), before the bytes are used; "
    "for a bulk copy, the wait for the phase of its mbarrier, by its parity.",
    "wgmma_not_waited": "Put wgmma.commit_group and wgmma.wait_group, then a barrier where other warps are concerned, "
    "before its operands' bytes or its registers are used again.",
    "wgmma_fence_missing": "Put wgmma.fence before the warpgroup's first wgmma.mma_async, and before one that works on "
    "registers which other instructions have written since.",
    "proxy_fence_missing": "Put fence.proxy.async into the threads that write, after their writes (or the wait for "
    "their copies) and before the barrier.",
    "copy_fence_missing": "Put fence.proxy.async into the threads that copy, after the wait for their copies and "
    "before the barrier.",
    "overwrite_fence_missing": "Put fence.proxy.async into the threads that write, after their writes and before the "
    "barrier: a copy may come before an ordinary store that it follows.",
    "bad_descriptor": "Bits 0-13 are the shared address >> 4, 16-29 the leading and 32-45 the stride byte offset >> 4, "
    "62-63 the swizzle (0 none, 1: 128, 2: 64, 3: 32 bytes); all others are zero, for all threads alike.",
    "barrier_divergence": "Every thread of the block has to reach the barrier: move it out of the condition.",
    "barrier_counts": "Give every bar.sync and bar.arrive that meet at one barrier the same number of threads.",
    "member_mask": "A mask names every lane that calls with it, the caller too: compute it before the branch.",
    "member_absent": "Works on GPUs of today, which go on once the missing lanes end: let all lanes that the mask "
    "names run the instruction, or name those that do.",
    "shuffle_source": "Read only from lanes that run the shuffle: a block of fewer than 32 threads needs a smaller "
    "offset, and lanes that return early take no part.",
    "bulk_not_waited": "Put cp.async.bulk.wait_group.read into the thread that committed the bulk store (groups belong "
    "to threads), then a barrier, before its bytes of shared memory are written or the thread ends; what is copied to "
    "another block is free once that block tells of the phase.",
    "bulk_exit": "Put cp.async.bulk.wait_group.read 0 before the end of the thread that committed the store.",
    "bulk_operand": "Bulk copies take sizes and addresses that are multiples of 16 bytes, and one block's memory.",
    "tensor_map": "Pass a tilewright TensorMap as a `const __grid_constant__ CUtensorMap` parameter.",
    "mbarrier_misuse": "Initialise it once, by one thread, with the arrivals of a phase; let no more arrive.",
    "mbarrier_fence_missing": "Put fence.mbarrier_init.release.cluster (or fence.proxy.async) after mbarrier.init, "
    "before the barrier.",
    "cluster_barrier": "Each thread runs barrier.cluster.arrive and barrier.cluster.wait in turns.",
    "peer_exited": "Let the blocks of a cluster wait for one another (barrier.cluster) before any of them ends.",
    "peer_not_started": "Let the blocks of a cluster wait for one another (barrier.cluster) before any of them reaches "
    "into another's shared memory.",
    "register_count": "setmaxnreg.dec takes no more registers than the warpgroup has, setmaxnreg.inc no fewer.",
    "register_pool": "Give back more by setmaxnreg.dec: no manual says that registers of warps that have ended "
    "return to the block's pool.",
    "warp_divergence": "All 32 lanes of a warp have to run the instruction together: move it out of the condition.",
    "deadlock": "Look at what each warp waits for; some of it never comes.",
    "write_to_read_only": "The buffer was given as read-only.",
    "stack_overflow": "Give the recursion an end that every thread reaches, or write it as a loop.",
    "endless_loop": "Look at what would end the loop: a counter that never gets there, a flag that nobody sets (blocks "
    "of a later batch have not begun), a wait without __syncwarp. A longer run is allowed with limit=.",
    "illegal": "The kernel stopped itself: look at the condition that led there.",
}
"""Every kind of hazard, with what to try."""

WARNINGS = frozenset(
    {
        "mbarrier_fence_missing",
        "copy_fence_missing",
        "overwrite_fence_missing",
        "bulk_exit",
        "flag_race",
        "warp_synchronous",
        "leak",
        "member_absent",
        "register_pool",
        "peer_not_started",
        "acquire_missing",
        "matrix_alignment",
    }
)
"""Kinds that break the rules and work on the GPUs of today: noted, never raised."""


RACES = frozenset(
    {
        "shared_race",
        "lane_race",
        "warp_synchronous",
        "global_race",
        "lost_update",
        "fence_missing",
        "flag_race",
        "stale_read",
        "acquire_missing",
    }
)
_LIBRARY = re.compile(r"/(?:nvidia/[^/]+|cuda[^/]*(?:/targets/[^/]+)?)/include/")
"""Paths of CUDA's own headers."""
_ALLOW = re.compile(r"//\s*tilewright:\s*allow\(([\w\s,]*)\)\s*(.*)")


@dataclass(frozen=True)
class Hazard:
    """One thing done wrong. `lanes` are lanes of warp `warp` of block `cta`; `details` holds what the kind adds."""

    kind: str
    message: str
    file: str | None
    line: int | None
    source_text: str | None
    ptx: str
    cta: tuple[int, int, int] | None
    warp: int | None
    lanes: tuple[int, ...]
    address: int | None
    details: dict[str, Any] = field(default_factory=dict)
    strict: bool = False
    """Warnings count as errors."""
    allowed: str = ""
    """The reason that a comment at its line gives for leaving it: `// tilewright: allow(kind) reason`."""

    @property
    def level(self) -> str:
        """Return "error" for what a GPU punishes, "warning" for what breaks the rules and works today.

        "allowed" is what a comment allows.
        """
        if self.allowed:
            return "allowed"
        return "warning" if self.kind in WARNINGS and not self.strict else "error"

    @property
    def hint(self) -> str:
        """Return what to try."""
        if self.kind == "shared_race" and "missing" in self.details:
            return "Put what is missing between the two: __syncthreads() does not reach the cluster's other blocks."
        return KINDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return {key: value for key, value in asdict(self).items() if key != "strict"} | {"level": self.level}

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "(no source line)"
        text = f"{self.kind}: {self.message}\n  at {where}"
        if self.source_text:
            text += f": {self.source_text}"
        text += f"\n  PTX: {self.ptx}"
        if self.cta is not None:
            text += f"\n  block {self.cta}, warp {self.warp}, {lane_ranges(self.lanes)}"
        for name, value in self.details.items():
            shown = "".join(f"\n    {item}" for item in value) if isinstance(value, list | tuple) else f" {value}"
            text += f"\n  {name.replace('_', ' ')}:{shown}"
        return f"{text}\n  Try: {self.hint}"


def lane_ranges(lanes: tuple[int, ...]) -> str:
    """Lanes in words: "lanes 0-3, 7"."""
    if not lanes:
        return "no lane"
    parts, start = [], lanes[0]
    for here, after in zip(lanes, [*lanes[1:], -1], strict=True):
        if after != here + 1:
            parts.append(str(start) if start == here else f"{start}-{here}")
            start = after
    return ("lane " if len(lanes) == 1 else "lanes ") + ", ".join(parts)


@lru_cache(maxsize=64)
def _file_lines(path: str) -> tuple[str, ...]:
    try:
        return tuple(Path(path).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError):
        return ()


@lru_cache(maxsize=64)
def _lines_of(text: str) -> tuple[str, ...]:
    return tuple(text.splitlines())


def forget_files() -> None:
    """Read the files of source lines anew: they may have changed."""
    _file_lines.cache_clear()


class Sources:
    """Finds the text of a source line: in the texts handed over (by name), else in the file the PTX names."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = dict(texts or {})
        self._names: dict[str, str] = {}

    def line(self, file: str, number: int) -> str | None:
        """The line, stripped, or None when the file is not at hand."""
        lines: tuple[str, ...] = ()
        for name, text in self._texts.items():
            if file == name or file.endswith("/" + name):
                lines = _lines_of(text)
        lines = lines or _file_lines(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else None

    def allows(self, kind: str, location: Location) -> str:
        """The reason for which a comment allows a kind of hazard at a line; "" for none.

        The comment stands on the line, or alone on the one before, or so at a call that the line was inlined into. It
        names kinds, or `race` for all kinds of race. Raises InvalidOperand for an unknown kind or a missing reason.
        """
        for file, number in (self.place(at) for at in (location, *location.calls)):
            above = self.line(file, number - 1) or ""
            for line in (self.line(file, number) or "", above if above.startswith("//") else ""):
                match = _ALLOW.search(line)
                if match is None:
                    continue
                names = {name.strip() for name in match[1].split(",")}
                if unknown := sorted(names - KINDS.keys() - {"race"}):
                    raise InvalidOperand(
                        f"{file}:{number}: {match[0]!r} allows {unknown[0]!r}, which is not a kind of hazard. "
                        f"Kinds: race, {', '.join(KINDS)}."
                    )
                if not match[2].strip():
                    raise InvalidOperand(f"{file}:{number}: {match[0]!r} gives no reason. Write it after the bracket.")
                if kind in names or ("race" in names and kind in RACES):
                    return match[2].strip()
        return ""

    def place(self, location: Location) -> tuple[str, int]:
        """(file, line), the file by the name it was handed over under."""
        if location.file not in self._names:
            known = (name for name in self._texts if location.file == name or location.file.endswith("/" + name))
            self._names[location.file] = next(known, location.file)
        return self._names[location.file], location.line

    def where(self, instruction: Instruction) -> str:
        """An instruction in one line: source place and PTX."""
        if instruction.location is None:
            return f"PTX line {instruction.ptx_line}: {instruction.text}"
        return f"{self.shown(instruction.location)}: {instruction.text}"

    def caller(self, location: Location) -> Location:
        """The innermost place of a location that is not in one of CUDA's headers; itself where there is none."""
        places = (at for at in (location, *location.calls) if not _LIBRARY.search(self.place(at)[0]))
        return next(places, location)

    def shown(self, location: Location) -> str:
        """A location in words, with the calls that it was inlined into."""
        caller = self.caller(location)
        text = "{}:{}".format(*self.place(caller))
        text += f" (inlined at {self.calls(caller)})" if caller.inlined_at else ""
        return text if caller is location else text + ", in {}:{}".format(*self.place(location))

    def calls(self, location: Location) -> str:
        """The calls that a location was inlined into, the innermost first."""
        return ", from ".join("{}:{}".format(*self.place(call)) for call in location.calls)


def check_mode(mode: object) -> None:
    """Raises InvalidOperand for what is not a way to treat hazards."""
    if mode not in ("raise", "collect"):
        raise InvalidOperand(
            f"hazards={mode!r} is neither 'raise' (stop at the first) nor 'collect' (list them in the result)."
        )


class Reporter:
    """Collects hazards, or raises the first. One of a kind, at one line, by one operation is kept once per launch."""

    def __init__(
        self, mode: str, sources: Sources, always: Mapping[str, Any] | None = None, *, strict: bool = False
    ) -> None:
        check_mode(mode)
        self.mode, self.strict = mode, strict
        self.sources = sources
        self.always = dict(always or {})
        """Details of every hazard."""
        self.hazards: list[Hazard] = []
        self.allowed: list[Hazard] = []
        """What comments in the source allow."""
        self.suspects: list[Hazard] = []
        """Uses of values that are undefined, each a hazard if another value makes another result."""
        self.printed: list[str] = []
        """What each thread's printf gave, in the order of execution."""
        self._seen: set[tuple[str | Location | int, ...]] = set()

    def report(
        self,
        kind: str,
        message: str,
        instruction: Instruction,
        *,
        cta: tuple[int, int, int] | None = None,
        warp: int | None = None,
        lanes: tuple[int, ...] = (),
        address: int | None = None,
        details: dict[str, Any] | None = None,
        other: Instruction | None = None,
        suspect: bool = False,
    ) -> None:
        """Raise EmulatorFault, or keep the hazard when collecting. `other`: the other side of a race. `suspect`: put
        it among the suspects."""
        at = instruction.location
        place = self.sources.caller(at) if at else None
        # Of the copies of an unrolled line one is enough: they do the same to the arrays that the message names.
        same = (kind, suspect, place or instruction.index, instruction.opcode, *re.findall(r"'[^']+'", message))
        if same in self._seen:
            return
        self._seen.add(same)
        file, line = self.sources.place(place) if place else (None, None)
        details = dict(details or {}) | self.always
        if place and place.inlined_at:
            details["inlined_at"] = self.sources.calls(place)
        if at and place is not at:
            details["inside"] = "{}:{}".format(*self.sources.place(at))
        if place and place.near:
            details["line"] = "the last one before; the compiler gives this instruction none"
        hazard = Hazard(
            kind=kind,
            message=message,
            file=file,
            line=line,
            source_text=self.sources.line(place.file, place.line) if place else None,
            ptx=f"line {instruction.ptx_line}: {instruction.text}",
            cta=cta,
            warp=warp,
            lanes=lanes,
            address=address,
            details=details,
            strict=self.strict,
        )
        places = [at.location for at in (instruction, other) if at is not None and at.location is not None]
        if reason := next(filter(None, (self.sources.allows(kind, at) for at in places)), ""):
            self.allowed.append(replace(hazard, allowed=reason))
            return
        (self.suspects if suspect else self.hazards).append(hazard)
        if self.mode == "raise" and hazard.level == "error" and not suspect:
            raise EmulatorFault(str(hazard), hazard)
