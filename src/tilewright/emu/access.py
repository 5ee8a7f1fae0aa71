"""How a batch of warps reaches memory: addresses -> checked element indices, with the counts that belong to them.

A loop repeats its address patterns: in shared memory exactly, in global memory up to a common shift. What follows from
a pattern (bounds, alignment, bank conflicts, sectors, element indices) is therefore worked out once and remembered at
the instruction; only that the addresses are the same is checked each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import banks, coalesce
from .compiled import address
from .memory import ARENA_BASE, ELEMENT, POISON, Buffer, aligned_bytes, element_views
from .ptx import Instruction
from .trace import Site

if TYPE_CHECKING:
    from .global_races import GlobalRaces
    from .machine import Machine

MOST_BUFFERS = 64
"""Races between blocks are judged of an access that reaches so many buffers at once."""
REMEMBERED = 32
"""Patterns kept at one instruction."""
PEER = 1 << 24
"""A shared address of a peer in the cluster is its rank plus 1 times this, plus the address within that block."""
_ACCESS = {"read": "load", "write": "store", "atomic": "store", "copy": "copy"}
"""Kind of access -> what emu/banks.py calls it."""
REMEMBERED_COUNTS = 256
"""Shapes of shared access whose bank conflicts are kept."""


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and bool((a == b).all())


def _only_writes(machine: Machine, instruction: Instruction) -> bool:
    """Whether an atomic is an exchange whose old value nobody uses."""
    exchange = ".exch" in instruction.opcode
    return exchange and not (instruction.opcode.startswith("atom") and machine.uses(instruction.operands[0]))


def _judged(instruction: Instruction, nbytes: int) -> int:
    """Of how many bytes some have to hold a value for a load: structs, which have padding, are not copied as floats."""
    kind = instruction.fields.get("type", "")
    return int(kind[1:]) // 8 if kind in ("f32", "f64") else nbytes


def _in_warps(machine: Machine, lanes: np.ndarray | None, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Addresses of `lanes` laid out as [warps, 32] with the mask of the active; warps with none left out."""
    if lanes is None:
        grid = addresses.reshape(-1, 32)
        return grid, np.ones(grid.shape, bool)
    every = np.zeros(machine.lanes, np.int64)
    active = np.zeros(machine.lanes, bool)
    every[lanes] = addresses
    active[lanes] = True
    keep = active.reshape(-1, 32).any(axis=1)
    return every.reshape(-1, 32)[keep], active.reshape(-1, 32)[keep]


def _sectors(machine: Machine, lanes: np.ndarray | None, addresses: np.ndarray, nbytes: int) -> int:
    """Sectors of all warps of an access: addresses int64, one for each of `lanes`."""
    if machine.compiled is not None:
        places = 0 if lanes is None else address(lanes)
        return int(machine.compiled.sectors(address(addresses), places, len(addresses), nbytes))
    grid, active = _in_warps(machine, lanes, addresses)
    return int(coalesce.sectors(grid, nbytes, active).sum())


class SharedPattern:
    """One set of addresses of one instruction in shared memory.

    `kind`: "read", "write", "atomic"; "copy" (cp.async); "tensor" (wgmma reads); of bulk copies "bulk_write",
    "bulk_merge" (a reduction) and "bulk_read".
    """

    __slots__ = (
        "addresses", "base", "batch", "first", "granules", "ideal", "index", "instruction", "kind", "landing", "lanes",
        "nbytes", "offsets", "peers", "requests", "warps", "wavefronts",
    )  # fmt: skip

    def __init__(self, kind: str, instruction: Instruction, nbytes: int) -> None:
        self.kind = kind
        self.instruction = instruction
        self.nbytes = nbytes
        self.lanes: np.ndarray | None = None
        """Active lanes of the batch; None: all."""
        self.base: np.ndarray
        self.first = 0
        self.addresses: np.ndarray
        """Byte address in the block's shared memory, for each active lane."""
        self.index: np.ndarray
        """Element index in the batch's shared memory."""
        self.offsets: np.ndarray
        """The same in bytes."""
        self.granules: np.ndarray
        """Granule indices in the batch's shared memory, [active lanes, granules a lane]."""
        self.warps: np.ndarray
        """Warp within the block plus 1, uint8, for each active lane."""
        self.peers: np.ndarray | None = None
        """Block of the batch whose shared memory each lane reaches; None: its own."""
        self.requests = self.wavefronts = self.ideal = 0
        self.batch = -1
        """The batch in which these bytes are known to be initialised."""
        self.landing: Any = None
        """For a copy: the event of its landing."""


