"""What lies between the products of a gated feed-forward, down(activation(gate(x)) * up(x)): one pass forward, one
backward.

Written one operation after another, as frameworks do in eager mode, the forward part reads and writes five arrays and
the backward part nine; here they are three and five.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..arrays.dlpack import dense_strides
from ..arrays.dtypes import CPP_TYPES, ITEM_BYTES, ceil_div
from ..arrays.view import as_operand
from ..epilogue.codegen import statements
from ..epilogue.derivative import differentiate
from ..epilogue.recorded import Recorded, write
from ..epilogue.trace import FLOAT, Graph, Node, apply
from ..errors import InvalidOperand
from ..gpus import Arch
from ..jit import CompiledKernel, Launch, compile_rung
from ..jit.params import Place, pack
from ..jit.source import Constant
from ..run.one_pass import OnePass
from ..run.program import Program, Stage
from ..run.runner import run
from ..run.warm import MISS, WarmCalls
from .params import LAYOUTS

THREADS = 256
calls = WarmCalls()


def gate(inside: Any, other: Any, activation: str) -> Any:
    """activation(inside) * other, computed in float32 and rounded once.

    inside, other: dense arrays of one shape, dtype and place; activation: one that `matmul` takes. Raises
    InvalidOperand for other arrays.
    """
    return _call((inside, other), activation)[0]


def gate_gradients(grad: Any, inside: Any, other: Any, activation: str) -> tuple[Any, Any]:
    """The gradients of inside and of other, from `grad`, that of gate(inside, other, activation).

    grad, inside, other: dense arrays of one shape, dtype and place. Raises InvalidOperand for other arrays.
    """
    of_inside, of_other = _call((grad, inside, other), activation)
    return of_inside, of_other


def _call(given: tuple[Any, ...], activation: str) -> Any:
    found = calls.run(given, (activation,))
    if found is not MISS:
        return found
    names = ("grad", "inside", "other")[-len(given) :]
    operands = tuple(as_operand(array, name) for array, name in zip(given, names, strict=True))
    first = operands[0]
    for operand in operands:
        if operand.shape != first.shape or operand.dtype != first.dtype:
            raise InvalidOperand(
                f"{operand.name} is {operand.dtype} of shape {operand.shape} and {first.name} {first.dtype} of shape "
                f"{first.shape}: all are alike."
            )
        steps = zip(operand.shape, operand.strides, dense_strides(operand.shape), strict=True)
        if operand.size and any(extent > 1 and step != dense for extent, step, dense in steps):
            raise InvalidOperand(f"{operand.name} is not dense: its strides are {operand.strides}.")
    aligned, backward = not any(one.address % 16 for one in operands), len(given) == 3
    program = program_of(Gating(first.size, first.dtype, activation, backward, aligned))
    call = OnePass(f"this gate of {first.shape} {first.dtype}", operands, ("first", "second")[: 1 + backward], program)
    results, ran = run(call)
    if ran is not None:
        calls.remember(call, results, ran, given, (activation,))
    return results


@dataclass(frozen=True)
class Gating:
    """`count` elements; `backward`: their gradients."""

    count: int
    dtype: str
    activation: str
    backward: bool
    aligned: bool
    """True where each array begins at a multiple of 16 bytes."""


class Gate:
    """The kernel."""

    def compile(self, problem: Gating, arch: Arch) -> CompiledKernel:
        """Raises CompileError with the log."""
        constants: dict[str, Constant] = {
            "type": CPP_TYPES[problem.dtype], "threads": THREADS, "backward": problem.backward,
            "aligned": problem.aligned,
        }  # fmt: skip
        made = {"gemm/gate.cuh": text_of(problem.activation, ITEM_BYTES[problem.dtype] == 2, problem.backward)}
        return compile_rung("gemm/gated.cuh", constants, "gated", arch.name, generated=made)

    def shape(self, problem: Gating) -> Launch:
        """See Rung.shape."""
        each = 16 // ITEM_BYTES[problem.dtype]
        return Launch((ceil_div(problem.count, each * THREADS), 1, 1), (THREADS, 1, 1), b"", overlaps=True)


KERNEL = Gate()


@lru_cache(maxsize=64)
def expressions(activation: str) -> tuple[Recorded, Recorded, Recorded]:
    """activation(sum) * other, and the gradients of the sum and of other, from `grad`."""
    graph = Graph()
    inside = graph.add(Node("sum", FLOAT))
    value = write(graph, apply(activation, inside) * graph.add(Node("input", FLOAT, (), "other")))
    derivative = differentiate(value)
    assert derivative.of_sum is not None
    return value, derivative.recorded(derivative.of_sum), derivative.recorded(derivative.of_operands["other"])


@lru_cache(maxsize=64)
def text_of(activation: str, brief: bool, backward: bool) -> str:
    """gemm/gate.cuh: `gate`, which makes the results of a thread's elements."""
    value, *gradients = expressions(activation)
    made = zip(("first", "second"), gradients if backward else (value,), strict=False)
    arrays = ", ".join(f"const float (&{name})[count]" for name in ("inside", "other", "grad"))
    return "\n".join(
        [
            "#pragma once", "// The gate of one feed-forward, made from its activation.",
            f"constexpr bool fused_brief = {str(brief).lower()};  // 16-bit results",
            '#include "tile/fused_math.cuh"', "", "template <int count>",
            f"__device__ inline void gate({arrays}, float (&first)[count], float (&second)[count]) {{",
            "#pragma unroll", "  for (int i = 0; i < count; ++i) {",
            *(f"    {line}" for name, recorded in made for line in _result(name, recorded)), "  }", "}", "",
        ]
    )  # fmt: skip


def _result(name: str, recorded: Recorded) -> list[str]:
    """Element i of array `name` becomes the expression's value."""
    element = f"{name}[i]"
    reads = [f"const float (&in{place})[count] = {array};" for place, array in enumerate(recorded.operands)]
    lines = statements(recorded.nodes, recorded.operands, element=element).splitlines()
    return [f"{element} = inside[i];", "{", *(f"  {line}" for line in (*reads, *lines)), "}"]


@lru_cache(maxsize=1024)
def program_of(problem: Gating) -> Program:
    """The launch for a problem. Pure."""
    grad, second = (Place("grad"), Place("second")) if problem.backward else (0, 0)
    params = pack(
        LAYOUTS["gated"][1], grad, Place("inside"), Place("other"), Place("first"), second, problem.count
    )  # fmt: skip
    return Program((Stage("gated", KERNEL, problem, KERNEL.shape(problem), params),))
