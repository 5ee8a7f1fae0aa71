"""wgmma: products of a warpgroup (four warps), A from shared memory or registers, B from shared memory, asynchronous.

D is 64 x n, in accumulators as those of m16n8 (fragments.py): warp w holds rows 16 w to 16 w + 15 and of them, with
g = lane / 4 and t = lane % 4, of each 8 columns j

    32 bits    registers 4 j + 2 h + p    (16 w + 8 h + g, 8 j + 2 t + p)
    f16        registers 2 j + h          the same, p = 0 in the low half

A in registers is a warp's 16 rows: register 2 q + h holds e elements from (16 w + 8 h + g, 4 e q + e t) on.

The bits are those of tensor_sum.py. Operands' reads are no requests of the load unit: none are counted.
"""

from __future__ import annotations

import numpy as np

from ..compiled import address
from ..descriptor import Descriptor, begins_askew, end, pieces, places, why_wrong
from ..machine import Machine
from ..products import A
from ..ptx import Immediate, Instruction, Operand, Register, Vector
from ..shared_memory import SharedPattern
from ..tensor_tiles import Matrices, described, run_tiles, run_warpgroups
from .mma import SIZE, arithmetic
from .registry import Step, executes
from .tensor_sum import FP8
from .warpgroup import whole_warpgroups

REMEMBERED = 16
"""Sets of descriptors kept at one operand."""


