"""The mistakes one can make in the 16-bit rungs, made in their own sources: each is reported, and where."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import pytest
from rung_products import Bench, Case
from test_tensor_rungs import SMALL

from tilewright.emu import Emulator
from tilewright.errors import EmulatorFault
from tilewright.gemm.rung import Rung
from tilewright.gemm.rungs import find_rung
from tilewright.gpus import ARCHS
from tilewright.jit import use_executor
from tilewright.jit.compile import CompiledKernel, compile_unit
from tilewright.jit.source import Source, render

SEVEN_TILES = Case(32, 32, 7 * 16)
RING, LOOP = "tile/ring.cuh", "tile/multistage.cuh"
WAIT, RACE, NEVER = "async_copy_not_waited", "shared_race", "uninitialised_shared_read"


class Fault(NamedTuple):
    """Occurrence number `which` of `text` in `file`, or in the rung's own, is replaced. `kind`: the hazard it is."""

    rung: str
    what: str
    text: str
    which: int
    instead: str
    kind: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.rung}-{self.what.replace(' ', '-')}"


FAULTS = [
    Fault("h04", "no wait", "cp_async_wait<0>();", 0, "", WAIT),
    Fault("h04", "no barrier before the reads", "__syncthreads();", 0, "", RACE),
    Fault("h04", "no barrier before the refill", "__syncthreads();", 1, "", RACE),
    Fault("h05", "no wait", "cp_async_wait<0>();", -1, "", WAIT),
    Fault("h05", "no barrier before the refill", "__syncthreads();", -1, "", RACE),
    Fault("h05", "copies into the buffer that is read", "start_next(buffer ^ 1)", 0, "start_next(buffer)", WAIT),
    Fault("h05", "reads the buffer that is copied to", "b_tiles + buffer *", -1, "b_tiles + (buffer ^ 1) *", WAIT),
    Fault("h05", "no commit", "cp_async_commit();", 0, "", WAIT),
    Fault("h06", "no acquire", "pipeline.producer_acquire();", 0, "", RACE),
    Fault("h06", "no wait", "pipeline.consumer_wait();", 0, "", WAIT),
    Fault("h07", "waits for a group less", "cp_async_wait<1>();", -1, "cp_async_wait<2>();", WAIT),
    Fault("h07", "no barrier before the refill", "__syncthreads();", 1, "", RACE),
    Fault("h07", "copies into the buffer that is read", "start(t + 2, write)", 0, "start(t + 2, read)", WAIT),
    Fault("h07", "copies into the buffer of the tile before", "start(t + 2, write)", 0, "start(t + 2, t % 3)", RACE),
    Fault("h07", "reads the buffer that is copied to", "fragment_sets], read)", 0, "fragment_sets], write)", WAIT),
    Fault("h07", "no barrier before the results", "__syncthreads();", -1, "", RACE),
    Fault("h07", "no commit", "cp_async_commit();", 0, "", WAIT),
    Fault("h07", "no empty groups at the end", "cp_async_commit();", 0, "if (t < tiles) cp_async_commit();", WAIT),
    Fault("h10", "no wait", "cp_async_wait<1>();", -1, "", WAIT),
    Fault("h10", "no barrier before the refill", "__syncthreads();", -1, "", RACE),
    Fault("h10", "copies into the buffer that is read", "start(t + 3, free)", 0, "start(t + 3, read)", WAIT),
    Fault("h10", "reads the buffer that is copied to", "load(read, step)", -1, "load(free, step)", WAIT),
    Fault("h10", "no commit", "cp_async_commit();", 0, "", WAIT),
    Fault("h11", "waits for a group less", "cp_async_wait<ahead - 1>();", 0, "cp_async_wait<ahead>();", WAIT, RING),
    Fault("h11", "no barrier before the refill", " wait();", -1, " cp_async_wait<ahead - 1>();", RACE, RING),
    Fault("h11", "copies into what is read", "start_part(ring.write,", 0, "start_part(ring.read,", WAIT, LOOP),
    Fault("h11", "reads what is copied to", "ring.read * B::bytes", -1, "ring.write * B::bytes", NEVER, LOOP),
    Fault("h11", "no commit in the loop", "cp_async_commit();", -1, "", WAIT, RING),
]  # fmt: skip


def rung_source(rung: Rung, bench: Bench, file: str = "") -> tuple[Source, str, str]:
    """The rung's source, and the name and text of one of its files: by default its own."""
    source = render(rung.include, rung.constants(bench.problem, SMALL[rung.id]), rung.entry)
    return source, file or rung.include, dict(source.headers)[file or rung.include]


def kernel_with(source: Source, name: str, text: str) -> CompiledKernel:
    headers = tuple({**dict(source.headers), name: text}.items())
    with use_executor(Emulator()):  # to PTX only
        return compile_unit(dataclasses.replace(source, headers=headers), ARCHS["sm_90a"].name)


@pytest.mark.parametrize("rung", dict.fromkeys(fault.rung for fault in FAULTS))
def test_the_source_without_a_mistake_is_right(rung):
    rung, bench = find_rung(rung), Bench(SEVEN_TILES)
    bench.run(rung, SMALL[rung.id], kernel_with(*rung_source(rung, bench))).assert_right()


def mistaken(fault: Fault, name: str, text: str) -> str:
    """The text of file `name` with the mistake made in it."""
    places = [match.start() for match in re.finditer(re.escape(fault.text), text)]
    assert places, f"{name} has no {fault.text!r} any more: make the mistake in its new text"
    at = places[fault.which]
    return text[:at] + fault.instead + text[at + len(fault.text) :]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_mistake_in_a_rung_is_reported_with_its_place(fault):
    rung, bench = find_rung(fault.rung), Bench(SEVEN_TILES)
    source, name, text = rung_source(rung, bench, fault.file)
    with pytest.raises(EmulatorFault) as caught:
        bench.run(rung, SMALL[rung.id], kernel_with(source, name, mistaken(fault, name, text)))
    hazard = caught.value.hazard
    assert hazard.kind == fault.kind, str(hazard)
    # The line that meets the missing thing, and the one it meets, down to the rung's own file.
    own = LOOP if rung.id.startswith("h11") else rung.include  # where its main loop stands
    assert f"from {own}:" in hazard.details["inlined_at"]
    assert hazard.line
    if hazard.kind != NEVER:
        other = hazard.details["other_access" if hazard.kind == RACE else "the_copy"]
        assert f"from {own}:" in other
