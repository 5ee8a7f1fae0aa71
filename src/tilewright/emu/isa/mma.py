"""mma.sync: products of small matrices by a warp, with the bits that tensor_sum.py says. A NaN is 0x7fffffff (fp16:
0x7fff).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..machine import GROUP_ELEMENTS, Machine
from ..ptx import Instruction, Operand, Register, Vector
from ..tensor_tiles import Warps, described
from . import fragments, tensor_sum
from .registry import Step, executes
from .tensor_sum import Arithmetic

SIZE = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "f64": 8, "f32": 4, "s32": 4}
"""Bytes of an element."""


def registers(operand: Operand) -> tuple[Operand, ...]:
    """The registers of `{a, b, ...}`, or the one that stands alone."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def whole_warps(machine: Machine, instruction: Instruction) -> None:
    """Complain of a warp that is here with only some of its lanes."""
    if machine.mask is None:
        return
    active = machine.mask.reshape(-1, 32)
    count = active.sum(axis=1)
    torn = (count > 0) & (count < 32)
    if torn.any():
        machine.report(
            "warp_divergence",
            f"{instruction.opcode.split('.')[0]} runs with some lanes of the warp; it is the work of all 32",
            instruction,
            np.flatnonzero(active & torn[:, None]),
            None,
        )


def read_registers(
    machine: Machine, instruction: Instruction, operands: tuple[Operand, ...], kind: str
) -> Callable[[], np.ndarray]:
    """A function that gives the values of some registers of every lane: [warps, registers, 32] of the PTX type."""
    sources = [machine.source(instruction, operand, kind) for operand in operands]
    warps = machine.lanes // 32

    def read() -> np.ndarray:
        out = np.empty((warps, len(sources), 32), sources[0].dtype)
        for r, source in enumerate(sources):
            out[:, r] = np.broadcast_to(source, (machine.lanes,)).reshape(warps, 32)
        return out

    return read


def write_registers(
    machine: Machine, instruction: Instruction, operands: tuple[Operand, ...], kind: str
) -> Callable[[np.ndarray], None]:
    """A function that writes [warps, registers, 32] to the registers of the active lanes."""
    puts = [machine.write(operand, kind, instruction) for operand in operands]

    def write(values: np.ndarray) -> None:
        lanes = machine.lane_list()
        for r, put in enumerate(puts):
            flat = np.ascontiguousarray(values[:, r]).reshape(-1)
            put(flat if lanes is None else flat[lanes], lanes)

    return write


class Held:
    """The registers of one operand of some products, for all lanes of the warps that run."""

    def __init__(
        self, machine: Machine, instructions: Sequence[Instruction], operand: int, count: int, width: int,
        repeats: bool = False,
    ) -> None:  # fmt: skip
        """repeats: more registers may be given, which hold the same again."""
        rows = []
        for instruction in instructions:
            given = registers(instruction.operands[operand])
            if len(given) != count and not (repeats and given and len(given) % count == 0):
                raise machine.refusal(instruction, f"needs {count} registers of an operand, not {len(given)}")
            if not all(isinstance(item, Register) and item.width == width for item in given[:count]):
                raise machine.refusal(instruction, f"takes registers of {8 * width} bits")
            rows.append([machine.program.rows[item] for item in given[:count]])  # type: ignore[index]
        self.machine = machine
        self.rows = np.array(rows).T[:, :, None]
        """[registers, instructions, 1]."""
        self.bank = machine.banks[width]

    def read(self, lanes: np.ndarray | None) -> np.ndarray:
        """[registers, lanes of the first instruction, of the second, ...]."""
        held = self.bank[self.rows[:, :, 0]] if lanes is None else self.bank[self.rows, lanes]
        return held.reshape(len(held), -1)

    def write(self, values: np.ndarray, lanes: np.ndarray | None) -> None:
        """The inverse, to lanes that are active."""
        parts = values.reshape(*self.rows.shape[:2], -1)
        if lanes is None:
            self.bank[self.rows[:, :, 0]] = parts
            return
        mask = self.machine.mask
        assert mask is not None
        active = mask[lanes]
        if not active.all():  # a torn warp, reported
            lanes, parts = lanes[active], parts[:, :, active]
        self.bank[self.rows, lanes] = parts


def warps_here(machine: Machine, instruction: Instruction) -> np.ndarray | None:
    """All lanes of the warps with an active lane; None if that is every lane. Complains of torn warps."""
    if machine.mask is None:
        return None
    whole_warps(machine, instruction)
    warps = np.flatnonzero(machine.mask.reshape(-1, 32).any(axis=1))
    return (warps[:, None] * 32 + fragments.LANE).reshape(-1)


def arithmetic(
    machine: Machine, instruction: Instruction, unit: str, kinds: tuple[str, str, str, str], saturate: bool = False,
    negative: bool = False,
) -> Arithmetic:  # fmt: skip
    """See tensor_sum.arithmetic; refuses what the architecture does not have."""
    found = tensor_sum.arithmetic(unit, kinds, machine.gpu.arch.compute_capability, saturate, negative)
    if found is None:
        raise machine.refusal(instruction, f"does not exist on {machine.gpu.arch}")
    return found


def in_turn(steps: Sequence[Step]) -> Step:
    """Steps one after another: NumPy is slower at them together where lanes are many."""

    def every() -> None:
        for step in steps:
            step()

    return every


