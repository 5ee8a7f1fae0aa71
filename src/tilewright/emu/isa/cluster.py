"""Clusters: addresses of peers, the barrier of a cluster, stores and reductions that an mbarrier of a peer counts."""

from __future__ import annotations

import numpy as np

from ..bulk_copies import Units
from ..machine import Machine
from ..operands import WINDOWS
from ..ptx import Instruction
from ..shared_memory import PEER
from .bulk import Bytes, Told, active_lanes, merging
from .memory import Spread, vector_of
from .registry import Step, dtype_of, executes

_DONE = ".mbarrier::complete_tx::bytes"


@executes("mapa{space:.shared::cluster|}.{type:u32|u64}", kind="int")
def map_address(machine: Machine, instruction: Instruction) -> Step:
    """`d, a, rank`: the address of a's place in the block of that rank; generic without a state space."""
    to, a, rank = instruction.operands
    kind = instruction.fields["type"]
    low = 0 if instruction.fields["space"] else WINDOWS["shared"]
    machine.expect(instruction, not low or kind == "u64", "is a generic address of 32 bits")
    put = machine.write(to, kind, instruction)
    base, ranks = machine.source(instruction, a, kind), machine.source(instruction, rank, "u32")

    def step() -> None:
        lanes = active_lanes(machine)
        own = np.broadcast_to(base, (machine.lanes,))[lanes].astype(np.int64) - low
        wanted = np.broadcast_to(ranks, (machine.lanes,))[lanes].astype(np.int64)
        beyond = wanted >= machine.cluster_size
        if beyond.any():
            machine.report(
                "out_of_bounds", f"mapa of rank {int(wanted[beyond][0])} in a cluster of {machine.cluster_size}",
                instruction, lanes[beyond], None,
            )  # fmt: skip
        put((own % PEER + (wanted + 1) * PEER + low).astype(dtype_of(kind)), lanes)

    return step


@executes("getctarank{space:.shared::cluster|}.{type:u32|u64}", kind="int")
def rank_of(machine: Machine, instruction: Instruction) -> Step:
    """`d, a`: the rank of the block in whose shared memory an address lies."""
    to, a = instruction.operands
    low = 0 if instruction.fields["space"] else WINDOWS["shared"]
    put, base = machine.write(to, "u32", instruction), machine.source(instruction, a, instruction.fields["type"])

    def step() -> None:
        lanes = active_lanes(machine)
        found = np.broadcast_to(base, (machine.lanes,))[lanes].astype(np.int64) - low
        ctas, _ = machine.shared.reach(lanes, found)
        put((ctas % machine.cluster_size).astype(np.uint32), lanes)

    return step


@executes("barrier.cluster.arrive{order:.release|.relaxed|}{.aligned|}", kind="barrier", destination="none")
def arrive(machine: Machine, instruction: Instruction) -> Step:
    """The threads arrive; what they did before is handed on, by .relaxed no more than a fence has come after."""
    releases = instruction.fields["order"] != ".relaxed"
    return lambda: machine.clusters.arrive(instruction, active_lanes(machine), releases)


@executes("barrier.cluster.wait{order:.acquire|}{.aligned|}", kind="barrier", ends_block=True, destination="none")
def wait(machine: Machine, instruction: Instruction) -> Step:
    """The threads wait for all of their cluster that have not ended."""
    scheduler, clusters, resume = machine.scheduler, machine.clusters, machine.following(instruction)
    machine.expect(instruction, instruction.guard is None, "has a guard, which is not emulated")

    def step() -> None:
        late = clusters.wait(instruction, active_lanes(machine), True)
        if not len(late):
            scheduler.goto(resume)
            return
        scheduler.separate()
        scheduler.goto(resume)
        scheduler.park(late, instruction, resume)
        clusters.park(late)

    return step


@executes(
    f"st.async{{.weak|}}{{.shared::cluster|}}{_DONE}{{vec:.v2|.v4|}}.{{type:b32|u32|s32|f32|b64|u64|s64|f64}}",
    f"red.async{{.relaxed|}}{{.cluster|}}{{.shared::cluster|}}{_DONE}.{{op:inc|dec|min|max|add}}.{{type:u32|s32|u64}}",
    f"red.async{{.relaxed|}}{{.cluster|}}{{.shared::cluster|}}{_DONE}.{{op:and|or|xor}}.{{type:b32}}",
    kind="memory_shared",
    destination="none",
)
def store_async(machine: Machine, instruction: Instruction) -> Step:
    """`[address], value, [mbarrier]`: to a peer, counted by its mbarrier."""
    place, _, told = instruction.operands
    where, tells = Bytes(machine, instruction, place, peers=True), Told(machine, instruction, told)
    spread = Spread(machine, instruction, vector_of(instruction), 1)
    take, nbytes = spread.gather(instruction), spread.bytes
    fields = instruction.fields
    merge = merging(fields) if fields.get("op") else None

    def step() -> None:
        lanes = active_lanes(machine)
        values = take(None if len(lanes) == machine.lanes else lanes)[: len(lanes)].copy()
        data = values.view(np.uint8).reshape(len(lanes), nbytes)
        for row, lane in enumerate(lanes.tolist()):
            found = where.at(lane, nbytes, nbytes)
            barrier = None if found is None else tells.of(lane, None)
            if found is None or barrier is None:
                continue
            cta, address = found
            if barrier.cta != cta:
                machine.report(
                    "bulk_operand", "the mbarrier lies in another block than the value is stored to", instruction,
                    np.array([lane]), barrier.address,
                )  # fmt: skip
            units = Units(np.array([address // nbytes]))
            machine.bulk.load(instruction, lane, cta, units, data[row : row + 1], barrier, nbytes, merge)

    return step
