"""Shared memory of a batch of blocks: addresses -> checked indices, with bank conflicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from . import banks
from .access import in_warps, only_writes, same, unfilled
from .compiled import address
from .memory import aligned_bytes, element_views
from .program import is_reserved
from .ptx import Instruction
from .trace import Site
from .uses import passed_on

if TYPE_CHECKING:
    from .machine import Machine

REMEMBERED = 32
"""Patterns kept at one instruction."""
REMEMBERED_COUNTS = 256
"""Shapes of shared access whose bank conflicts are kept."""
ROW = banks.BANKS * banks.WORD
"""Bytes of the banks, one word each."""
PEER = 1 << 24
"""A shared address of a peer in the cluster is its rank plus 1 times this, plus the address within that block."""
_ACCESS = {"read": "load", "write": "store", "atomic": "store", "copy": "copy"}
"""Kind of access -> what emu/banks.py calls it."""


_batches = count()


class SharedPattern:
    """One set of addresses of one instruction in shared memory.

    `kind`: "read", "write", "atomic"; "copy" (cp.async); "tensor" (wgmma reads); of bulk copies "bulk_write",
    "bulk_merge" (a reduction) and "bulk_read".
    """

    __slots__ = (
        "_addresses", "_index", "alike", "base", "batch", "extent", "first", "granules", "ideal", "instruction", "kind",
        "landing", "lanes", "moved", "nbytes", "offsets", "pairs", "peers", "piece", "requests", "told", "warps",
        "wavefronts",
    )  # fmt: skip

    def __init__(self, kind: str, instruction: Instruction, nbytes: int) -> None:
        self.kind = kind
        self.instruction = instruction
        self.nbytes = nbytes
        self.lanes: np.ndarray | None = None
        """Active lanes of the batch; None: all."""
        self.base: np.ndarray
        self.first = 0
        self.moved: tuple[SharedPattern, int] | None = None
        """The pattern whose addresses these are, so many bytes further."""
        self._addresses: np.ndarray | None = None
        self.extent: tuple[int, int] | None = None
        """The least address and the end of the last, where somebody has asked."""
        self.offsets: np.ndarray
        """Place in bytes in the batch's shared memory."""
        self._index: np.ndarray | None = None
        self.granules: np.ndarray
        """Granule indices in the batch's shared memory, [active lanes, granules a lane]."""
        self.piece: slice | None = None
        """The same as one piece, where a bulk copy has one: in whatever order."""
        self.warps: np.ndarray
        """Warp within the block plus 1, uint8, for each active lane."""
        self.peers: np.ndarray | None = None
        """Block of the batch whose shared memory each lane reaches; None: its own."""
        self.requests = self.wavefronts = self.ideal = 0
        self.batch = -1
        """The batch in which these bytes are known to be initialised."""
        self.alike: bool | None = None
        """Whether each block of the batch does the same; None: nobody has looked."""
        self.landing: Any = None
        """For a copy: a weak reference to the event of its landing."""
        self.pairs: np.ndarray | None = None
        """What `at_one_place` says of it, where somebody has asked."""
        self.told: tuple[int, ...] | None = None
        """What the compiled loops are told of it (native/epochs.c), once they have been."""

    @property
    def addresses(self) -> np.ndarray:
        """Byte address in the block's shared memory, for each active lane."""
        if self._addresses is None:
            assert self.moved is not None
            first, by = self.moved
            self._addresses = first.addresses + by
        return self._addresses

    @addresses.setter
    def addresses(self, known: np.ndarray) -> None:
        self._addresses = known

    @property
    def index(self) -> np.ndarray:
        """Element index in the batch's shared memory."""
        if self._index is None:
            self._index = self.offsets >> self.nbytes.bit_length() - 1
        return self._index

    @property
    def where(self) -> np.ndarray | slice:
        """What to index tables of granules by where neither order nor shape matters."""
        return self.granules if self.piece is None else self.piece


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
        self.batch = next(_batches)
        """A number that no other batch of this process has."""
        self._counts: dict[tuple[str, int, bytes, bytes | None], tuple[int, int, int]] = {}

    def reset(self) -> None:
        """Forget everything: a new batch of blocks starts."""
        self.data[:] = 0xFF
        self.initialised[:] = False
        program = self.machine.program
        for name in filter(is_reserved, program.shared):  # whatever it holds, its users know
            start = program.shared[name] // self.granule
            part = self.initialised.reshape(self.machine.ctas, -1)
            part[:, start : start + program.shared_sizes[name] // self.granule] = True
        self.batch = next(_batches)

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

        `base`: uint32, uint64 or int64, one per lane of the batch, or of length 1 for all. `kind`: as SharedPattern's.
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
            if known.first == first and same(known.lanes, lanes) and alike(known.base):
                pattern = known
                break
            site.patterns.append(site.patterns.pop(0))  # a loop comes back to its patterns in order
        if pattern is None:
            seen = base if lanes is None or len(base) == 1 else base[lanes]
            access = counted_as or _ACCESS[kind]
            pattern = self._further(site, lanes, seen, first)
            pattern = pattern or self._learn(site, kind, instruction, lanes, seen, offset, nbytes, access, peers)
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
            return lambda known: same(known, seen)
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
        if not len(addresses) or int(addresses.max()) < PEER:
            return own, addresses
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
        self._expect_started(instruction, lanes, ctas)
        return not ended.any()

    def _expect_started(self, instruction: Instruction, lanes: np.ndarray, ctas: np.ndarray) -> None:
        """Report lanes that reach a block which may not have begun: no lane of their own has passed a barrier of the
        cluster, and nothing that the other block did is known."""
        machine, size = self.machine, self.machine.cluster_size
        early = ~machine.clusters.begun[machine.cta_of_lane[lanes]]
        if not early.any():
            return
        lanes, ctas = np.broadcast_arrays(lanes, ctas)
        bad = early & ~machine.shadow.knows_block(lanes, ctas)
        if bad.any():
            machine.report(
                "peer_not_started",
                f"shared memory of block {int(ctas[bad][0]) % size} of the cluster is touched, and nothing says that "
                "it has begun",
                instruction, lanes[bad], None,
            )  # fmt: skip

    def _further(self, site: Site, lanes: np.ndarray | None, seen: np.ndarray, first: int) -> SharedPattern | None:
        """Return the pattern of addresses that are those of the last one, all moved by whole rows of the banks; None
        where they are not, or not all of them in the block's memory."""
        known: SharedPattern | None = site.patterns[-1] if site.patterns else None
        if known is None or known.peers is not None or self.zones is not None or ROW % known.nbytes:
            return None
        by = first - known.first
        if by % ROW or len(seen) != len(known.base) or seen.dtype != known.base.dtype or not same(known.lanes, lanes):
            return None
        if known.extent is None:
            known.extent = int(known.addresses.min()), int(known.addresses.max()) + known.nbytes
        low, high = known.extent
        moved = seen - known.base
        if low + by < 0 or high + by > self.bytes or (moved != moved[0]).any():
            return None
        pattern = SharedPattern(known.kind, known.instruction, known.nbytes)
        pattern.lanes, pattern.base, pattern.first = known.lanes, seen.copy(), first
        first_known, before = known.moved or (known, 0)
        pattern.moved, pattern.extent = (first_known, before + by), (low + by, high + by)
        pattern.offsets, pattern.warps = known.offsets + by, known.warps
        pattern.granules = known.granules + by // self.granule
        pattern.requests, pattern.wavefronts, pattern.ideal = known.requests, known.wavefronts, known.ideal
        pattern.alike = known.alike
        self._remember(site, pattern)
        return pattern

    @staticmethod
    def _remember(site: Site, pattern: SharedPattern) -> None:
        site.patterns.append(pattern)
        if len(site.patterns) > REMEMBERED:
            site.patterns.pop(0)

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
        if int(addresses.max()) >= PEER:
            lanes = np.arange(machine.lanes) if lanes is None else lanes
            ctas, addresses = self.reach(lanes, addresses)
            if not peers and (far := ctas != machine.cta_of_lane[lanes]).any():
                machine.report(
                    "out_of_bounds", f"{kind} of {nbytes} bytes as .shared::cta in another block of the cluster",
                    instruction, lanes[far], int(addresses[far][0]),
                )  # fmt: skip
                return None
        good = self._in_place(kind, instruction, lanes, addresses, nbytes)
        if good is not None:
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
        pattern.offsets = start
        each = nbytes // self.granule
        pattern.granules = (start >> self.granule.bit_length() - 1)[:, None]
        if each > 1:
            pattern.granules = pattern.granules + np.arange(each)
        pattern.warps = machine.warp_of_lane[every] + np.uint8(1)
        pattern.requests, pattern.wavefronts, pattern.ideal = self._count(lanes, addresses, nbytes, access)
        if good is None:
            self._remember(site, pattern)
        return pattern

    def _in_place(
        self, kind: str, instruction: Instruction, lanes: np.ndarray | None, addresses: np.ndarray, nbytes: int
    ) -> np.ndarray | None:
        """Return None where all accesses are within the block's memory and aligned; else report, and say which are."""
        low, high = int(addresses.min()), int(addresses.max())
        well = self.zones is None and low >= 0 and high + nbytes <= self.bytes
        if well and not int(np.bitwise_or.reduce(addresses)) & (nbytes - 1):
            return None
        outside = (addresses < 0) | (addresses + nbytes > self.bytes)
        if self.zones is not None:
            inside = np.where(outside, 0, addresses)
            between = ~outside & (self.zones[inside] | self.zones[np.where(outside, 0, addresses + nbytes - 1)])
            outside |= between
        skewed = addresses % nbytes != 0
        if outside.any():
            at = int(addresses[outside][0])
            self.machine.report(
                "out_of_bounds",
                f"{kind} of {nbytes} bytes at shared address {at:#x}; "
                + (self._size() if self.zones is None else self._around(at)),
                instruction, self.machine.some(lanes, outside), at,
            )  # fmt: skip
        elif skewed.any():
            at = int(addresses[skewed][0])
            self.machine.report(
                "misaligned",
                f"{kind} of {nbytes} bytes at shared address {at:#x}, which is not a multiple of {nbytes}",
                instruction, self.machine.some(lanes, skewed), at,
            )  # fmt: skip
        else:
            return None
        return ~(outside | skewed)

    def _size(self) -> str:
        """Return how much of it there is, in words."""
        program = self.machine.program
        dynamic = any(variable.extern and variable.space == "shared" for variable in program.module.variables)
        hint = "; its `extern __shared__` array has none: pass shared_bytes (--shared-bytes)"
        return f"the block has {self.bytes} bytes of it" + hint * (dynamic and self.bytes <= program.static_shared)

    def _around(self, at: int) -> str:
        """Return where an address lies among the arrays, in words."""
        program = self.machine.program
        before = [name for name, start in program.shared.items() if start <= at]
        if not before or at < 0:
            return self._size()
        name = max(before, key=lambda name: program.shared[name])
        size = program.shared_sizes.get(name)
        if size is None:
            return f"the dynamic shared memory ends at {self.bytes:#x}"
        return f"{at - program.shared[name] - size} bytes past the end of {name!r} ({size} bytes)"

    def _count(self, lanes: np.ndarray | None, addresses: np.ndarray, nbytes: int, access: str) -> tuple[int, int, int]:
        """(requests, wavefronts, ideal) of all warps. A shift by whole rows of the banks changes none of them."""
        if self.machine.compiled is not None:
            return self.machine.compiled.conflicts(addresses, lanes, nbytes, access)
        shift = int(addresses[0]) // ROW * ROW
        key = (access, nbytes, (addresses - shift).tobytes(), None if lanes is None else lanes.tobytes())
        if key not in self._counts:
            grid, active = in_warps(self.machine, lanes, addresses)
            fronts = int(banks.wavefronts(grid, nbytes, active, access).sum())
            least = int(banks.ideal(grid, nbytes, active).sum())
            if len(self._counts) >= REMEMBERED_COUNTS:
                self._counts.clear()
            self._counts[key] = len(grid), fronts, least
        return self._counts[key]

    def _initialised(self, pattern: SharedPattern) -> None:
        """Mark what a write initialises; complain of a read of bytes that nobody has written."""
        if pattern.kind == "write" or only_writes(self.machine, pattern.instruction):
            self.initialised[pattern.granules] = True
            pattern.batch = self.batch
            return
        if pattern.kind == "copy":  # marked when it lands
            return
        if self.holds(pattern):
            return
        written, machine = self.initialised[pattern.granules], self.machine
        known = written.all(axis=1)
        if each := self._copied(pattern):
            parts = machine.used_parts.get(pattern.instruction.index, ())
            used = tuple((offset // self.granule, -(-size // self.granule)) for offset, size in parts)
            known = written.reshape(len(written), -1, max(each // self.granule, 1)).any(axis=2).all(axis=1)
            known &= ~unfilled(used, self.initialised, pattern.granules[:, 0])
            if known.all():
                pattern.batch = self.batch
                return
        if machine.shadow.reads_pending(pattern):  # the better name for it, already reported
            return
        where = int(np.flatnonzero(~known)[0])
        at = int(pattern.addresses[where])
        machine.report(
            "uninitialised_shared_read",
            f"read of {pattern.nbytes} bytes at shared address {at:#x} that no thread of the block has written",
            pattern.instruction, machine.some(pattern.lanes, ~known), at,
        )  # fmt: skip

    def holds(self, pattern: SharedPattern) -> bool:
        """Return whether every byte of a pattern holds a value, in this batch from now on."""
        compiled = self.machine.compiled
        if compiled is None:
            full = bool(self.initialised[pattern.granules].all())
        else:
            places = np.ascontiguousarray(pattern.granules, np.int64)
            full = bool(compiled.marked(address(self.initialised), address(places), places.size))
        if full:
            pattern.batch = self.batch
        return full

    def _copied(self, pattern: SharedPattern) -> int:
        """Return of how many bytes some are enough for a load that may copy a struct, padding and all: of all, if it
        is of vectors of bytes, and of each element, if it is stored elsewhere or taken apart; 0 for other loads."""
        instruction = pattern.instruction
        vector, kind = instruction.fields.get("vec"), instruction.fields.get("type", "")
        if vector and kind[1:] in ("8", "16"):
            return pattern.nbytes
        loads = instruction.opcode.startswith("ld.")
        return int(kind[1:]) // 8 if loads and passed_on(self.machine.program, instruction) else 0

    def load(self, pattern: SharedPattern, out: np.ndarray) -> None:
        """Gather one element for each active lane of the pattern into out."""
        self.views[pattern.nbytes].take(pattern.index, out=out, mode="clip")

    def store(self, pattern: SharedPattern, values: np.ndarray) -> None:
        """Scatter one element for each active lane; of two lanes at one address the higher lane's stays."""
        self.views[pattern.nbytes][pattern.index] = values
