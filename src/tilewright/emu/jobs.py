"""One launch by several processes, each with some of its batches of blocks and a copy of memory.

Blocks that touch nothing that another writes cannot tell whether it has run. So each process notes what its blocks read
and wrote, as races between blocks are noted. Where no two processes meet at what one of them wrote, and nothing was
reported, their writes together are what one process would have left, and so are their counters. Otherwise nothing is
kept, and one process runs the launch: it also says what there is to report.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit.workers import Worker, borrow
from .global_words import POLL, READ, STRONG, roles_of
from .memory import ARENA_BASE
from .trace import MEMORY_FIELDS, Trace

if TYPE_CHECKING:
    from .hazards import Reporter
    from .memory import GlobalMemory
    from .program import Code
    from .task import Task

Progress = Callable[[int, int], None]
_MALLOC = ("malloc", "free")
_SERVER = "tilewright.emu.job_worker"
_ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_SURFACES = ("sust", "suld", "tex", "tld4", "tensormap")


def why_alone(program: Code, batches: int, options: dict[str, Any]) -> str:
    """Why one process has to run a launch; "" where several may try."""
    if batches < 2:
        return "its blocks all run side by side, in one batch"
    if options.get("order") is not None:
        return "another order of warps and blocks is drawn for the whole launch"
    if options.get("recorder") is not None:
        return "it is recorded"
    for instruction, role in zip(program.instructions, roles_of(program), strict=True):
        if role is not None and (role.listens or {STRONG, POLL} & set(role.kinds)):
            return f"its blocks may talk to one another: PTX line {instruction.ptx_line}, {instruction.text!r}"
        if instruction.opcode.startswith(_SURFACES):
            return f"it uses what is not followed: PTX line {instruction.ptx_line}, {instruction.text!r}"
        if instruction.opcode.startswith("call") and any(f" {name}" in instruction.text for name in _MALLOC):
            return f"it uses the heap: PTX line {instruction.ptx_line}, {instruction.text!r}"
    return ""


@dataclass
class Part:
    """A record of what one process did. Buffers are named by their addresses."""

    kinds: dict[int, set[int]]
    """Buffer -> kinds of access (global_words.py)."""
    trace: dict[str, Any]
    printed: list[str]
    clock: int
    """Instructions of all its batches, as limit= counts them."""


@dataclass
class Touched:
    """A record of what one process did to one buffer: bits, one for each granule of `granule` bytes; the bytes it
    wrote."""

    granule: int
    read: np.ndarray
    wrote: np.ndarray
    values: np.ndarray


def run_parts(
    task: Task, memory: GlobalMemory, jobs: int, trace: Trace, reporter: Reporter, progress: Callable[[int], None]
) -> str:
    """Run the batches of a launch in several processes. Why nothing was done; "" where everything was.

    progress: is told of batches that were done.
    """
    bounds = [len(task.batches) * k // jobs for k in range(jobs + 1)]
    ranges = [task.batches[a:b] for a, b in pairwise(bounds) if b > a]
    try:
        with borrow(_SERVER, len(ranges), _ALONE) as workers:
            return _run_parts(workers, task, memory, ranges, trace, reporter, progress)
    except (EOFError, OSError, pickle.PickleError) as error:
        return f"a process that ran some of its blocks ended ({type(error).__name__}: {error})"


def _run_parts(
    workers: list[Worker], task: Task, memory: GlobalMemory, ranges: list[range], trace: Trace, reporter: Reporter,
    progress: Callable[[int], None],
) -> str:  # fmt: skip
    for worker, batches in zip(workers, ranges, strict=True):
        worker.tell((task, memory, batches))
    parts: list[Part | str] = []
    for worker in workers:
        while isinstance(said := worker.hear(), int):
            progress(said)
        parts.append(said)
    why = next((part for part in parts if isinstance(part, str)), "")
    done = [part for part in parts if isinstance(part, Part)]
    if not why and task.limit is not None and sum(part.clock for part in done) > task.limit:
        why = "it takes more instructions than limit= allows"
    written = sorted({start for part in done for start, kinds in part.kinds.items() if kinds - {READ}})
    for worker in workers:
        worker.tell([] if why else written)
    if why:
        return why
    touched: list[dict[int, Touched]] = [worker.hear() for worker in workers]
    for start in written:
        if _meet([part[start] for part in touched if start in part]):
            buffer = memory.find(start)
            return f"blocks of two processes touch the same bytes of {buffer.name if buffer else start!r}"
    for start in written:
        for one in touched:
            if start in one:
                _keep(memory, start, one[start])
    for part in done:
        _add(trace, part.trace)
        reporter.printed += part.printed
    return ""


def _meet(touched: list[Touched]) -> bool:
    """Return whether two processes touched what one of them wrote."""
    wrote, read = np.zeros_like(touched[0].wrote), np.zeros_like(touched[0].wrote)
    for one in touched:
        if (one.wrote & (wrote | read)).any() or (one.read & wrote).any():
            return True
        wrote |= one.wrote
        read |= one.read
    return False


def chosen(buffer_bytes: int, touched: Touched) -> np.ndarray:
    """Return of each byte of a buffer whether it was written."""
    return np.repeat(np.unpackbits(touched.wrote).view(bool), touched.granule)[:buffer_bytes]


def _keep(memory: GlobalMemory, start: int, touched: Touched) -> None:
    buffer = memory.find(start)
    assert buffer is not None
    wrote = chosen(buffer.bytes, touched)
    place = slice(start - ARENA_BASE, start - ARENA_BASE + len(wrote))
    memory.views[1][place][wrote] = touched.values
    if memory.written is not None:
        memory.written[place][wrote] = 1


def _add(trace: Trace, part: dict[str, Any]) -> None:
    for mine, theirs in ((trace.block_threads, part["threads"]), (trace.block_warps, part["warps"])):
        mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]
    trace.guarded += part["guarded"]
    for index, traffic, counts in part["sites"]:
        site = trace.site(index, traffic)
        for name, count in zip(MEMORY_FIELDS, counts, strict=True):
            setattr(site, name, getattr(site, name) + count)
