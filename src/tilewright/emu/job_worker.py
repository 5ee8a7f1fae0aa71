"""The processes that jobs.py starts: each runs batches of one launch after another, and says what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..jit import workers
from .api import machine_for
from .global_words import READ, roles_of
from .jobs import Part, Touched, chosen
from .memory import ARENA_BASE
from .trace import MEMORY_FIELDS, Trace

if TYPE_CHECKING:
    from .machine import Machine
    from .memory import GlobalMemory
    from .task import Task


class _Left(Exception):
    """One process has to run the launch; why."""


def serve() -> None:
    """Run batches for the process that started this one, until it closes the pipe."""
    next_question, back = workers.questions()
    while True:
        task, memory, batches = next_question()
        machine = _answer(task, memory, batches, back)
        written = next_question()
        if written and machine is not None:
            workers.say(back, {start: t for start in written if (t := _touched(machine, start)) is not None})
        elif written:
            workers.say(back, {})


def _answer(task: Task, memory: GlobalMemory, batches: range, back: BinaryIO) -> Machine | None:
    try:
        machine = machine_for(task, memory)
        clock = 0
        with machine.underflow.watch():
            for first in batches:
                machine.run(first)
                clock += int(machine.clock[0])
                workers.say(back, 1)
        if machine.reporter.hazards or machine.reporter.allowed or machine.reporter.suspects:
            raise _Left("there is something to report")
        writes = any(role is not None and role.kinds != (READ,) for role in roles_of(machine.program))
        if writes and (machine.races is None or not machine.races.between or machine.races.missed):
            raise _Left("what its blocks touch cannot be followed")
        kinds = {} if machine.races is None else machine.races.kinds()
        workers.say(back, Part(kinds, _told(machine.trace), machine.reporter.printed, clock))
        return machine
    except Exception as error:  # whatever it is, the run in one process meets it too
        workers.say(back, str(error) if isinstance(error, _Left) else f"{type(error).__name__} in one of its blocks")
        return None


def _told(trace: Trace) -> dict[str, Any]:
    sites = [
        (index, traffic, [getattr(site, name) for name in MEMORY_FIELDS])
        for index, by_traffic in trace.sites.items()
        for traffic, site in by_traffic.items()
    ]
    threads, warps = list(trace.block_threads), list(trace.block_warps)
    return {"threads": threads, "warps": warps, "guarded": trace.guarded, "sites": sites}


def _touched(machine: Machine, start: int) -> Touched | None:
    races, buffer = machine.races, machine.memory.find(start)
    assert races is not None
    assert buffer is not None
    found = races.touched(buffer)
    if found is None:
        return None
    read, wrote = found
    told = Touched(races.granule, np.packbits(read), np.packbits(wrote), np.zeros(0, np.uint8))
    place = slice(start - ARENA_BASE, start - ARENA_BASE + buffer.bytes)
    told.values = machine.memory.views[1][place][chosen(buffer.bytes, told)]
    return told
