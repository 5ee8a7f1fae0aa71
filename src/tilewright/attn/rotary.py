"""Rotary positions: rows of q or k turned by the angles of their places, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ..arrays.view import Operand, as_operand
from ..errors import InvalidOperand
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Place, pack
from ..jit.source import Constant
from ..run.one_pass import OnePass
from ..run.program import Program, Stage
from ..run.runner import run
from ..run.warm import MISS, WarmCalls

THREADS = 256
LAYOUT = "<4Q7q3i4x"
"""RotaryArgs in cuda/attention/rotary.cuh."""
FLOATS = ("f32", "f16", "bf16")
calls = WarmCalls()


def turn(x: Any, cos: Any, sin: Any, back: bool = False) -> Any:
    """x turned by its positions, as Llama's models do; `back`: by the transposed turn, which is the gradient's.

    x: [batch, heads, rows, d], d even, float32, float16 or bfloat16. cos, sin: [rows, d], or [batch or 1, rows, d], in
    x's type or float32. Of all of them neighbours along d lie next to each other. With j = i + d / 2, result i is
    x[i] cos[i] - x[j] sin[i] and result j is x[j] cos[j] + x[i] sin[j], computed in float32 and rounded once. It lies
    as [batch, rows, heads, d]. Raises InvalidOperand for other arrays.
    """
    found = calls.run((x, cos, sin), (back,))
    if found is not MISS:
        return found[0]
    given = as_operand(x.swapaxes(1, 2), "x"), as_operand(cos, "cos"), as_operand(sin, "sin")
    call = OnePass(f"this turn of {tuple(x.shape)} {given[0].dtype}", given, ("out",), _program(_turning(*given, back)))
    (result,), ran = run(call)
    result = result.swapaxes(1, 2)
    if ran is not None:
        calls.remember(call, (result,), ran, (x, cos, sin), (back,))
    return result


@dataclass(frozen=True)
class Turning:
    """[batch, rows, heads, d] by angles in another type, or the same. Steps in elements."""

    shape: tuple[int, int, int, int]
    dtype: str
    angles: str
    steps: tuple[int, ...]
    """x's from entry to entry, row to row and head to head; then cos's and sin's from entry to entry and row to row."""
    wide: bool
    """True where 16 bytes can be read and written at a time."""
    back: bool


def _turning(x: Operand, cos: Operand, sin: Operand, back: bool) -> Turning:
    """Raises InvalidOperand for arrays that do not go together."""
    d = x.shape[-1] if len(x.shape) == 4 else 1
    if d % 2 or x.dtype not in FLOATS:
        raise InvalidOperand(
            f"x is {x.dtype} of shape {x.shape} (rows before heads). Pass four axes of floats, the last of even extent."
        )
    steps, start = [*x.strides[:3]], x.address
    for angle in (cos, sin):
        shape = angle.shape if len(angle.shape) == 3 else (1, *angle.shape)
        if shape not in ((1, x.shape[1], d), (x.shape[0], x.shape[1], d)) or angle.dtype not in {x.dtype, "f32"}:
            raise InvalidOperand(
                f"{angle.name} is {angle.dtype} of shape {angle.shape}. Pass {x.dtype} or f32 of shape "
                f"{(x.shape[1], d)}, {(1, x.shape[1], d)} or {(x.shape[0], x.shape[1], d)}."
            )
        batch = angle.strides[0] if len(angle.shape) == 3 and angle.shape[0] > 1 else 0
        steps += batch, angle.strides[-2]
        start |= angle.address
    if cos.dtype != sin.dtype:
        raise InvalidOperand(f"cos is {cos.dtype} and sin {sin.dtype}: both are alike.")
    if any(one.strides[-1] != 1 for one in (x, cos, sin) if one.size):
        raise InvalidOperand("x, cos and sin have to be contiguous along their last axis.")
    unit = 16 // ITEM_BYTES[x.dtype]  # of x's; as many angles are whole accesses too, since none is narrower
    wide = not start % 16 and not any(step % unit for step in (d // 2, *steps))
    return Turning((x.shape[0], x.shape[1], x.shape[2], d), x.dtype, cos.dtype, tuple(steps), wide, back)


class Turner:
    """The kernel."""

    @staticmethod
    def _each(problem: Turning) -> int:
        """Pairs of a thread."""
        return 16 // ITEM_BYTES[problem.dtype] if problem.wide else 1

    def _threads(self, problem: Turning) -> int:
        batch, rows, heads, d = problem.shape
        return batch * rows * heads * ceil_div(d // 2, self._each(problem))

    def compile(self, problem: Turning, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {
            "type": CPP_TYPES[problem.dtype], "angle_type": CPP_TYPES[problem.angles], "d": problem.shape[3],
            "each": self._each(problem), "wide": problem.wide, "back": problem.back, "threads": THREADS,
            "index": "unsigned" if self._threads(problem) < 2**32 - THREADS else "unsigned long long",
        }  # fmt: skip
        return compile_rung("attention/rotary.cuh", constants, "rotary", arch.name)

    def shape(self, problem: Turning) -> Launch:
        """See Rung.shape."""
        return Launch((ceil_div(self._threads(problem), THREADS), 1, 1), (THREADS, 1, 1), b"", overlaps=True)


KERNEL = Turner()


@lru_cache(maxsize=1024)
def _program(problem: Turning) -> Program:
    """The launch. Pure."""
    places = [Place(name) for name in ("x", "cos", "sin", "out")]
    params = pack(LAYOUT, *places, *problem.steps, *problem.shape[:3])
    return Program((Stage("rotary", KERNEL, problem, KERNEL.shape(problem), params),))
