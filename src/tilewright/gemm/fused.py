"""Fused epilogues for kernels: the text that replaces cuda/gemm/fused.cuh, and the parameters that it reads."""

from __future__ import annotations

from ..arrays.dtypes import ITEM_BYTES
from ..jit.params import Address, Scalar, Template, pack, pack_numbers
from .problem import INDEX, Epilogue, FusedOperand, GemmProblem

HEADER = "gemm/fused.cuh"
"""The file that the generated text replaces."""

_CPP_TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16"}
_OPERAND = "<4q"
"""FusedOperand in cuda/tile/fused.cuh."""


def fused_headers(problem: GemmProblem) -> dict[str, str]:
    """Return the generated text by the name of the file it replaces; nothing without an epilogue."""
    epilogue = problem.epilogue
    if epilogue is None:
        return {}
    operands = tuple((number, operand) for number, operand in enumerate(epilogue.operands) if not operand.scales)
    if not epilogue.code:
        operands = ()
    arrays = [number for number, operand in operands if operand.dtype != INDEX]
    fetches = [
        f"fetch_tile<Cfg, {_CPP_TYPES[operand.dtype]}, branches>(args.operand[{number}], row, col, m, n, now);"
        for number, operand in operands
        if operand.dtype != INDEX and operand.matrix.row_stride and operand.matrix.col_stride == 1
    ]
    registers = [f"decltype(in{number})::registers" for number in arrays]
    text = "\n".join(
        [
            "#pragma once",
            "// The epilogue of one product, made from its expression.",
            f"constexpr bool fused_brief = {str(ITEM_BYTES[problem.out_dtype] == 2).lower()};  // 16-bit results",
            '#include "tile/fused.cuh"',
            '#include "tile/fused_math.cuh"',
            "",
            args_struct(epilogue),
            "",
            "template <class Cfg, bool branches = true>",
            "__device__ inline void fetch_fused(const FusedArgs& args, int row, int col, int m, int n,",
            "                                   bool now = true) {",
            *(f"  {line}" for line in fetches),
            "}",
            "",
            "template <bool vectors, class Order>",
            "struct FusedReads {",
            *(f"  {held_as(operand, problem)} in{number};" for number, operand in operands),
            f"  static constexpr int registers = {' + '.join(registers) or 0};",
            "",
            "  __device__ void read(const FusedArgs& args, int row, int col, int left) {",
            *(f"    {read_operand(number, operand)}" for number, operand in operands),
            "  }",
            "  __device__ void apply(const FusedArgs& args, float (&value)[Order::count]) {",
            *(f"    in{number}.settle();" for number in arrays),
            "#pragma unroll",
            "    for (int i = 0; i < Order::count; ++i) {",
            *(f"      {line}" for line in epilogue.code.splitlines()),
            "    }",
            "  }",
            "};",
            "",
        ]
    )
    return {HEADER: text}


def args_struct(epilogue: Epilogue) -> str:
    """The struct that pack_fused fills."""
    operands, numbers = len(epilogue.operands), len(epilogue.numbers)
    members = f"\n  FusedOperand operand[{operands}];\n" if operands else ""
    members += f"\n  float number[{numbers}];\n" if numbers else ""
    return f"struct {'alignas(8) ' if numbers else ''}FusedArgs {{{members}}};"


def held_as(operand: FusedOperand, problem: GemmProblem, vectors: bool = True) -> str:
    """The type of what is read of an operand, in the order `Order` (cuda/tile/fused.cuh); of an index a number.
    `vectors`: by the accesses that the text's own `vectors` allows."""
    if operand.dtype == INDEX:
        return "long long"
    lies, item = operand.matrix, ITEM_BYTES[operand.dtype]
    along = {0: "fused_same", 1: "fused_unit"}.get(lies.col_stride, "fused_strided")
    aligned = lies.alignment % 16 == 0 and not any(
        step * item % 16 for step in (lies.row_stride if problem.m > 1 else 0, lies.batch_stride)
    )
    wide = "vectors" if vectors and lies.col_stride == 1 and aligned else "false"
    flags = f"{_CPP_TYPES[operand.dtype]}, {str(lies.row_stride != 0).lower()}, {along}, {wide}"
    return f"FusedRun<{flags}, {str(not operand.is_out).lower()}, Order>"


def read_operand(number: int, operand: FusedOperand) -> str:
    """The statement that fills in{number}."""
    if operand.dtype == INDEX:
        return f"in{number} = read_index(args.operand[{number}], row, col + Order::first());"
    return f"in{number}.read(args.operand[{number}], row, col, left);"


def pack_fused(problem: GemmProblem, at: tuple[Address, ...], numbers: tuple[float | Scalar, ...]) -> Template:
    """FusedArgs: for each of the epilogue's operands an address (of an index: where it starts) and strides; then the
    numbers, of which there must be as many as the code reads."""
    epilogue = problem.epilogue
    if epilogue is None:
        return Template(b"")
    packed = Template(b"")
    for address, operand in zip(at, epilogue.operands, strict=True):
        lies = operand.matrix
        packed += pack(_OPERAND, address, lies.batch_stride, lies.row_stride, lies.col_stride)
    if len(numbers) != len(epilogue.numbers):
        raise ValueError(f"{len(numbers)} numbers for an epilogue that reads {len(epilogue.numbers)}")
    return packed + pack_numbers(numbers)
