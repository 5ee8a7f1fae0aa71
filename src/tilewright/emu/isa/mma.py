"""mma.sync: products of small matrices by a warp, in fp16, bf16 and tf32.

Products are exact and summed in float64 together with C; the sum is rounded once, to nearest. Hardware adds the same
exact products with fewer bits behind the largest one and cuts instead of rounding, so the last bits of fp32 results
differ: by at most about 2 ulp of the largest product or of C for each 8 products added (measured: tests/gpu). A NaN
comes out as 0x7fffffff (fp16: 0x7fff).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..machine import Machine
from ..ptx import Instruction, Operand, Vector
from .convert import bf16_to_f32
from .float16 import narrow
from .float32 import NAN
from .fragments import Fragment, a_fragment, b_fragment, d_fragment
from .registry import Step, executes


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


def values_of(words: np.ndarray, kind: str) -> np.ndarray:
    """uint32 [warps, registers, 32] -> the elements as float64 [warps, registers, 32, parts]."""
    if kind == "tf32":  # the low 13 bits do not take part
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)[..., None]
    halves = words[..., None].view(np.uint16)
    return (bf16_to_f32(halves) if kind == "bf16" else halves.view(np.float16)).astype(np.float64)


class Operand16Or32:
    """Reads A or B of a product as matrices."""

    def __init__(
        self, machine: Machine, instruction: Instruction, operand: Operand, fragment: Fragment, kind: str
    ) -> None:
        given = registers(operand)
        repeats = len(given) % fragment.registers == 0
        machine.expect(instruction, bool(given) and repeats, f"needs {fragment.registers} registers of an operand")
        self.read = read_registers(machine, instruction, given[: fragment.registers], "b32")
        self.fragment, self.kind = fragment, kind

    def matrix(self) -> np.ndarray:
        """float64 [warps, rows, cols]."""
        return self.fragment.matrix(values_of(self.read(), self.kind))


class Accumulator:
    """Reads C, or writes D."""

    def __init__(
        self, machine: Machine, instruction: Instruction, operand: Operand, m: int, n: int, kind: str, write: bool
    ) -> None:
        self.kind = kind
        self.fragment = d_fragment(m, n, 32 if kind == "f32" else 16)
        given = registers(operand)
        machine.expect(
            instruction, len(given) == self.fragment.registers, f"needs {self.fragment.registers} accumulator registers"
        )
        if write:
            self._write = write_registers(machine, instruction, given, "b32")
        else:
            self._read = read_registers(machine, instruction, given, "b32")

    def matrix(self) -> np.ndarray:
        """float64 [warps, m, n]."""
        words = self._read()
        if self.kind == "f32":
            return self.fragment.matrix(words.view(np.float32)).astype(np.float64)
        return self.fragment.matrix(values_of(words, "f16"))

    def put(self, sums: np.ndarray) -> None:
        """Round float64 [warps, m, n] and keep it."""
        if self.kind == "f32":
            rounded = sums.astype(np.float32)
            bits = np.where(np.isnan(rounded), NAN, rounded.view(np.uint32))
            self._write(self.fragment.split(bits)[..., 0])
        else:
            halves = np.ascontiguousarray(self.fragment.split(narrow(sums, "f16")))
            self._write(halves.view(np.uint32)[..., 0])


def product(
    machine: Machine, instruction: Instruction, shape: tuple[int, int, int], types: tuple[str, str, str]
) -> Step:
    """D = A B + C of m x n x k; `types`: of A and B, of C, of D."""
    m, n, k = shape
    kind, c_kind, d_kind = types
    bits = 32 if kind == "tf32" else 16
    d, a, b, c = instruction.operands
    left = Operand16Or32(machine, instruction, a, a_fragment(m, k, bits), kind)
    right = Operand16Or32(machine, instruction, b, b_fragment(k, n, bits), kind)
    start = Accumulator(machine, instruction, c, m, n, c_kind, write=False)
    result = Accumulator(machine, instruction, d, m, n, d_kind, write=True)

    def step() -> None:
        whole_warps(machine, instruction)
        with np.errstate(invalid="ignore", over="ignore"):
            result.put(np.matmul(left.matrix(), right.matrix()) + start.matrix())

    return step


_SHAPES = {"m16n8k4": (16, 8, 4), "m16n8k8": (16, 8, 8), "m16n8k16": (16, 8, 16)}


def _register(shape: str, kinds: str) -> None:
    m, n, k = _SHAPES[shape]

    @executes(
        f"mma.sync.aligned.{shape}.row.col.{kinds}", kind="tensor", flops=("hmma", 2 * m * n * k // 32),
    )  # fmt: skip
    def multiply(machine: Machine, instruction: Instruction) -> Step:
        d_kind, kind, other, c_kind = instruction.opcode.split(".")[-4:]
        machine.expect(instruction, kind == other, "multiplies unequal types")
        return product(machine, instruction, (m, n, k), (kind, c_kind, d_kind))


for _shape in ("m16n8k8", "m16n8k16"):
    for _kinds in ("f32.bf16.bf16.f32", "f32.f16.f16.f32", "f16.f16.f16.f16"):
        _register(_shape, _kinds)
for _shape in ("m16n8k4", "m16n8k8"):
    _register(_shape, "f32.tf32.tf32.f32")
