"""A batch of blocks on the host: lanes as columns of register rows, and what handlers build on.

A block of the program is bound to the arrays of a machine when a lane first reaches it; running it is calling those
closures.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PtxError
from .bulk_copies import BulkCopies
from .calls import CallStack
from .clocks import make_shadow
from .clusters import Clusters
from .compiled import library
from .copies import AsyncCopies
from .engine import Engine, Entry
from .global_port import GlobalPort
from .global_races import GlobalRaces
from .hazards import Reporter
from .isa.registry import NUMPY, Compute, Step
from .link import function_address
from .local_memory import LocalMemory
from .mbarriers import Mbarriers
from .meetings import Meetings
from .memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, GlobalMemory
from .products import AsyncProducts
from .program import Program
from .ptx import Immediate, Instruction, Memory, Negated, Operand, Register, Special, Symbol, Vector
from .register_pool import RegisterPool
from .schedule import Scheduler
from .shadow import Shadow
from .shared_memory import SharedMemory
from .specials import places, special_registers
from .straight import Straight
from .trace import Trace
from .underflow import Underflow

if TYPE_CHECKING:
    from ..gpus import Gpu
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
Triple = tuple[int, int, int]
_WIDER = ("ld", "ldu", "st", "cvt", "cvta")
_FLOATS = ("f16", "f32", "f64", "bf16", "f16x2", "bf16x2")
_STORAGE = {0: np.bool_, 1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Machine:
    """`ctas` blocks of one launch at a time. Lane l belongs to block l // (32 * warps_per_cta) of the batch."""

    def __init__(
        self,
        program: Program,
        *,
        grid: Triple,
        block: Triple,
        params: bytes,
        memory: GlobalMemory,
        symbols: dict[str, int],
        shared_bytes: int,
        gpu: Gpu,
        reporter: Reporter,
        trace: Trace,
        ctas: int,
        limit: int,
        images: Mapping[int, Texture | BoundSurface] | None = None,
        cluster: Triple | None = None,
        grid_workspace: int = 0,
        order: Order | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.program = program
        self.recorder = recorder
        self.grid, self.block = grid, block
        self.memory = memory
        self.reporter = reporter
        self.trace = trace
        self.gpu = gpu
        self.symbols = symbols
        """Module variable -> address in global memory."""
        self.dynamic_shared = shared_bytes
        self.threads = block[0] * block[1] * block[2]
        """Threads of a block."""
        self.warps_per_cta = -(-self.threads // 32)
        self.ctas = ctas
        """Blocks of a batch; those of a cluster stand next to one another, in the order of their ranks."""
        self.cluster = cluster or (1, 1, 1)
        self.grid_workspace = grid_workspace
        """Address of what cooperative groups synchronise a grid with; 0 where the kernel does not ask for it."""
        self.cluster_given = cluster is not None
        self.cluster_size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.lanes = ctas * self.warps_per_cta * 32
        lane = np.arange(self.lanes)
        self.cta_of_lane = lane // (self.warps_per_cta * 32)
        self.warp_of_lane = (lane // 32 % self.warps_per_cta).astype(np.uint8)
        self.thread_of_lane = lane % (self.warps_per_cta * 32)
        self.first_cta = 0
        self.images = images or {}
        """Handle -> what it stands for."""
        self.order = order
        """An order drawn at random; None: all side by side."""
        self.limit = limit
        """Instructions that the batches may run, one after another."""
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
        self.banks: dict[int, np.ndarray] = {
            width: np.zeros((count, self.lanes + aside), _STORAGE[width])[:, : self.lanes]
            for width, count in program.row_counts.items()
        }
        self._scratch: dict[tuple[str, str, int], np.ndarray] = {}
        self.param_data = np.frombuffer(params.ljust(max(program.entry.parameter_bytes, 1), b"\0"), np.uint8)
        self.params = {parameter.name: parameter.offset for parameter in program.entry.parameters}
        self.specials = special_registers(self)
        total = self._dynamic_start() + shared_bytes if shared_bytes else program.static_shared
        self.shared = SharedMemory(self, total, 1 if program.sub_word_shared else 4)
        self.local = LocalMemory(self, program.local_bytes)
        races = GlobalRaces(self, grid[0] * grid[1] * grid[2])
        self.races = races if races.on else None
        """Judges accesses to global memory; None where there is nothing to judge."""
        self.meetings = Meetings(self.lanes // 32)
        """When lanes of the warps came together."""
        self.port = GlobalPort(self)
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
        self.mbarriers = Mbarriers(self)
        self.clusters = Clusters(self)
        self.registers = RegisterPool(self)
        self.shadow: Shadow = make_shadow(self)
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
        block = self.program.blocks[index]
        entries: list[Entry] = []
        self.binding, bound = index, block.start

        def finish() -> None:
            if self.straight and (run := self.straight.finish()):
                entries.append(Entry(None, run))

        for i in range(block.start, block.end):
            if i < bound:  # part of a group
                continue
            instruction, handler = self.program.instructions[i], self.program.handlers[i]
            bound = i + 1
            watch = self.products.watch(instruction) if self.products else None
            recorded = self.recorder is not None and self.recorder.wants(instruction)
            if watch:
                finish()
                entries.append(Entry(watch))
            if self.straight and not handler.ends_block and self.straight.take(instruction):
                continue
            finish()
            try:
                alone = watch or recorded or (self.lanes > FEW_LANES and not self.compiled)
                group = self._group(i, block.end) if handler.together and not alone else []
                if handler.together and len(group) > 1:
                    entries.append(Entry(handler.together(self, group)))
                    bound = i + len(group)
                    continue
                if self.engine:
                    self.engine.offered = None
                    if handler.ends_block:
                        self.engine.python_ends(index)
                step = handler.bind(self, instruction)
                access = self.engine.offered if self.engine and not recorded else None
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
                entries.append(Entry(guarded, access=access))
        finish()
        if self.engine:
            self.engine.bound(index, entries)
        steps = self.steps[index] = [entry.step for entry in entries if entry.step is not None]
        return steps

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
            if self.products and instruction.index in self.products.where.suspects:
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
        count = self.grid[0] * self.grid[1] * self.grid[2]
        born = (self.cta_of_lane + first_cta < count) & (self.thread_of_lane < self.threads)
        linear = self.cta_of_lane + first_cta
        for name, at, size in zip("xyz", self._block_at(linear), self.cluster, strict=True):
            self.specials[f"%ctaid.{name}"][:] = at
            self.specials[f"%clusterid.{name}"][:] = at // size
        self.specials["%smid"][:] = linear % self.gpu.sm_count
        for bank in self.banks.values():
            bank[:] = 0
        self.carry[:] = False
        self.shared.reset()
        self.local.reset()
        self.copies.reset()
        if self.products:
            self.products.reset()
        self.bulk.reset()
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

    def uses(self, operand: Operand) -> bool:
        """Whether any instruction reads a register of an operand."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return any(isinstance(item, Register) and item in self.program.ever_read for item in items)

    def meet(self, named: np.ndarray | None) -> None:
        """The active lanes of each warp come together; `named`: member masks, one a lane or one for all (None: all)."""
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
        self.shadow.meet(members)

    def finish(self) -> None:
        """The launch has ended: report what malloc gave and nobody can find any more."""
        for address, (instruction, cta, warp, lane) in self.heap.items():
            buffer = self.memory.find(address)
            if buffer is not None and not self.memory.holds(address):
                self.reporter.report(
                    "leak", f"{buffer.bytes} bytes of malloc are never freed, and no buffer holds their address",
                    instruction, cta=cta, warp=warp, lanes=(lane,), address=address,
                )  # fmt: skip

    # What handlers use.

    def set_mask(self, mask: np.ndarray | None) -> None:
        """Set the active lanes; None means all of the batch."""
        self.mask = mask
        self._lane_list = None
        self._mask_address = 0

    def mask_address(self) -> int:
        """Where the mask lies in memory; 0 when all lanes are active."""
        if self.mask is None:
            return 0
        if not self._mask_address:
            self._mask_address = int(self.mask.__array_interface__["data"][0])
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

    def scratch(self, kind: str, use: str = "", rows: int = 1) -> np.ndarray:
        """A temporary of `rows` elements a lane, valid within one step; `use` tells temporaries apart."""
        key = (kind, use, rows)
        if key not in self._scratch:
            self._scratch[key] = np.empty(self.lanes * rows, NUMPY[kind])
        return self._scratch[key]

    def row(self, register: Register) -> np.ndarray:
        """The row of a register, in its storage type."""
        return self.banks[register.width][self.program.rows[register]]

    def refusal(self, instruction: Instruction, what: str) -> PtxError:
        """A PtxError that names the instruction."""
        return PtxError(f"PTX line {instruction.ptx_line}: {instruction.text!r} {what}.")

    def expect(self, instruction: Instruction, holds: bool, what: str) -> None:
        """Raise PtxError unless `holds`."""
        if not holds:
            raise self.refusal(instruction, what)

    def _expect_width(self, instruction: Instruction, register: Register, have: int, need: int, does: str) -> None:
        """Raise PtxError unless a register has the width of the type; _WIDER instructions may use a wider one."""
        fits = have >= need if instruction.opcode.split(".")[0] in _WIDER else have == need
        self.expect(instruction, fits, f"{does} the .{register.kind} register {register.name}")

    def source(self, instruction: Instruction, operand: Operand, kind: str) -> np.ndarray:
        """A source as an array of the type's values: one a lane, or of length 1 when it is the same for all.

        It is a view: read it while the instruction runs, not when it is bound.
        """
        dtype = np.dtype(NUMPY[kind])
        if isinstance(operand, Register):
            row = self.row(operand)
            if kind == "pred" or operand.kind == "pred":
                self.expect(instruction, kind == operand.kind, f"reads %{operand.name} as .{kind}")
                return row
            self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"reads .{kind} from")
            return row.view(dtype)[:: row.itemsize // dtype.itemsize]
        if isinstance(operand, Immediate):
            self.expect(
                instruction, not (operand.float_bytes and kind[0] in "su"), f"has a constant that is not .{kind}"
            )
            return np.array([self._bits(operand, kind)], f"u{dtype.itemsize}").view(dtype)
        if isinstance(operand, Special):
            if operand.name not in self.specials:
                raise self.refusal(instruction, f"reads the special register {operand.name}, which is not known")
            values = self.specials[operand.name]
            return (
                values.view(dtype)[:: values.itemsize // dtype.itemsize]
                if dtype.itemsize <= values.itemsize
                else values
            )
        if isinstance(operand, Symbol):
            if self._moves(operand):
                return self.calls.address(operand.name, operand.offset).view(dtype)[:: 8 // dtype.itemsize]
            return np.array(
                [self.address(instruction, operand) % (1 << 8 * dtype.itemsize)], f"u{dtype.itemsize}"
            ).view(dtype)
        raise self.refusal(instruction, f"has an operand {operand!r} where a value is needed")

    @staticmethod
    def _bits(operand: Immediate, kind: str) -> int:
        nbytes = np.dtype(NUMPY[kind]).itemsize
        if kind == "f32" and operand.float_bytes == 8:
            value = struct.unpack("<d", struct.pack("<Q", operand.bits))[0]
            return int(np.float32(value).view(np.uint32))
        if kind == "f64" and operand.float_bytes == 4:
            return int(np.uint32(operand.bits).view(np.float32).astype(np.float64).view(np.uint64))
        return operand.bits & ((1 << 8 * nbytes) - 1)

    def address(self, instruction: Instruction, symbol: Symbol) -> int:
        """The address of a variable in its own state space (of a parameter: in the parameter window)."""
        for table, base in (
            (self.program.shared, 0),
            (self.program.local, 0),
            (self.symbols, 0),
            (self.params, PARAM_WINDOW),
        ):
            if symbol.name in table:
                return table[symbol.name] + base + symbol.offset
        code = function_address(self.program.module, symbol.name)
        if code is not None:
            return code
        raise self.refusal(instruction, f"names {symbol.name!r}, which is not declared")

    def pointer(self, instruction: Instruction, operand: Operand) -> tuple[np.ndarray, int]:
        """(base, offset) of a memory operand; base as from `source`, of 4 or 8 bytes."""
        if not isinstance(operand, Memory):
            raise self.refusal(instruction, "needs an address in brackets")
        if isinstance(operand.base, Register):
            kind = operand.base.kind
            self.expect(
                instruction, operand.base.width in (4, 8) and kind not in _FLOATS,
                f"has the address {operand.base.name}, a register of type .{kind}",
            )  # fmt: skip
            return self.source(instruction, operand.base, f"u{8 * operand.base.width}"), operand.offset
        if isinstance(operand.base, Immediate):
            return np.array([operand.base.bits], np.uint64), operand.offset
        if self._moves(operand.base):
            return self.calls.address(operand.base.name, operand.base.offset), operand.offset
        return np.array([self.address(instruction, operand.base)], np.uint64), operand.offset

    def _moves(self, symbol: Symbol) -> bool:
        """Whether it is a local variable of a function, whose address depends on the calls a lane is in."""
        return any(symbol.name in routine.local for routine in self.program.routines[:-1])

    def condition(self, instruction: Instruction, operand: Operand) -> Callable[[], np.ndarray]:
        """A predicate operand, perhaps negated or constant: call it for the bool values."""
        if isinstance(operand, Immediate):
            constant = np.array([operand.bits != 0])
            return lambda: constant
        known = self.specials.get(operand.name) if isinstance(operand, Special) else None
        if known is not None and known.dtype == np.bool_:
            return lambda: known
        register = operand.register if isinstance(operand, Negated) else operand
        if not isinstance(register, Register) or register.kind != "pred":
            raise self.refusal(instruction, f"needs a predicate, not {operand!r}")
        row = self.row(register)
        return (lambda: ~row) if isinstance(operand, Negated) else (lambda: row)

    def following(self, instruction: Instruction) -> int:
        """The block after an instruction that ends its block."""
        return self.program.block_at.get(instruction.index + 1, 0)

    def label(self, instruction: Instruction, operand: Operand) -> int:
        """The block at a label."""
        if isinstance(operand, Symbol) and operand.name in self.program.entry.labels:
            index = self.program.entry.labels[operand.name]
            if index in self.program.block_at:
                return self.program.block_at[index]
        raise self.refusal(instruction, f"branches to {operand!r}, which is nowhere")

    def keep(
        self, instruction: Instruction, operand: Operand, kind: str, compute: Compute, sources: list[np.ndarray]
    ) -> Step:
        """The step that computes a value of type `kind` and writes it to a register, for the active lanes."""
        if operand is None:
            return lambda: None
        if not isinstance(operand, Register):
            raise self.refusal(instruction, "has no register as its destination")
        row = self.row(operand)
        dtype = np.dtype(NUMPY[kind])
        temporary = self.scratch(kind, "keep")
        self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"writes .{kind} to")
        self.expect(instruction, (kind == "pred") == (operand.kind == "pred"), f"writes .{kind} to {operand.name}")
        if row.itemsize == dtype.itemsize:
            target = row.view(dtype)

            def step() -> None:
                if self.mask is None:
                    compute(target, *sources)
                else:
                    compute(temporary, *sources)
                    np.putmask(target, self.mask, temporary)  # a fifth of the time of copyto with `where`

            return step
        wide = row.view(np.dtype(f"{dtype.kind if dtype.kind in 'iu' else 'u'}{row.itemsize}"))

        def widened() -> None:
            compute(temporary, *sources)
            bits = temporary if dtype.kind in "iu" else temporary.view(f"u{dtype.itemsize}")
            if self.mask is None:
                np.copyto(wide, bits)
            else:
                np.putmask(wide, self.mask, bits)

        return widened

    def write(
        self, operand: Operand, kind: str, instruction: Instruction
    ) -> Callable[[np.ndarray, np.ndarray | None], None]:
        """A function (values, lanes) that writes values of type `kind` to a register; lanes None means all.

        A register wider than the type takes the value extended by the type's sign.
        """
        if operand is None:
            return lambda values, lanes: None
        if not isinstance(operand, Register):
            raise self.refusal(instruction, "has no register as its destination")
        row = self.row(operand)
        dtype = np.dtype(NUMPY[kind])
        self._expect_width(instruction, operand, row.itemsize, dtype.itemsize, f"writes .{kind} to")
        self.expect(instruction, (kind == "pred") == (operand.kind == "pred"), f"writes .{kind} to {operand.name}")
        same = row.itemsize == dtype.itemsize
        target = row.view(dtype) if same else row.view(f"{dtype.kind if dtype.kind in 'iu' else 'u'}{row.itemsize}")
        narrow = dtype if same or dtype.kind in "iu" else np.dtype(f"u{dtype.itemsize}")

        def put(values: np.ndarray, lanes: np.ndarray | None) -> None:
            if lanes is None:
                np.copyto(target, values.view(narrow))
            else:
                target[lanes] = values.view(narrow)

        return put

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
    ) -> None:
        """Report a hazard of lanes of the batch; it is named after the warp of the first of them. `other`: the other
        side of a race."""
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
        )


def _only_registers(operand: Operand) -> tuple[Register, ...]:
    """The registers that an operand is; none if anything else is in it."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    found = tuple(item for item in items if isinstance(item, Register))
    return found if len(found) == len(items) else ()


WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}
"""State space -> where it lies in the generic address space. Global and constant memory lie there as they are."""
