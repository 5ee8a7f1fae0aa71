"""Fused epilogues for kernels: the text that takes the place of cuda/gemm/fused.cuh, and the operands' parameters."""

from __future__ import annotations

import struct

from ..problems import INDEX, ITEM_BYTES, FusedOperand, GemmProblem

HEADER = "gemm/fused.cuh"
"""The file whose place the generated text takes."""

_CPP_TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16"}
_OPERAND = struct.Struct("<4q")  # FusedOperand in cuda/tile/fused.cuh


def fused_headers(problem: GemmProblem) -> dict[str, str]:
    """The generated text by the name it goes by; none without an epilogue: kernels are then as if there were none."""
    epilogue = problem.epilogue
    if epilogue is None:
        return {}
    reads = [read_operand(number, operand, problem) for number, operand in enumerate(epilogue.operands)]
    fetches = [
        f"fetch_tile<Cfg, {_CPP_TYPES[operand.dtype]}>(args.operand[{number}], row, col, m, n);"
        for number, operand in enumerate(epilogue.operands)
        if operand.dtype != INDEX and operand.matrix.row_stride and operand.matrix.col_stride == 1
    ]
    text = "\n".join(
        [
            "#pragma once",
            "// The epilogue of one product, made from its expression.",
            f"constexpr bool fused_brief = {str(ITEM_BYTES[problem.out_dtype] == 2).lower()};  // 16-bit results",
            '#include "tile/fused.cuh"',
            '#include "tile/fused_math.cuh"',
            "",
            args_struct(len(reads)),
            "",
            "template <class Cfg>",
            "__device__ inline void fetch_fused(const FusedArgs& args, int row, int col, int m, int n) {",
            *(f"  {line}" for line in fetches),
            "}",
            "",
            "template <bool vectors, int count>",
            "__device__ inline void fuse(const FusedArgs& args, int row, int col, float (&value)[count]) {",
            *(f"  {line}" for line in reads),
            "#pragma unroll",
            "  for (int i = 0; i < count; ++i) {",
            *(f"    {line}" for line in epilogue.code.splitlines()),
            "  }",
            "}",
            "",
        ]
    )
    return {HEADER: text}


def args_struct(operands: int) -> str:
    """The struct that pack_fused fills."""
    members = f"\n  FusedOperand operand[{operands}];\n" if operands else ""
    return f"struct FusedArgs {{{members}}};"


def read_operand(number: int, operand: FusedOperand, problem: GemmProblem, vectors: bool = True) -> str:
    """The statement that leaves `count` elements of a row in in{number}, an index as a number; `vectors`: by the
    accesses that the function's own `vectors` allows."""
    place = f"args.operand[{number}], row, col"
    if operand.dtype == INDEX:
        return f"const long long in{number} = read_index({place});"
    lies, item = operand.matrix, ITEM_BYTES[operand.dtype]
    along = {0: "fused_same", 1: "fused_unit"}.get(lies.col_stride, "fused_strided")
    aligned = lies.alignment % 16 == 0 and not any(
        step * item % 16 for step in (lies.row_stride if problem.m > 1 else 0, lies.batch_stride)
    )
    wide = "vectors" if vectors and lies.col_stride == 1 and aligned else "false"
    flags = f"{_CPP_TYPES[operand.dtype]}, {str(lies.row_stride != 0).lower()}, {along}, {wide}, "
    flags += str(not operand.is_out).lower()
    return f"float in{number}[count]; read_fused<{flags}>(in{number}, {place});"


def pack_fused(problem: GemmProblem, addresses: tuple[int, ...]) -> bytes:
    """FusedArgs: an address (of an index: where it starts) and strides for each of the epilogue's operands."""
    operands = problem.epilogue.operands if problem.epilogue else ()
    return b"".join(
        _OPERAND.pack(address, operand.matrix.batch_stride, operand.matrix.row_stride, operand.matrix.col_stride)
        for address, operand in zip(addresses, operands, strict=True)
    )
