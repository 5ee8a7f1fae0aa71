"""A batch of blocks on the host: lanes as columns of register rows, and what handlers build on.

A block of the program is bound to the arrays of a machine when a lane first reaches it; running it is calling those
closures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PtxError
from ..gpus import find_gpu
from .bulk_copies import BulkCopies
from .calls import CallStack
from .clusters import Clusters
from .compiled import address, library
from .copies import AsyncCopies
from .engine import BlockPart, Engine
from .garbage import uncollected
from .global_port import GlobalPort
from .global_races import GlobalRaces
from .hazards import Reporter
from .isa.registry import Step
from .kept_patterns import leave, take
from .local_memory import LocalMemory
from .make_shadow import make_shadow
from .mbarriers import Mbarriers
from .meetings import Meetings
from .memory import GlobalMemory
from .operands import MachineOperands
from .products import AsyncProducts
from .program import Code
from .ptx import Instruction, Operand, Register, Vector
from .register_pool import RegisterPool
from .schedule import Scheduler
from .shadow import Shadow
from .shared_memory import SharedMemory
from .specials import places, special_registers
from .straight import Item, Straight
from .task import LIMIT, Task, Triple
from .tensor_maps import ChangedMaps
from .trace import Trace
from .underflow import Underflow
from .uses import Parts, used_parts

if TYPE_CHECKING:
    from .orders import Order
    from .recorder import Recorder
    from .textures import BoundSurface, Texture

FEW_LANES = 4096
"""Batches up to this size bind runs of equal instructions together, lest the cost of NumPy calls prevail."""
GROUP_ELEMENTS = 8192
"""Lanes of all instructions of such a run, in NumPy."""
GROUP_COMPILED = 64
"""Instructions of one for the compiled loops."""
ASIDE = 32
"""Lanes between two rows of registers for the compiled loops: rows a power of two apart lie in few sets of a cache."""
HEAP_BYTES = 8 << 20
"""What kernels may have of malloc at once: a GPU's default."""
PULSE = 1.0
"""Seconds between two signs of life."""
_STORAGE = {0: np.bool_, 1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Machine(MachineOperands):
    """`ctas` blocks of one launch at a time. Lane l belongs to block l // (32 * warps_per_cta) of the batch."""

    def __init__(
        self, program: Code, task: Task, memory: GlobalMemory, reporter: Reporter, trace: Trace,
        images: Mapping[int, Texture | BoundSurface], grid_workspace: int, order: Order | None,
        recorder: Recorder | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.program, self.memory, self.reporter, self.trace = program, memory, reporter, trace
        self.recorder = recorder
        self.images = images
        """Handle -> what it stands for."""
        self.order = order
        """An order drawn at random; None: all side by side."""
        self.grid_workspace = grid_workspace
        """Address of what cooperative groups synchronise a grid with; 0 where the kernel does not ask for it."""
        self.gpu = find_gpu(task.gpu)
        self.symbols, self.dynamic_shared = task.symbols, task.shared_bytes
        self.grid, self.block, self.ctas = task.grid, task.block, task.ctas
        self.threads, self._blocks = task.threads, task.blocks
        """Threads of a block."""
        self.batches = len(task.batches)
        """Of the whole launch."""
        self.warps_per_cta = -(-self.threads // 32)
        self.cluster = task.cluster or (1, 1, 1)
        self.cluster_given = task.cluster is not None
        self.cluster_size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.lanes = self.ctas * self.warps_per_cta * 32
        lane = np.arange(self.lanes)
        self.cta_of_lane = lane // (self.warps_per_cta * 32)
        self.warp_of_lane = (lane // 32 % self.warps_per_cta).astype(np.uint8)
        self.thread_of_lane = lane % (self.warps_per_cta * 32)
        self.first_cta = 0
        self.alive: Callable[[], None] | None = None
        """Is called now and then while a batch runs."""
        self._next_pulse = time.monotonic() + PULSE
        self.undefined: int | None = None
        """What a shuffle reads of a lane that does not run it, where that is suspect; None: the reader's own value."""
        self.limit = LIMIT if task.limit is None else task.limit
        """Instructions that the batches may run, one after another; each by itself where the launch names no limit."""
        self._counts_all = task.limit is not None
        self.ran_before = 0
        """Instructions of batches before this one, as far as they count."""
        self.clock = np.zeros(1, np.uint64)
        """Instructions a batch has run: what %clock reads."""
        self.mask: np.ndarray | None = None
        """Active lanes, bool; None when all are."""
        self._lane_list: np.ndarray | None = None
        self._mask_address = 0
        self.compiled = library()
        """The compiled loops; None where there are none."""
        aside = ASIDE if self.compiled else 0
        self.banks = {
            width: np.zeros((count, self.lanes + aside), _STORAGE[width])[:, : self.lanes]
            for width, count in program.row_counts.items()
        }
        self.param_data = np.frombuffer(task.params.ljust(max(program.entry.parameter_bytes, 1), b"\0"), np.uint8)
        self.params = {parameter.name: parameter.offset for parameter in program.entry.parameters}
        self.specials = special_registers(self)
        total = self._dynamic_start() + task.shared_bytes if task.shared_bytes else program.static_shared
        self.shared = SharedMemory(self, total, program.shared_granule)
        trace.patterns = take(self)
        self.local = LocalMemory(self, program.local_bytes)
        self.meetings = Meetings(self.lanes // 32)
        """When lanes of the warps came together."""
        self.underflow = Underflow()
        self.carry = np.zeros(self.lanes, bool)
        """The flag of add.cc and its like."""
        self.copies = AsyncCopies(self)
        self.products = AsyncProducts(self, program.products) if program.products else None
        """What wgmma has in flight; None for a program without."""
        self.calls = CallStack(self)
        self.heap: dict[int, tuple[Instruction, Triple, int, int]] = {}
        """What malloc has given and free has not taken back: the call, and its block, warp and lane."""
        self.heap_bytes = HEAP_BYTES
        self.bulk = BulkCopies(self)
        self.maps = ChangedMaps(self)
        self.mbarriers = Mbarriers(self)
        self.clusters = Clusters(self)
        self.registers = RegisterPool(self)
        self.shadow: Shadow = make_shadow(self)
        races = GlobalRaces(self, task.blocks)
        self.races = races if races.on else None
        """Judges accesses to global memory; None where there is nothing to judge."""
        self.port = GlobalPort(self)
        self.scheduler = Scheduler(self)
        self.straight = Straight(self, self.compiled) if self.compiled else None
        """Binds runs of plain instructions to the compiled loops, where there are any."""
        self.engine = Engine(self, self.compiled) if self.compiled else None
        """Runs the batches, where there are compiled loops."""
        self.binding = -1
        """The block that is being bound."""
        self.steps: list[list[Step] | None] = [None] * len(program.blocks)
        """Of each block that was reached, all but what ends it; of those that the engine runs what Python does."""
        self.finals: list[Step] = [self._falling(index + 1) for index in range(len(program.blocks))]
        if len(program.routines) > 1:  # a function that is entered sets the addresses that are bound by then
            for index in range(len(program.blocks)):
                self.bind(index)

    def _dynamic_start(self) -> int:
        names = [v.name for v in self.program.module.variables if v.space == "shared" and v.extern]
        starts = [self.program.shared[name] for name in names if name in self.program.shared]
        return max(starts, default=-(-self.program.static_shared // 16) * 16)

    def bind(self, index: int) -> list[Step]:
        """Bind a block that has not been: its steps. Raises PtxError for what an instruction cannot be given."""
        with uncollected():
            return self._bind(index)

    def _bind(self, index: int) -> list[Step]:
        entries: list[BlockPart] = []
        self.binding = index
        known = self.straight.items(index) if self.straight and self.recorder is None else None
        if known is None:
            self._bind_new(index, entries)
        else:
            self._bind_again(index, entries, known)
        if self.engine:
            self.engine.bound(index, entries)
        steps = self.steps[index] = [entry.step for entry in entries if entry.step is not None]
        return steps

    def _bind_again(self, index: int, entries: list[BlockPart], items: list[Item]) -> None:
        """Bind a block that another machine has bound."""
        watched = -1
        for kind, first, count in items:
            if kind == "run":
                assert self.straight is not None
                entries.append(BlockPart(None, self.straight.run(first, count)))
            elif kind == "watch":
                assert self.products is not None
                watched = first
                entries.append(BlockPart(self.products.watch(self.program.instructions[first])))
            else:
                self._bind_one(index, first, entries, alone=first == watched)

    def _bind_new(self, index: int, entries: list[BlockPart]) -> None:
        """Bind a block that has not been bound before, and tell later machines how."""
        block, straight = self.program.blocks[index], self.straight
        bound = block.start
        items: list[Item] = []

        def finish() -> None:
            if straight and (found := straight.finish()):
                run, item = found
                entries.append(BlockPart(None, run))
                items.append(item)

        for i in range(block.start, block.end):
            if i < bound:  # part of a group
                continue
            instruction, handler = self.program.instructions[i], self.program.handlers[i]
            bound = i + 1
            watch = self.products.watch(instruction) if self.products else None
            if watch:
                finish()
                entries.append(BlockPart(watch))
                items.append(("watch", i, 0))
            if straight and not handler.ends_block and straight.take(instruction):
                continue
            finish()
            bound = self._bind_one(index, i, entries, alone=watch is not None)
            items.append(("bind", i, 0))
        finish()
        if straight and self.recorder is None:
            straight.learn(index, items)

    def _bind_one(self, index: int, i: int, entries: list[BlockPart], *, alone: bool) -> int:
        """Bind an instruction by its handler, if not `alone` with those that follow; the one to go on with."""
        instruction, handler = self.program.instructions[i], self.program.handlers[i]
        recorded = self.recorder is not None and self.recorder.wants(instruction)
        try:
            alone = alone or recorded or (self.lanes > FEW_LANES and not self.compiled)
            group = self._group(i, self.program.blocks[index].end) if handler.together and not alone else []
            if self.engine:
                self.engine.offered = self.engine.products = None
                if handler.ends_block:
                    self.engine.python_ends(index)
            if handler.together and len(group) > 1:
                step = handler.together(self, group)
                entries.append(BlockPart(step, products=self.engine.products if self.engine else None))
                return i + len(group)
            step = handler.bind(self, instruction)
            access = self.engine.offered if self.engine and not recorded else None
            products = self.engine.products if self.engine and not recorded and not instruction.guard else None
            if recorded and self.recorder is not None:
                step = self.recorder.watched(self, instruction, step)
        except (KeyError, ValueError, AttributeError, IndexError, TypeError) as error:
            if isinstance(error, PtxError):
                raise
            count = len(instruction.operands)
            why = f"has {count} operands, which are not those of its form" if "unpack" in str(error) else ""
            raise self.refusal(instruction, why or f"cannot be bound ({error!r})") from error
        if handler.ends_block:
            self.finals[index] = step
        else:
            guarded = step if instruction.guard is None else self._guarded(instruction, step)
            entries.append(BlockPart(guarded, access=access, products=products))
        return i + 1

    def _group(self, start: int, end: int) -> list[Instruction]:
        """Instructions from `start` on with one opcode, none of which reads or writes what another writes."""
        first = self.program.instructions[start]
        group: list[Instruction] = []
        written: set[int] = set()
        most = GROUP_COMPILED if self.compiled else GROUP_ELEMENTS // self.lanes
        for instruction in self.program.instructions[start : min(end, start + most)]:
            if instruction.opcode != first.opcode or instruction.guard:
                break
            to, *sources = [_only_registers(operand) for operand in instruction.operands]
            registers = [*to, *(register for source in sources for register in source)]
            if not (to and all(sources)):
                break
            if self.products and self.products.watches(instruction):
                break
            rows = {self.program.rows[register] for register in registers}
            if written & rows or len({register.width for register in registers}) > 1:
                break
            written |= {self.program.rows[register] for register in to}
            group.append(instruction)
        return group

    def _falling(self, following: int) -> Step:
        scheduler = self.scheduler
        if following < len(self.program.blocks):
            return lambda: scheduler.goto(following)
        return lambda: scheduler.leave(None, 0)

    def _guarded(self, instruction: Instruction, step: Step) -> Step:
        assert instruction.guard is not None
        row, negated = self.row(instruction.guard), instruction.guard_negated
        counts, index = self.trace.guarded, instruction.index

        def guarded() -> None:
            outer, outer_lanes = self.mask, self._lane_list
            mask = ~row if negated else row.copy()
            if outer is not None:
                mask &= outer
            count = int(np.count_nonzero(mask))
            if not count:
                return
            counts[index] += count
            self.set_mask(None if count == self.lanes else mask)
            step()
            self.mask, self._lane_list, self._mask_address = outer, outer_lanes, 0

        return guarded

    def run(self, first_cta: int) -> None:
        """Run the batch of blocks that starts at linear block number `first_cta`."""
        self.first_cta = first_cta
        born = (self.cta_of_lane + first_cta < self._blocks) & (self.thread_of_lane < self.threads)
        linear = np.arange(first_cta, first_cta + self.ctas)

        def tell(name: str, of_blocks: np.ndarray) -> None:
            self.specials[name].reshape(self.ctas, -1)[:] = of_blocks[:, None]

        for name, at, size in zip("xyz", self._block_at(linear), self.cluster, strict=True):
            tell(f"%ctaid.{name}", at)
            if size > 1:  # else it is the same array
                tell(f"%clusterid.{name}", at // size)
        tell("%smid", linear % self.gpu.sm_count)
        for bank in self.banks.values():
            bank[:] = 0
        self.carry[:] = False
        self.shared.reset()
        self.local.reset()
        self.copies.reset()
        if self.products:
            self.products.reset()
        self.bulk.reset()
        self.maps.reset()
        self.mbarriers.reset()
        self.clusters.reset()
        self.registers.reset()
        self.shadow.reset()
        self.meetings.reset()
        if self.races:
            self.races.start(first_cta)
        self.clock[0] = 0
        self.calls.reset()
        self.scheduler.start(born)
        self.scheduler.run()
        if self.engine:
            self.engine.count()
        if self._counts_all:
            self.ran_before += int(self.clock[0])

    @cached_property
    def warpgroups(self) -> np.ndarray:
        """The first warp, in the batch, of each whole warpgroup."""
        groups = np.arange(self.warps_per_cta // 4) * 4
        return np.asarray((np.arange(self.ctas)[:, None] * self.warps_per_cta + groups).reshape(-1))

    @cached_property
    def warpgroup_of_lane(self) -> np.ndarray:
        """Numbers of warpgroups, as many apart from block to block as it has warps."""
        return np.asarray(self.cta_of_lane * self.warps_per_cta + self.warp_of_lane // 4)

    @cached_property
    def used_parts(self) -> dict[int, Parts]:
        """The bytes of loads that are computed with: see uses.py."""
        return used_parts(self.program)

    def pulse(self) -> None:
        """Say that the batch runs, where somebody wants to know and has not heard for long."""
        if self.alive is not None and (now := time.monotonic()) > self._next_pulse:
            self._next_pulse = now + PULSE
            self.alive()

    def repeats(self) -> bool:
        """Return whether the block that is being bound may be run more than once by all of its lanes together."""
        return self.batches > 1 or self.program.repeats[self.binding]

    def uses(self, operand: Operand) -> bool:
        """Return whether any instruction reads a register of an operand."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return any(isinstance(item, Register) and item in self.program.readers for item in items)

    def meet(self, named: np.ndarray | None, who: np.ndarray | None = None, *, firmly: bool = True) -> None:
        """Let active lanes, or those marked in `who`, of each warp come together. `named`: member masks, one per lane
        or for all (None: all). `firmly`: by what orders memory, too."""
        if who is not None:
            active = self.mask
            self.set_mask(who)
            self.meet(named, firmly=firmly)
            self.set_mask(active)
            return
        members = None
        if named is not None:
            members = np.broadcast_to(named, (self.lanes,)).astype(np.uint32)
            if self.mask is not None:
                members[~self.mask] = 0
            if ((members == 0xFFFFFFFF) | (members == 0)).all():
                members = None
        if members is None:
            self.meetings.whole(None if self.mask is None else self.mask.reshape(-1, 32).any(axis=1))
        else:
            self.meetings.some(members, self.scheduler.live)
        self.shadow.meet(members, firmly)

    def finish(self) -> None:
        """The launch has ended: report what malloc gave and nobody can find any more."""
        for at, (instruction, cta, warp, lane) in self.heap.items():
            buffer = self.memory.find(at)
            if buffer is not None and not self.memory.holds(at):
                self.reporter.report(
                    "leak", f"{buffer.bytes} bytes of malloc are never freed, and no buffer holds their address",
                    instruction, cta=cta, warp=warp, lanes=(lane,), address=at,
                )  # fmt: skip

    def take_apart(self) -> None:
        """Let go of everything: steps and what they are bound to refer to one another, thousands of objects and all
        the memory of the blocks, which else the garbage collector has to find."""
        leave(self)
        if self.straight:
            self.straight.share()
        for track in self.races.tracks if self.races else ():
            track.buffer.track = None
        for part in (self.engine, self.races, getattr(self.shadow, "inner", None), self.shadow, self.scheduler):
            if part is not None:
                vars(part).clear()
        vars(self).clear()

    # What handlers use.

    def set_mask(self, mask: np.ndarray | None) -> None:
        """Set the active lanes; None means all of the batch."""
        self.mask = mask
        self._lane_list = None
        self._mask_address = 0

    def mask_address(self) -> int:
        """Return where the mask lies in memory; 0 when all lanes are active."""
        if self.mask is None:
            return 0
        if not self._mask_address:
            self._mask_address = address(self.mask)
        return self._mask_address

    def lane_list(self) -> np.ndarray | None:
        """The active lanes as indices, or None when all are active."""
        if self.mask is None:
            return None
        if self._lane_list is None:
            self._lane_list = np.flatnonzero(self.mask)
        return self._lane_list

    @staticmethod
    def some(lanes: np.ndarray | None, chosen: np.ndarray) -> np.ndarray:
        """The chosen ones of `lanes` (None: of all)."""
        return np.flatnonzero(chosen) if lanes is None else lanes[chosen]

    def coordinates(self, cta: int) -> Triple:
        """The block of the grid that is the batch's block number `cta`."""
        return self.block_at(self.first_cta + cta)

    def block_at(self, linear: int) -> Triple:
        """The block of the grid that runs as number `linear`."""
        x, y, z = self._block_at(linear)
        return int(x), int(y), int(z)

    def _block_at(self, linear: Any) -> tuple[Any, Any, Any]:
        """The coordinates of the block that runs as number `linear`: clusters one after another, their ranks inside."""
        within = places(linear % self.cluster_size, self.cluster)
        clusters = tuple(blocks // size for blocks, size in zip(self.grid, self.cluster, strict=True))
        first = places(linear // self.cluster_size, clusters)  # type: ignore[arg-type]
        x, y, z = (size * a + b for size, a, b in zip(self.cluster, first, within, strict=True))
        return x, y, z

    def report(
        self,
        kind: str,
        message: str,
        instruction: Instruction,
        lanes: np.ndarray,
        address: int | None,
        details: dict[str, Any] | None = None,
        other: Instruction | None = None,
        suspect: bool = False,
    ) -> None:
        """Report a hazard of lanes of the batch; it is named after the warp of the first of them. `other`: the other
        side of a race. `suspect`: it is one only if the result depends on it."""
        first = int(lanes[0])
        here = lanes[lanes // 32 == first // 32]
        self.reporter.report(
            kind,
            message,
            instruction,
            cta=self.coordinates(int(self.cta_of_lane[first])),
            warp=int(self.warp_of_lane[first]),
            lanes=tuple((here % 32).tolist()),
            address=address,
            details=details,
            other=other,
            suspect=suspect,
        )


def _only_registers(operand: Operand) -> tuple[Register, ...]:
    """The registers that an operand is; none if anything else is in it."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return items if set(map(type, items)) <= {Register} else ()  # type: ignore[return-value]