def product(
    machine: Machine,
    instructions: Sequence[Instruction],
    unit: str,
    shape: tuple[int, int, int],
    kinds: tuple[str, str, str, str],
    saturate: bool = False,
) -> Step:
    """D = A B + C of m x n x k, of one instruction or of several that are independent, together.

    kinds: of D, A, B and C. unit: whose rule, as tensor_sum.RULES has it.
    """
    m, n, k = shape
    d_size, a_size, b_size, c_size = (SIZE[kind] for kind in kinds)
    instruction = instructions[0]
    machine.expect(instruction, len(instruction.operands) == 4, "needs 4 operands")

    def held(operand: int, elements: int, size: int) -> Held:
        width = max(size, 4)
        return Held(machine, instructions, operand, elements * size // (32 * width), width, unit == "wmma")

    d, a, b, c = held(0, m * n, d_size), held(1, m * k, a_size), held(2, k * n, b_size), held(3, m * n, c_size)
    compute = arithmetic(machine, instruction, unit, kinds, saturate)
    told = described(machine, unit, shape, kinds)
    if told is None and len(instructions) > 1 and len(instructions) * machine.lanes > GROUP_ELEMENTS:
        return in_turn([product(machine, [one], unit, shape, kinds, saturate) for one in instructions])
    compiled = None if told is None else Warps(machine, told, (d, a, b, c), (c_size, a_size, b_size))

    def step() -> None:
        lanes = warps_here(machine, instruction)
        if compiled and (lanes is None or (machine.mask is not None and machine.mask[lanes].all())):
            compiled.run(None if lanes is None else lanes[::32] // 32)
            return
        left = fragments.a_matrix(a.read(lanes), m, a_size)
        right = fragments.b_matrix(b.read(lanes), n, b_size)
        sums = compute(left, right, fragments.d_matrix(c.read(lanes), m, n, c_size))
        d.write(fragments.d_registers(sums), lanes)

    return step


def sizes(shape: str) -> tuple[int, int, int]:
    """ "m16n8k16" -> (16, 8, 16)."""
    m, _, rest = shape[1:].partition("n")
    n, _, k = rest.partition("k")
    return int(m), int(n), int(k)


def operations(fields: dict[str, str]) -> tuple[str, int]:
    """The pipe and the operations a thread of a form with the fields shape and d."""
    m, n, k = sizes(fields["shape"])
    return {"s32": "imma", "f64": "dmma"}.get(fields["d"], "hmma"), 2 * m * n * k // 32


def _multiply(machine: Machine, instructions: Sequence[Instruction]) -> Step:
    instruction = instructions[0]
    fields = instruction.fields
    late = fields["d"] == "f64" and fields["shape"] != "m8n8k4" and machine.gpu.arch.compute_capability < (9, 0)
    machine.expect(instruction, not late, f"does not exist on {machine.gpu.arch}")
    kinds = (fields["d"], fields["a"], fields["b"], fields["c"])
    return product(machine, instructions, "mma", sizes(fields["shape"]), kinds, bool(fields.get("saturate")))


_FP8 = "e4m3|e5m2"


@executes(
    "mma.sync.aligned.{shape:m16n8k8|m16n8k16}.row.col.{d:f32}.{a:bf16}.{b:bf16}.{c:f32}",
    "mma.sync.aligned.{shape:m16n8k8|m16n8k16}.row.col.{d:f32}.{a:f16}.{b:f16}.{c:f32}",
    "mma.sync.aligned.{shape:m16n8k8|m16n8k16}.row.col.{d:f16}.{a:f16}.{b:f16}.{c:f16}",
    "mma.sync.aligned.{shape:m16n8k4|m16n8k8}.row.col.{d:f32}.{a:tf32}.{b:tf32}.{c:f32}",
    f"mma.sync.aligned.{{shape:m16n8k16|m16n8k32}}.row.col.{{d:f32}}.{{a:{_FP8}}}.{{b:{_FP8}}}.{{c:f32}}",
    f"mma.sync.aligned.{{shape:m16n8k16|m16n8k32}}.row.col.{{d:f16}}.{{a:{_FP8}}}.{{b:{_FP8}}}.{{c:f16}}",
    "mma.sync.aligned.{shape:m8n8k16|m16n8k16|m16n8k32}.row.col{saturate:.satfinite|}.{d:s32}.{a:s8|u8}.{b:s8|u8}.{c:s32}",
    "mma.sync.aligned.{shape:m8n8k4|m16n8k4|m16n8k8|m16n8k16}.row.col{.rn|}.{d:f64}.{a:f64}.{b:f64}.{c:f64}{.rn|}",
    kind="tensor",
    flops=operations,
    together=_multiply,
)
def multiply(machine: Machine, instruction: Instruction) -> Step:
    """D = A B + C."""
    return _multiply(machine, [instruction])


@executes(
    "mma.sync.aligned.m8n8k4.{a:row|col}.{b:row|col}.{d:f32}.f16.f16.f32",
    "mma.sync.aligned.m8n8k4.{a:row|col}.{b:row|col}.{d:f16}.f16.f16.f16",
    kind="tensor",
    flops=("hmma", 2 * 4 * 8 * 8 * 4 // 32),
)
def multiply_quads(machine: Machine, instruction: Instruction) -> Step:
    """Four products of 8 x 8 x 4, each by eight lanes of the warp."""
    fields = instruction.fields
    count = 8 if fields["d"] == "f32" else 4
    machine.expect(instruction, len(instruction.operands) == 4, "needs 4 operands")
    d, a, b, c = (
        Held(machine, [instruction], operand, registers, 4) for operand, registers in enumerate((count, 2, 2, count))
    )

    compute = arithmetic(machine, instruction, "quads", (fields["d"], "f16", "f16", fields["d"]))

    def step() -> None:
        lanes = warps_here(machine, instruction)
        left = fragments.quad_factor(a.read(lanes), fields["a"] == "row")[:, :, None]
        right = fragments.quad_factor(b.read(lanes), fields["b"] == "col")[:, None]
        d.write(fragments.quad_registers(compute(left, right, fragments.quad_matrix(c.read(lanes)))), lanes)

    return step
