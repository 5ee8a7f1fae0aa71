"""A traced expression in interval arithmetic (cuda/tile/range.cuh): the range of a kernel's possible fp32 results.

Made from the operations, not from the text that kernels compile, so that a mistake in that text shows.
"""

from __future__ import annotations

from ..arrays.dtypes import ITEM_BYTES
from ..epilogue.codegen import literal, parameter
from ..epilogue.numbers import NUMBER
from ..epilogue.ops import OPS
from ..epilogue.trace import BOOL, FLOAT, INT, Node
from ..errors import InvalidEpilogue
from .fused import HEADER, args_struct, held_as, read_operand
from .problem import INDEX, Epilogue, GemmProblem

_TYPES = {FLOAT: "Range", INT: "Whole", BOOL: "Truth"}
_EXACTLY = {FLOAT: "exactly", INT: "exactly_whole", BOOL: "certainly"}


def range_headers(problem: GemmProblem) -> dict[str, str]:
    """Return the text that replaces cuda/gemm/fused.cuh in the kernel that checks ranges. Without an epilogue a range
    stays as it is. Raises InvalidEpilogue for an epilogue of which only the code is known."""
    epilogue = problem.epilogue or Epilogue("acc", "")
    if problem.epilogue is not None and not epilogue.nodes:
        raise InvalidEpilogue(
            f"{epilogue.description}: only its code is known, so no result can be verified. Let matmul's arguments "
            "make it, or omit verify."
        )
    reads = [
        f"{held_as(operand, problem, vectors=False)} in{number}; {read_operand(number, operand)}"
        for number, operand in enumerate(epilogue.operands)
        if not operand.scales
    ]
    lines = [*reads, *_statements(epilogue)]
    text = "\n".join(
        [
            "#pragma once",
            "// The epilogue of one product in interval arithmetic, made from its expression.",
            f"constexpr bool fused_brief = {str(ITEM_BYTES[problem.out_dtype] == 2).lower()};  // 16-bit results",
            '#include "tile/fused.cuh"',
            '#include "tile/range.cuh"',
            "",
            args_struct(epilogue),
            "",
            "__device__ inline Range fuse_range(const FusedArgs& args, int row, int col, Range value) {",
            "  using Order = InLine<1>;",
            "  constexpr int left = 1;",
            *(f"  {line}" for line in lines),
            "}",
            "",
        ]
    )
    return {HEADER: text}


def _statements(epilogue: Epilogue) -> list[str]:
    places = {operand.name: number for number, operand in enumerate(epilogue.operands)}
    names: list[str] = []
    lines = []
    for node in epilogue.nodes:
        names.append(f"t{len(names)}")
        lines.append(f"const {_TYPES[node.kind]} {names[-1]} = {_text(node, names, epilogue, places)};")
    return [*lines, f"return {names[-1] if names else 'value'};"]


def _text(node: Node, names: list[str], epilogue: Epilogue, places: dict[str, int]) -> str:
    if node.op == "sum":
        return "value"
    if node.op == "constant":
        return f"{_EXACTLY[node.kind]}({literal(node)})"
    if node.op == NUMBER:
        return f"exactly({parameter(node)})"
    if node.op == "input":
        number = places[node.value]
        if epilogue.operands[number].dtype == INDEX:
            return f"exactly_whole(in{number})"
        return f"exactly(in{number}[0])"
    return OPS[node.op].range.format(*(names[arg] for arg in node.args))
