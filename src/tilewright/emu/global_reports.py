"""Races on global memory in words: what each one is called, and what is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .global_tracks import Clash
from .global_words import (
    POLL,
    READ,
    STRONG,
    WRITE,
    Role,
    constant_stored,
    counts,
    kept,
    looks_before_an_atomic,
    own_load,
    stored_back,
)
from .ptx import Instruction
from .uses import one_value

if TYPE_CHECKING:
    from .global_races import GlobalRaces


class RaceReports:
    """Reports what GlobalRaces finds."""

    def __init__(self, races: GlobalRaces) -> None:
        self.races, self.machine = races, races.machine

    def report(self, kind: int, clash: Clash, same: bool) -> None:
        """Report accesses of one kind that race; `same`: both store one value."""
        machine = self.machine
        instruction = machine.program.instructions[clash.index]
        role, other_role = self.races.roles[clash.index], self.races.roles[clash.other.index]
        assert role is not None
        assert other_role is not None
        if same and kind == clash.other_kind == STRONG:
            return
        name = clash.name or self._kind(role, instruction, kind, clash, other_role, same)
        cta, thread = divmod(clash.other_lane, machine.warps_per_cta * 32)
        block = machine.block_at(cta)
        where = machine.memory.describe(clash.address)
        whose = f"block {block}"
        far = cta != int(machine.cta_of_lane[clash.lanes[0]]) + machine.first_cta
        if clash.inside and not far:
            same_warp = thread // 32 == int(machine.warp_of_lane[clash.lanes[0]])
            whose = f"lane {thread % 32} of the same warp" if same_warp else f"warp {thread // 32} of the same block"
        details: dict[str, Any] = {
            "other_access": machine.reporter.sources.where(clash.other),
            "other_thread": f"block {block}, warp {thread // 32}, lane {thread % 32}",
        }
        narrow = [text for text, one in ((instruction.opcode, role), (clash.other.opcode, other_role)) if one.narrow]
        if narrow and not clash.inside:
            details["scope"] = f"{narrow[0]} is seen by its own block; other blocks need .gpu"
        elif clash.name in ("stale_read", "acquire_missing"):
            details["missing"] = "a __threadfence() (or an acquire) between the flag that told of it and this read"
        elif clash.told:
            fence = "__threadfence_block()" if clash.inside else "__threadfence()"
            details["missing"] = f"a {fence} between the other access and the flag or atomic that told of it"
        elif clash.apart:
            details["missing"] = "a __syncthreads() between the warp of this block that was told of it and this access"
        if {kind, clash.other_kind} <= {STRONG, POLL} and role.element != other_role.element:
            details["sizes"] = f"{role.element} and {other_role.element} bytes: only accesses of one size are atomic"
        if name == "lost_update":
            what = f"{'looks at' if role.looks else 'reads, changes'} and stores, without an atomic,"
            what = "swaps once, and nobody asks whether it did," if ".cas." in instruction.opcode else what
        else:
            what = f"{role.verb(kind)} of {role.nbytes} bytes at"
        ordered = "nothing orders the two"
        if clash.name in ("stale_read", "acquire_missing"):
            ordered = "a flag that told of it, but no fence after that"
        machine.report(
            name,
            f"{what} {clash.address:#x}, {where}; {other_role.verb(clash.other_kind)} by {whose}"
            f"{' (the same instruction)' if clash.other is instruction else ''}, and {ordered}"
            + (", which store one value" if same else ""),
            instruction, clash.lanes, clash.address, details, clash.other,
        )  # fmt: skip

    def report_alone(self, index: int, lanes: np.ndarray, address: int, writer: int, by: int) -> None:
        """An access to what a lane of another block has stored, of which another lane of its warp has told."""
        machine = self.machine
        other, (cta, thread) = machine.program.instructions[by], divmod(writer, machine.warps_per_cta * 32)
        block = machine.block_at(cta)
        machine.report(
            "lane_race",
            f"an access at {address:#x}, {machine.memory.describe(address)}; a write by lane {thread % 32} of warp "
            f"{thread // 32} of block {block}, of which another lane of that warp has told",
            machine.program.instructions[index], lanes, address,
            {
                "other_access": machine.reporter.sources.where(other),
                "other_thread": f"block {block}, warp {thread // 32}, lane {thread % 32}",
                "missing": "a __syncwarp() between the write and the flag of the lane that speaks for it",
            },
            other,
        )  # fmt: skip

    def _kind(self, role: Role, instruction: Instruction, kind: int, clash: Clash, other_role: Role, same: bool) -> str:
        program = self.machine.program
        pair, held = {kind, clash.other_kind}, self._held(clash, kind)
        narrow = (role.narrow or other_role.narrow) and not clash.inside
        payload = pair == {READ, STRONG} and (role.uncached or other_role.uncached)  # by __ldcg() and __stcg()
        if narrow or (clash.told and (payload or (pair <= {READ, WRITE} and not held))):
            return "fence_missing"
        if pair <= {STRONG, POLL} and role.element != other_role.element:
            return "global_race"
        stores = [i for i, k in ((instruction, kind), (clash.other, clash.other_kind)) if k == WRITE]
        loads = [i for i, k in ((instruction, kind), (clash.other, clash.other_kind)) if k == READ]
        changed = [i for i in (instruction, clash.other) if own_load(program, i) is not None]
        if pair == {STRONG}:
            return "lost_update"
        if {STRONG, POLL} & pair:
            if loads and changed and all(stored_back(program, load) for load in loads):
                return "lost_update"
            if loads and not clash.inside and any(kept(program, load) for load in loads):
                return "global_race"
            if stores and any(counts(program, i) for i in (instruction, clash.other)):
                return "global_race"  # what the atomic adds is lost
            if loads and clash.inside:  # the count of a block, read where a barrier is missing
                return "flag_race" if looks_before_an_atomic(program, loads[0]) else "global_race"
            if READ in pair or all(constant_stored(program, store) for store in stores) or held:
                return "flag_race"
            return "global_race"
        if changed and all(stored_back(program, load) for load in loads):
            return "lost_update"
        flag = READ in pair and constant_stored(program, stores[0]) and not any(kept(program, load) for load in loads)
        constant = all((one_value(program, store.index) or ("",))[0].startswith("constant") for store in stores)
        if same or flag or (held and (loads or constant)):
            return "flag_race"
        return "lane_race" if self.one_warp(clash) else "global_race"

    def one_warp(self, clash: Clash) -> bool:
        """Return whether both sides are lanes of one warp."""
        return clash.inside and clash.other_lane // 32 == (self.races.first_lane + int(clash.lanes[0])) // 32

    def _held(self, clash: Clash, kind: int) -> bool:
        """Return whether the units of plain stores have used the place by atomics, as who holds a lock has."""
        writers = [clash.other_lane] if clash.other_kind == WRITE else []
        writers += [int(self.races.lane[clash.lanes[0], 0]) - 1] if kind == WRITE else []
        telling, messages = self.races.telling, self.machine.shadow.messages
        if clash.inside:
            cluster = int(self.machine.cta_of_lane[clash.lanes[0]]) // self.machine.cluster_size
            return messages is not None and (cluster, clash.address) in messages.places
        return telling is not None and all(
            telling.has_listened(clash.address, lane // self.races.width) for lane in writers
        )