class SharedMemory:
    """Shared memory of every block of a batch, with a mark of what has been written."""

    def __init__(self, machine: Machine, nbytes: int, granule: int) -> None:
        self.machine = machine
        self.bytes = nbytes
        """Bytes of one block."""
        self.granule = granule
        self.stride = max(-(-nbytes // 128) * 128, 128)
        self.data = aligned_bytes(machine.ctas * self.stride)
        self.host = address(self.data)
        """Where its first byte lies in this process."""
        self.views = element_views(self.data)
        self.initialised = np.zeros(machine.ctas * self.stride // granule, bool)
        self.zones: np.ndarray | None = None
        """Of each byte of a block whether it lies between two arrays, where that is looked for."""
        if machine.program.red_zones:
            self.zones = machine.program.between_arrays(nbytes)
        self.batch = 0
        self._counts: dict[tuple[str, int, bytes, bytes | None], tuple[int, int, int]] = {}

    def reset(self) -> None:
        """Forget everything: a new batch of blocks starts."""
        self.data[:] = 0xFF
        self.initialised[:] = False
        self.batch += 1

    def locate(
        self,
        site: Site,
        kind: str,
        instruction: Instruction,
        base: np.ndarray,
        offset: int,
        nbytes: int,
        *,
        counted_as: str = "",
        peers: bool = True,
    ) -> SharedPattern | None:
        """Check and count one access of the active lanes; None if no lane is left.

        `base`: uint32, uint64 or int64, one a lane of the batch, or of length 1 for all. `kind`: as SharedPattern's.
        `counted_as`: the access of emu/banks.py where it is not the usual one of the kind ("matrix" for ldmatrix).
        `peers`: whether addresses may be those of other blocks of the cluster.
        """
        lanes = self.machine.lane_list()
        if lanes is not None and not len(lanes):
            return None
        alike = self._comparison(base, lanes)
        first, count = int(base[0 if lanes is None or len(base) == 1 else lanes[0]]), len(site.patterns)
        pattern = None
        for _ in range(count):
            known = site.patterns[0]
            if known.first == first and _same(known.lanes, lanes) and alike(known.base):
                pattern = known
                break
            site.patterns.append(site.patterns.pop(0))  # a loop comes back to its patterns in order
        if pattern is None:
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            access = counted_as or _ACCESS[kind]
            pattern = self._learn(site, kind, instruction, lanes, seen, offset, nbytes, access, peers)
            if pattern is None:
                return None
        elif count > 1:
            site.patterns.append(site.patterns.pop(0))
        site.requests += pattern.requests
        site.wavefronts += pattern.wavefronts
        site.ideal += pattern.ideal
        if pattern.peers is not None:
            assert pattern.lanes is not None
            self.expect_running(instruction, pattern.lanes, pattern.peers)
        if pattern.batch != self.batch:
            self._initialised(pattern)
        self.machine.shadow.record(pattern)
        return pattern

    def _comparison(self, base: np.ndarray, lanes: np.ndarray | None) -> Callable[[np.ndarray], bool]:
        """A function: whether the lanes' addresses are the known ones."""
        compiled = self.machine.compiled
        if compiled is None or len(base) != self.machine.lanes or base.strides != (base.itemsize,):
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            return lambda known: _same(known, seen)
        at, places, size = address(base), 0 if lanes is None else address(lanes), base.itemsize
        count = len(base) if lanes is None else len(lanes)

        def alike(known: np.ndarray) -> bool:
            same_kind = len(known) == count and known.itemsize == size
            return same_kind and bool(compiled.equal(at, places, count, address(known), size))

        return alike

    def reach(self, lanes: np.ndarray, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(block of the batch, address within it) of shared addresses, one for each of `lanes`.

        An address that is nobody's stays as it is, beyond every block's memory.
        """
        own = self.machine.cta_of_lane[lanes]
        rank = addresses // PEER
        size = self.machine.cluster_size
        known = (rank > 0) & (rank <= size)
        return np.where(known, own // size * size + rank - 1, own), np.where(known, addresses % PEER, addresses)

    def expect_running(self, instruction: Instruction, lanes: np.ndarray, ctas: np.ndarray) -> bool:
        """Report lanes that reach a block which has ended; whether there were none."""
        ended = ~self.machine.scheduler.running()[ctas]
        if ended.any():
            machine = self.machine
            rank = int(ctas[ended][0]) % machine.cluster_size
            machine.report(
                "peer_exited",
                f"shared memory of block {rank} of the cluster is touched, and that block has ended",
                instruction, lanes[ended], None,
            )  # fmt: skip
        return not ended.any()

    def _learn(
        self,
        site: Site,
        kind: str,
        instruction: Instruction,
        lanes: np.ndarray | None,
        seen: np.ndarray,
        offset: int,
        nbytes: int,
        access: str,
        peers: bool,
    ) -> SharedPattern | None:
        machine = self.machine
        count = machine.lanes if lanes is None else len(lanes)
        addresses = np.empty(count, np.int64)
        addresses[:] = seen.astype(np.int64) + offset
        if seen.dtype.itemsize == 4:
            addresses &= 0xFFFFFFFF
        ctas = None
        if (addresses >= PEER).any():
            lanes = np.arange(machine.lanes) if lanes is None else lanes
            ctas, addresses = self.reach(lanes, addresses)
            if not peers and (far := ctas != machine.cta_of_lane[lanes]).any():
                machine.report(
                    "out_of_bounds", f"{kind} of {nbytes} bytes as .shared::cta in another block of the cluster",
                    instruction, lanes[far], int(addresses[far][0]),
                )  # fmt: skip
                return None
        outside = (addresses < 0) | (addresses + nbytes > self.bytes)
        if self.zones is not None:
            inside = np.where(outside, 0, addresses)
            between = ~outside & (self.zones[inside] | self.zones[np.where(outside, 0, addresses + nbytes - 1)])
            outside |= between
        skewed = addresses % nbytes != 0
        remembered = not (outside.any() or skewed.any())
        if outside.any():
            at = int(addresses[outside][0])
            machine.report(
                "out_of_bounds",
                f"{kind} of {nbytes} bytes at shared address {at:#x}; "
                + (f"the block has {self.bytes} bytes of it" if self.zones is None else self._around(at)),
                instruction, machine.some(lanes, outside), at,
            )  # fmt: skip
        elif skewed.any():
            at = int(addresses[skewed][0])
            machine.report(
                "misaligned",
                f"{kind} of {nbytes} bytes at shared address {at:#x}, which is not a multiple of {nbytes}",
                instruction, machine.some(lanes, skewed), at,
            )  # fmt: skip
        if not remembered:
            good = ~(outside | skewed)
            lanes = np.flatnonzero(good) if lanes is None else lanes[good]
            addresses = addresses[good]
            ctas = None if ctas is None else ctas[good]
            if not len(lanes):
                return None
        pattern = SharedPattern(kind, instruction, nbytes)
        pattern.lanes, pattern.base, pattern.first = lanes, seen.copy(), int(seen[0])
        pattern.addresses = addresses
        every = slice(None) if lanes is None else lanes
        pattern.peers = ctas
        start = (machine.cta_of_lane[every] if ctas is None else ctas) * self.stride + addresses
        pattern.offsets, pattern.index = start, start // nbytes
        pattern.granules = (start // self.granule)[:, None] + np.arange(max(nbytes // self.granule, 1))
        pattern.warps = machine.warp_of_lane[every] + np.uint8(1)
        pattern.requests, pattern.wavefronts, pattern.ideal = self._count(lanes, addresses, nbytes, access)
        if remembered:
            site.patterns.append(pattern)
            if len(site.patterns) > REMEMBERED:
                site.patterns.pop(0)
        return pattern

    def _around(self, at: int) -> str:
        """Where an address lies among the arrays, in words."""
        program = self.machine.program
        before = [name for name, start in program.shared.items() if start <= at]
        if not before or at < 0:
            return f"the block has {self.bytes} bytes of it"
        name = max(before, key=lambda name: program.shared[name])
        size = program.shared_sizes.get(name)
        if size is None:
            return f"the dynamic shared memory ends at {self.bytes:#x}"
        return f"{at - program.shared[name] - size} bytes past the end of {name!r} ({size} bytes)"

    def _count(self, lanes: np.ndarray | None, addresses: np.ndarray, nbytes: int, access: str) -> tuple[int, int, int]:
        """(requests, wavefronts, ideal) of all warps. A shift by whole rows of the banks changes none of them."""
        row = banks.BANKS * banks.WORD
        shift = int(addresses[0]) // row * row
        key = (access, nbytes, (addresses - shift).tobytes(), None if lanes is None else lanes.tobytes())
        if key not in self._counts:
            grid, active = _in_warps(self.machine, lanes, addresses)
            fronts = int(banks.wavefronts(grid, nbytes, active, access).sum())
            least = int(banks.ideal(grid, nbytes, active).sum())
            if len(self._counts) >= REMEMBERED_COUNTS:
                self._counts.clear()
            self._counts[key] = len(grid), fronts, least
        return self._counts[key]

    def _initialised(self, pattern: SharedPattern) -> None:
        """Mark what a write initialises; complain of a read of bytes that nobody has written."""
        if pattern.kind == "write" or _only_writes(self.machine, pattern.instruction):
            self.initialised[pattern.granules] = True
            pattern.batch = self.batch
            return
        if pattern.kind == "copy":  # marked when it lands
            return
        written = self.initialised[pattern.granules]
        fields = pattern.instruction.fields
        # Vectors of bytes are how structs are copied, padding and all: some byte of each has to be there.
        padded = fields.get("vec") and fields["type"][1:] in ("8", "16")
        known = written.any(axis=1) if padded else written.all(axis=1)
        if known.all():
            pattern.batch = self.batch
            return
        machine = self.machine
        if machine.shadow.reads_pending(pattern):  # the better name for it, already reported
            return
        where = int(np.flatnonzero(~known)[0])
        at = int(pattern.addresses[where])
        machine.report(
            "uninitialised_shared_read",
            f"read of {pattern.nbytes} bytes at shared address {at:#x} that no thread of the block has written",
            pattern.instruction, machine.some(pattern.lanes, ~known), at,
        )  # fmt: skip

    def load(self, pattern: SharedPattern, out: np.ndarray) -> None:
        """Gather one element for each active lane of the pattern into out."""
        self.views[pattern.nbytes].take(pattern.index, out=out, mode="clip")

    def store(self, pattern: SharedPattern, values: np.ndarray) -> None:
        """Scatter one element for each active lane; of two lanes at one address the higher lane's stays."""
        self.views[pattern.nbytes][pattern.index] = values


class GlobalPattern:
    """Addresses of one instruction in global memory, relative to those of its first active lane."""

    __slots__ = (
        "aligned", "buffer", "cells", "high", "lanes", "low", "nbytes", "relative", "requests", "sectors",
        "unique",
    )  # fmt: skip

    def __init__(self, machine: Machine, lanes: np.ndarray | None, relative: np.ndarray, nbytes: int) -> None:
        self.lanes = lanes
        self.relative = relative
        self.nbytes = nbytes
        self.cells: np.ndarray | None = None
        """Granules that each lane touches, from the first address on, and whether no two lanes touch the same."""
        self.unique: bool | None = None
        signed = relative.view(np.int64)
        self.low, self.high = int(signed.min()), int(signed.max()) + nbytes
        self.aligned = not (signed & (nbytes - 1)).any()
        self.buffer: Buffer | None = None
        self.requests = machine.lanes // 32 if lanes is None else int(np.count_nonzero(np.diff(lanes >> 5))) + 1
        self.sectors: dict[int, int] = {}
        """First address modulo 32 -> sectors of all warps."""


class GlobalPort:
    """The batch's way to global memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.memory = machine.memory
        self.races = machine.races
        self._relative = np.empty(machine.lanes, np.uint64)
        self._index = np.empty(machine.lanes, np.int64)

    def locate(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray] | None:
        """Check and count one access; (active lanes or None for all, element indices), or None if no lane is left.

        The indices are valid until the next call. `base`: uint64, one a lane of the batch, or of length 1 for all.
        """
        found = self.find(site, instruction, base, offset, nbytes, write)
        if found is None:
            return None
        lanes, relative, start = found
        out = self._index[: len(relative)]
        np.add(relative, start, out=out)
        return lanes, np.right_shift(out, nbytes.bit_length() - 1, out=out)

    def find(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray, int] | None:
        """As `locate`: (lanes, bytes, start), the lanes' places in the arena being `bytes` from `start` on."""
        machine = self.machine
        lanes = machine.lane_list()
        count = machine.lanes if lanes is None else len(lanes)
        if not count:
            return None
        first = int(base[0 if lanes is None or len(base) == 1 else lanes[0]])
        pattern = self._known(site, base, lanes, count)
        if pattern is None:
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            relative = np.subtract(seen, seen[0], out=self._relative[:count])
            pattern = GlobalPattern(machine, lanes, relative.copy(), nbytes)
            site.patterns.insert(0, pattern)
            del site.patterns[REMEMBERED // 4 :]
        start = first + offset
        buffer = pattern.buffer
        if buffer is None or start + pattern.low < buffer.start or start + pattern.high > buffer.end:
            buffer = self.memory.find(start + pattern.low)
            if buffer is not None and start + pattern.high > buffer.end:
                buffer = None
            pattern.buffer = buffer
        if buffer is None or not pattern.aligned or start % nbytes or (write and buffer.read_only):
            good = self._check(instruction, pattern, start, nbytes, write)
            if good is not None:
                lanes, addresses = machine.some(lanes, good), pattern.relative[good] + np.uint64(start % 2**64)
                if not len(lanes):
                    return None
                site.requests += machine.lanes // 32 if lanes is None else len(np.unique(lanes >> 5))
                site.sectors += _sectors(machine, lanes, addresses.view(np.int64), nbytes)
                site.bytes += nbytes * len(lanes)
                return lanes, (addresses - np.uint64(ARENA_BASE)).view(np.int64), 0
        phase = start % coalesce.SECTOR
        if phase not in pattern.sectors:
            pattern.sectors[phase] = _sectors(machine, lanes, pattern.relative.view(np.int64) + start, nbytes)
        if self.memory.written is not None:
            self._follow(instruction, pattern, start, self.memory.written, write)
        if self.races is not None:
            self._judge(self.races, instruction.index, pattern, start, buffer)
        site.requests += pattern.requests
        site.sectors += pattern.sectors[phase]
        site.bytes += nbytes * count
        return lanes, pattern.relative.view(np.int64), start - ARENA_BASE

    def _known(self, site: Site, base: np.ndarray, lanes: np.ndarray | None, count: int) -> GlobalPattern | None:
        """The remembered pattern that the lanes' addresses have."""
        compiled = self.machine.compiled
        if compiled is None or len(base) == 1 or base.strides != (8,):
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            relative = np.subtract(seen, seen[0], out=self._relative[:count])
            for known in site.patterns:
                if _same(known.lanes, lanes) and _same(known.relative, relative):
                    return known
            return None
        if not site.patterns:
            return None
        at, places = address(base), 0 if lanes is None else address(lanes)
        for known in site.patterns:
            if _same(known.lanes, lanes) and compiled.apart(at, places, count, address(known.relative)):
                return known
        return None

    def _follow(
        self, instruction: Instruction, pattern: GlobalPattern, start: int, written: np.ndarray, write: bool
    ) -> None:
        """Where some buffer held nothing at first: mark what is written, report a read of what has not been."""
        nbytes = pattern.nbytes
        index = (pattern.relative.view(np.int64) + (start - ARENA_BASE)) // nbytes
        if (not write or instruction.opcode.startswith(("atom", "red"))) and not _only_writes(
            self.machine, instruction
        ):
            each = _judged(instruction, nbytes)
            marks: np.ndarray = written.view(ELEMENT[each])
            missing = (marks[index[:, None] * (nbytes // each) + np.arange(nbytes // each)] == 0).any(axis=1)
            if missing.any():
                at = start + int(pattern.relative.view(np.int64)[missing][0])
                self.machine.report(
                    "uninitialised_read",
                    f"read of {nbytes} bytes at {at:#x}, {self.memory.describe(at)}, which nobody has written",
                    instruction, self.machine.some(pattern.lanes, missing), at,
                )  # fmt: skip
        if write:
            written.reshape(-1, nbytes)[index] = 1

    def _judge(self, races: GlobalRaces, index: int, pattern: GlobalPattern, start: int, buffer: Buffer | None) -> None:
        """Note an access for races between blocks; of one that reaches several buffers each part."""
        if buffer is not None:
            races.note(index, pattern, start, buffer)
            return
        addresses = pattern.relative.view(np.int64) + start
        which = self.memory.numbers(addresses)
        numbers = np.unique(which)
        races.missed |= len(numbers) > MOST_BUFFERS
        for number in numbers.tolist() if len(numbers) <= MOST_BUFFERS else ():
            chosen = which == number
            some = addresses[chosen]
            relative = (some - some[0]).view(np.uint64)
            part = GlobalPattern(self.machine, self.machine.some(pattern.lanes, chosen), relative, pattern.nbytes)
            found = self.memory.find(int(some[0]))
            assert found is not None
            before = len(races.waiting)
            races.note(index, part, int(some[0]), found)
            for clash in races.waiting[before:]:
                rows = np.zeros(len(chosen), bool)
                rows[chosen] = clash.rows
                clash.rows = rows

    def _check(
        self, instruction: Instruction, pattern: GlobalPattern, start: int, nbytes: int, write: bool
    ) -> np.ndarray | None:
        """Lane by lane: report what is wrong. None if all is well, else which of the pattern's lanes are good."""
        machine, memory = self.machine, self.memory
        addresses = pattern.relative + np.uint64(start % 2**64)
        inside = memory.inside(addresses, nbytes)
        skewed = addresses % np.uint64(nbytes) != 0
        kind = "write" if write else "read"
        if not inside.all():
            at = int(addresses[~inside][0])
            machine.report(
                "out_of_bounds",
                f"{kind} of {nbytes} bytes at {at:#x}: {memory.describe(at)}",
                instruction, machine.some(pattern.lanes, ~inside), at,
            )  # fmt: skip
        elif skewed.any():
            at = int(addresses[skewed][0])
            machine.report(
                "misaligned",
                f"{kind} of {nbytes} bytes at {at:#x}, which is not a multiple of {nbytes}: {memory.describe(at)}",
                instruction, machine.some(pattern.lanes, skewed), at,
            )  # fmt: skip
        good = inside & ~skewed
        if write:
            fixed = good & memory.read_only(addresses)
            good &= ~fixed
            if fixed.any():
                at = int(addresses[fixed][0])
                machine.report(
                    "write_to_read_only",
                    f"write of {nbytes} bytes at {at:#x}: {memory.describe(at)}",
                    instruction, machine.some(pattern.lanes, fixed), at,
                )  # fmt: skip
        return None if good.all() else good

    def load(self, index: np.ndarray, nbytes: int, out: np.ndarray) -> None:
        """Gather elements."""
        self.memory.views[nbytes].take(index, out=out, mode="clip")

    def store(self, index: np.ndarray, nbytes: int, values: np.ndarray) -> None:
        """Scatter elements; of two lanes at one address the higher lane's stays."""
        view = self.memory.views[nbytes]
        if self.races is None or not self.races.waiting:
            view[index] = values
            return
        before = view[index]
        view[index] = values
        self.races.stored(before, view[index], values)


class LocalMemory:
    """Local memory: `nbytes` of its own for each lane."""

    def __init__(self, machine: Machine, nbytes: int) -> None:
        self.machine = machine
        self.bytes = nbytes
        self.stride = -(-max(nbytes, 16) // 16) * 16
        self.data = aligned_bytes(machine.lanes * self.stride)
        self.views = element_views(self.data)
        self.written = aligned_bytes(machine.lanes * self.stride, 0)
        """Of each byte whether it holds a value."""
        self._marks = element_views(self.written)
        self._start = np.arange(machine.lanes, dtype=np.int64) * self.stride

    def reset(self) -> None:
        """Forget everything: a new batch of blocks starts."""
        self.data[:] = POISON
        self.written[:] = 0

    def forget(self, lanes: np.ndarray, low: np.ndarray, nbytes: int) -> None:
        """A function begins: the `nbytes` of its local variables, from `low` of each lane on, hold nothing yet."""
        start = self._start[lanes] + low.astype(np.int64)
        self.written[(start[:, None] + np.arange(nbytes)).reshape(-1)] = 0

    def locate(
        self, site: Site, instruction: Instruction, base: np.ndarray, offset: int, nbytes: int, write: bool
    ) -> tuple[np.ndarray | None, np.ndarray] | None:
        """As GlobalPort.locate, for addresses in the local window of each lane."""
        machine = self.machine
        lanes = machine.lane_list()
        if lanes is not None and not len(lanes):
            return None
        start = self._start if lanes is None else self._start[lanes]
        seen = (base if lanes is None or len(base) == 1 else base[lanes]).astype(np.int64) + offset
        bad = (seen < 0) | (seen + nbytes > self.bytes)
        skewed = seen % nbytes != 0
        for wrong, kind, why in (
            (bad, "out_of_bounds", f"the thread has {self.bytes} bytes of local memory"),
            (skewed, "misaligned", f"it is not a multiple of {nbytes}"),
        ):
            if wrong.any():
                wrong = np.broadcast_to(wrong, start.shape)
                at = int(np.broadcast_to(seen, start.shape)[wrong][0])
                machine.report(
                    kind, f"access of {nbytes} bytes at local address {at:#x}: {why}",
                    instruction, machine.some(lanes, wrong), at,
                )  # fmt: skip
                good = np.broadcast_to(~(bad | skewed), start.shape)
                lanes, start = machine.some(lanes, good), start[good]
                seen = np.broadcast_to(seen, good.shape)[good]
                if not len(lanes):
                    return None
                break
        site.bytes += nbytes * len(start)
        index = (start + seen) // nbytes
        self._follow(instruction, lanes, np.broadcast_to(seen, start.shape), index, nbytes, write)
        return lanes, index

    def _follow(
        self, instruction: Instruction, lanes: np.ndarray | None, seen: np.ndarray, index: np.ndarray, nbytes: int,
        write: bool,
    ) -> None:  # fmt: skip
        """Report what lies in no function that is running, and reads of what has not been written."""
        machine = self.machine
        top = machine.calls.top
        dead = missing = seen + nbytes > (top if lanes is None else top[lanes])
        if not write:
            each = _judged(instruction, nbytes)
            parts = index[:, None] * (nbytes // each) + np.arange(nbytes // each)
            missing = dead | (self._marks[each][parts] == 0).any(axis=1)
        if missing.any():
            at, gone = int(seen[missing][0]), bool(dead[missing][0])
            machine.report(
                "dead_local" if gone else "uninitialised_read",
                f"{'write' if write else 'read'} of {nbytes} bytes at local address {at:#x}, "
                + ("in a variable of a function that has returned" if gone else "which the thread has not written"),
                instruction, machine.some(lanes, missing), at,
            )  # fmt: skip
        if write:
            self.written.reshape(-1, nbytes)[index] = 1

    def load(self, index: np.ndarray, nbytes: int, out: np.ndarray) -> None:
        """Gather elements."""
        self.views[nbytes].take(index, out=out, mode="clip")

    def store(self, index: np.ndarray, nbytes: int, values: np.ndarray) -> None:
        """Scatter elements."""
        self.views[nbytes][index] = values