class Team:
    """The warpgroups that run an instruction. Their matrices are stacked as [outer, inner, rows, columns]: blocks and
    their warpgroups when all run, else warpgroups and 1.
    """

    def __init__(self, machine: Machine, first_warps: np.ndarray) -> None:
        self.machine = machine
        self.count = len(first_warps)
        self.every = 128 * self.count == machine.lanes
        self.outer, self.inner = (machine.ctas, machine.warps_per_cta // 4) if self.every else (self.count, 1)
        self.first_lanes = first_warps * 32
        self.warps = (first_warps[:, None] + np.arange(4)).reshape(-1)
        self.lanes = None if self.every else (self.warps[:, None] * 32 + np.arange(32)).reshape(-1)

    def alike(self, instruction: Instruction, values: np.ndarray, what: str) -> np.ndarray:
        """The one value of each warpgroup, [warpgroups], of those [lanes] (or [1])."""
        if len(values) == 1:
            return np.broadcast_to(values, (self.count,))
        grid = (values if self.lanes is None else values[self.lanes]).reshape(self.count, 128)
        different = grid != grid[:, :1]
        if different.any():
            lanes = self.first_lanes[different.any(axis=1)][0] + np.arange(128)
            self.machine.report(
                "bad_descriptor", f"{what} is not the same in all threads of the warpgroup", instruction, lanes, None
            )
        return grid[:, 0]

    def registers(self, rows: np.ndarray) -> np.ndarray:
        """Registers of 4 bytes, as their rows of the bank -> their values [registers, lanes of the team]."""
        bank = self.machine.banks[4]
        return bank[rows] if self.lanes is None else bank[np.ix_(rows, self.lanes)]

    def keep(self, rows: np.ndarray, values: np.ndarray) -> None:
        """The inverse of `registers`."""
        bank = self.machine.banks[4]
        if self.lanes is None:
            bank[rows] = values
        else:
            bank[np.ix_(rows, self.lanes)] = values


class InShared:
    """A (m x k) or B (n x k) by descriptor."""

    def __init__(
        self, machine: Machine, instruction: Instruction, operand: Operand, mn: int, kind: str, across: bool,
        *, fours: bool
    ) -> None:  # fmt: skip
        """fours: whether the compiled sums take it as B."""
        self.machine, self.instruction = machine, instruction
        self.mn, self.kind, self.across = mn, kind, across
        self.size, self.fours = SIZE[kind], fours
        self.bits = machine.source(instruction, operand, "u64")
        self._known: dict[bytes, SharedPattern | None]
        self._known = machine.trace.patterns.setdefault((instruction.index, "B" if fours else "A"), {})
        self._matrices: dict[SharedPattern, Matrices] = {}

    def read(self, team: Team) -> tuple[np.ndarray, SharedPattern | None]:
        """Check what is read: the descriptors of the warpgroups, and the bytes as the hazard checker is told of them;
        None where something was reported.
        """
        descriptors = team.alike(self.instruction, self.bits, "a matrix descriptor")
        key = descriptors.tobytes() + team.first_lanes.tobytes()
        if key not in self._known:
            if len(self._known) >= REMEMBERED:
                self._matrices.pop(self._known.pop(next(iter(self._known))), None)  # type: ignore[arg-type]
            self._known[key] = self._pattern(team, descriptors)
        pattern = self._known[key]
        if pattern is not None and pattern.batch != self.machine.shared.batch:
            self._initialised(pattern)
        return descriptors, pattern

    def words(self, team: Team, descriptors: np.ndarray, pattern: SharedPattern | None) -> np.ndarray:
        """The bits of the elements, [k, outer, inner or 1, mn]."""
        if pattern is None:  # reported; the launch goes on with NaN
            return np.full((32 // self.size, team.outer, team.inner, self.mn), -1).astype(f"u{self.size}")
        shared = self.machine.shared
        words = shared.views[self.size].reshape(self.machine.ctas, -1)
        if team.every and not np.ptp(grid := descriptors.reshape(team.outer, team.inner), axis=0).any():
            columns = grid[0] if np.ptp(grid[0]) else grid[0, :1]
            found = np.stack([words.take(self._index(bits), axis=1) for bits in columns.tolist()], axis=1)
        else:
            ctas = self.machine.cta_of_lane[team.first_lanes].tolist()
            found = np.stack(
                [words[cta].take(self._index(bits)) for cta, bits in zip(ctas, descriptors.tolist(), strict=True)]
            )
            found = found.reshape(team.outer, team.inner, -1)
        matrix = found.reshape(*found.shape[:2], self.mn, -1)
        return np.ascontiguousarray(np.moveaxis(matrix, 3, 0))

    def matrices(self, team: Team, descriptors: np.ndarray, pattern: SharedPattern | None) -> Matrices:
        """The same for the compiled sums, which take them from shared memory themselves."""
        if pattern is None:
            return Matrices.of(self.words(team, descriptors, pattern), team.count)
        if pattern not in self._matrices:
            self._matrices[pattern] = self._in_place(team, descriptors)
        return self._matrices[pattern]

    def _in_place(self, team: Team, descriptors: np.ndarray) -> Matrices:
        shared = self.machine.shared
        each = descriptors.tolist()
        tables = {bits: places(bits, self.mn, self.size, self.across, self.fours) for bits in set(each)}
        starts = self.machine.cta_of_lane[team.first_lanes] * shared.stride
        where = {bits: address(table) for bits, table in tables.items()}
        which = np.array([where[bits] for bits in each], np.int64)
        return Matrices(np.array([shared.host, address(starts), 0, address(which)], np.int64), (starts, which, tables))

    def _index(self, bits: int) -> np.ndarray:
        return pieces(bits, self.mn, self.size, self.across, self.size)

    def _pattern(self, team: Team, descriptors: np.ndarray) -> SharedPattern | None:
        """Return what is read, a row a warpgroup; None if a descriptor is wrong."""
        machine, shared = self.machine, self.machine.shared
        touched = {}
        for bits in dict.fromkeys(descriptors.tolist()):
            if self._wrong(bits, team, descriptors):
                return None
            touched[bits] = pieces(bits, self.mn, self.size, self.across, shared.granule, once=True)
        if len({len(granules) for granules in touched.values()}) > 1:  # one reads some of its bytes twice
            most = max(len(granules) for granules in touched.values())
            touched = {bits: np.resize(granules, most) for bits, granules in touched.items()}
        pattern = SharedPattern("tensor", self.instruction, self.mn * 32)
        pattern.lanes = team.first_lanes
        pattern.warps = machine.warp_of_lane[team.first_lanes] + np.uint8(1)
        starts = {bits: Descriptor.of(bits).start for bits in touched}
        pattern.addresses = np.array([starts[bits] for bits in descriptors.tolist()])
        start = machine.cta_of_lane[team.first_lanes] * (shared.stride // shared.granule)
        if len(touched) == 1:
            pattern.granules = touched[int(descriptors[0])] + start[:, None]
        else:
            pattern.granules = np.stack([touched[bits] for bits in descriptors.tolist()]) + start[:, None]
        return pattern

    def _wrong(self, bits: int, team: Team, descriptors: np.ndarray) -> bool:
        """Return whether one of the descriptors was reported."""
        machine, instruction = self.machine, self.instruction
        last, why, multiple = end(bits, self.mn, self.size, self.across), why_wrong(bits), begins_askew(bits)
        if not why and not multiple and last <= machine.shared.bytes:
            return False
        start, lanes = Descriptor.of(bits).start, team.first_lanes[descriptors == bits][0] + np.arange(128)
        if why:
            machine.report("bad_descriptor", f"the matrix descriptor {bits:#018x} {why}", instruction, lanes, start)
            return True
        if multiple:
            machine.report(
                "misaligned",
                f"an operand of {Descriptor.of(bits).row}-byte swizzle starts at shared address {start:#x}, whose rows "
                f"do not start at a multiple of {multiple}",
                instruction, lanes, start,
            )  # fmt: skip
            return True
        machine.report(
            "out_of_bounds",
            f"wgmma reads {self.mn} x {32 // self.size} elements from shared address {start:#x} up to {last:#x}; "
            f"the block has {machine.shared.bytes} bytes of it",
            instruction, lanes, last - self.size,
        )  # fmt: skip
        return True

    def _initialised(self, pattern: SharedPattern) -> None:
        machine, shared = self.machine, self.machine.shared
        if shared.holds(pattern):
            return
        if machine.shadow.reads_pending(pattern):  # the better name for it, already reported
            return
        assert pattern.lanes is not None
        missing = ~shared.initialised[pattern.granules]
        row, k = (int(v) for v in np.argwhere(missing)[0])
        at = int(pattern.granules[row, k]) * shared.granule % shared.stride
        machine.report(
            "uninitialised_shared_read",
            f"wgmma reads shared address {at:#x}, which no thread of the block has written",
            self.instruction, pattern.lanes[row] + np.arange(128), at,
        )  # fmt: skip


class InRegisters:
    """A (64 x k) in four registers per lane."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Vector, kind: str) -> None:
        machine.expect(instruction, len(operand.items) == 4, "needs 4 registers of A")
        self.rows = register_rows(machine, instruction, operand)
        self.size = SIZE[kind]

    def read(self, team: Team) -> tuple[np.ndarray, None]:
        """See InShared's."""
        return team.first_lanes, None

    def matrices(self, team: Team, descriptors: np.ndarray, pattern: SharedPattern | None) -> Matrices:
        """See InShared's."""
        return Matrices.of(self.words(team, descriptors, pattern), team.count)

    def words(self, team: Team, descriptors: np.ndarray, pattern: SharedPattern | None) -> np.ndarray:
        """See InShared's."""
        words = np.ascontiguousarray(team.registers(self.rows)).view(f"u{self.size}")
        pieces = words.reshape(2, 2, team.outer, team.inner, 4, 8, 4, 4 // self.size)  # q h . . w g t e
        return pieces.transpose(0, 6, 7, 2, 3, 4, 1, 5).reshape(-1, team.outer, team.inner, 64)


class Accumulators:
    """D, 64 x n."""

    def __init__(self, machine: Machine, instruction: Instruction, operand: Operand, n: int, kind: str) -> None:
        count = n // 4 if kind == "f16" else n // 2
        given = len(operand.items) if isinstance(operand, Vector) else 1
        machine.expect(instruction, given == count, f"needs {count} accumulator registers")
        self.rows = register_rows(machine, instruction, operand)
        self.n, self.size = n, SIZE[kind]

    def words(self, team: Team) -> np.ndarray:
        """The bits of the elements, [outer, inner, 64, n]."""
        held = np.ascontiguousarray(team.registers(self.rows)).view(f"u{self.size}")
        stack = (team.outer, team.inner)
        if self.size == 4:  # j h p . . w g t
            matrix = held.reshape(-1, 2, 2, *stack, 4, 8, 4).transpose(3, 4, 5, 1, 6, 0, 7, 2)
        else:  # j h . . w g t p
            matrix = held.reshape(-1, 2, *stack, 4, 8, 4, 2).transpose(2, 3, 4, 1, 5, 0, 6, 7)
        return matrix.reshape(*stack, 64, self.n)

    def keep(self, team: Team, words: np.ndarray) -> None:
        """The inverse of `words`."""
        stack = (team.outer, team.inner)
        lanes = 128 * team.outer * team.inner
        parts = words.reshape(*stack, 4, 2, 8, -1, 4, 2)
        if self.size == 4:
            team.keep(self.rows, parts.transpose(5, 3, 7, 0, 1, 2, 4, 6).reshape(-1, lanes))
        else:
            halves = np.ascontiguousarray(parts.transpose(5, 3, 0, 1, 2, 4, 6, 7))
            team.keep(self.rows, halves.view(np.uint32).reshape(-1, lanes))


def register_rows(machine: Machine, instruction: Instruction, operand: Operand) -> np.ndarray:
    """The rows of an operand's registers in the bank of 4-byte registers, int64."""
    known = machine.program.rows_of
    if id(operand) in known:  # operands stay as long as their program
        return known[id(operand)]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    for item in items:
        machine.expect(instruction, isinstance(item, Register) and item.width == 4, "takes registers of 32 bits")
    rows = known[id(operand)] = np.array([machine.program.rows[item] for item in items])  # type: ignore[index]
    return rows


def _one(machine: Machine, instruction: Instruction, operand: Operand, allowed: tuple[int, ...]) -> int:
    """A constant operand."""
    value = operand.bits if isinstance(operand, Immediate) else None
    machine.expect(instruction, value in allowed, f"needs a constant of {allowed}, not {operand}")
    assert value is not None
    return value


_N = "|".join(str(n) for n in range(8, 257, 8))
_N8 = "|".join(str(n) for n in (8, 16, 24, *range(32, 257, 16)))
_FP8 = "|".join(FP8)
_HEAD = "wgmma.mma_async.sync.aligned.m64n"


@executes(
    f"{_HEAD}{{n:{_N}}}k{{k:16}}.{{d:f32}}.{{a:bf16}}.{{b:bf16}}",
    f"{_HEAD}{{n:{_N}}}k{{k:16}}.{{d:f32|f16}}.{{a:f16}}.{{b:f16}}",
    f"{_HEAD}{{n:{_N}}}k{{k:8}}.{{d:f32}}.{{a:tf32}}.{{b:tf32}}",
    f"{_HEAD}{{n:{_N}}}k{{k:32}}.{{d:f32|f16}}.{{a:{_FP8}}}.{{b:{_FP8}}}",
    f"{_HEAD}{{n:{_N8}}}k{{k:32}}{{saturate:.satfinite|}}.{{d:s32}}.{{a:s8|u8}}.{{b:s8|u8}}",
    kind="tensor",
    destination="update",
    warpgroup=True,
    flops=lambda fields: ("igmma" if fields["d"] == "s32" else "hgmma", int(fields["n"]) * int(fields["k"])),
)
def multiply(machine: Machine, instruction: Instruction) -> Step:
    """`d, a, b, scale-d{, imm-scale-a, imm-scale-b}{, imm-trans-a}{, imm-trans-b}`: integers have none of the last."""
    to, a, b, scale_d, *rest = instruction.operands
    fields = instruction.fields
    n, whole = int(fields["n"]), fields["d"] == "s32"
    majors = fields["k"] == "16"  # other types have k innermost
    from_memory = not isinstance(a, Vector)
    wanted = 0 if whole else 2 + majors * (1 + from_memory)
    machine.expect(instruction, len(rest) == wanted, "has another number of operands")
    signs = [_one(machine, instruction, sign, (1, -1)) for sign in rest[:2]]
    negative = bool(signs) and signs[0] != signs[1]
    across = [bool(_one(machine, instruction, flag, (0, 1))) for flag in rest[2:]]
    d = Accumulators(machine, instruction, to, n, fields["d"])
    left = (
        InRegisters(machine, instruction, a, fields["a"])
        if isinstance(a, Vector)
        else InShared(machine, instruction, a, 64, fields["a"], majors and across[0], fours=False)
    )
    right = InShared(machine, instruction, b, n, fields["b"], majors and across[-1], fours=True)
    adds = machine.condition(instruction, scale_d)
    products = machine.products
    assert products is not None
    numbers = products.where.given(instruction)
    use = np.where(np.arange(len(numbers)) < len(d.rows), 1000 * n + int(fields["k"]), A)
    kinds = (fields["d"], fields["a"], fields["b"], fields["d"])
    compute = arithmetic(machine, instruction, "wgmma", kinds, bool(fields.get("saturate")), negative)
    told = described(machine, "wgmma", (64, n, int(fields["k"])), kinds, negative)

    def step() -> None:
        first_warps = whole_warpgroups(machine, instruction)
        if not len(first_warps):
            return
        team = Team(machine, first_warps)
        of_a, of_b = left.read(team), right.read(team)
        reads = [pattern for _, pattern in (of_a, of_b) if pattern is not None]
        for pattern in reads:
            machine.shadow.record(pattern)
        products.issue(instruction, team.warps, numbers, use, reads)
        kept = team.alike(instruction, adds(), "scale-d")
        if told is not None and d.size == 4:
            operands = left.matrices(team, *of_a), right.matrices(team, *of_b)
            run_warpgroups(machine, told, *operands, d.rows, first_warps, kept)
            return
        a_words, b_words = left.words(team, *of_a), right.words(team, *of_b)
        if kept.any():
            start = d.words(team)
            start[~kept.reshape(team.outer, team.inner)] = 0
        else:
            start = np.zeros((team.outer, team.inner, 64, n), f"u{d.size}")
        if told is not None:
            run_tiles(machine, told, a_words, b_words, start)
            d.keep(team, start)
            return
        d.keep(team, compute(a_words[..., None], b_words[:, :, :, None], start))

    return step
