"""The parameters of the kernels around a product: Python packs each field where the device code's struct has it."""

from __future__ import annotations

import dataclasses
import re
import struct

import pytest

from tilewright.gemm.freivalds import DEQUANTISE, SIGN_ROWS, check_rows
from tilewright.gemm.gated import KERNEL, Gating
from tilewright.gemm.params import LAYOUTS
from tilewright.gemm.problem import GemmProblem
from tilewright.gemm.quantize_call import BY_TEAM, Quantizer, Quantizing
from tilewright.gemm.stages import CLEAR, PACK, SUM_PARTS, TURN, WIDEN, Halve, Split
from tilewright.gemm.verify import COMPARE, EXPECTED
from tilewright.gpus import ARCHS
from tilewright.jit import use_executor
from tilewright.jit.compile import compile_unit
from tilewright.jit.params import _fields
from tilewright.jit.source import CUDA_ROOT

KERNELS = {
    "clear": CLEAR, "pack": PACK, "split": Split(32, 32), "halve": Halve(2), "sum_parts": SUM_PARTS,
    "sign_rows": SIGN_ROWS, "check_rows": check_rows("f32"), "turn": TURN, "widen": WIDEN,
    "dequantise": DEQUANTISE, "expected": EXPECTED, "compare": COMPARE,
}  # fmt: skip


class Quantize:
    def compile(self, problem, arch):
        return Quantizer(BY_TEAM).compile(Quantizing(1, 64, 64, 1, 64, "f32", "e4m3", (0, 64, 1), True), arch)


class Gated:
    def compile(self, problem, arch):
        return KERNEL.compile(Gating(64, "f32", "silu", True, True), arch)


KERNELS["quantize"], KERNELS["gated"] = Quantize(), Gated()
ENDS_IN = {"sum_parts": "result", "expected": "fused"}
"""Members that are structs themselves, packed apart."""


class Ptx:
    runs_ptx = True


def members(entry: str, name: str) -> list[str]:
    """The names of a struct's members, in order."""
    text = (CUDA_ROOT / "gemm" / f"{entry}.cuh").read_text()
    body = re.search(rf"struct {name} {{\n(.*?)\n}};", text, re.DOTALL)[1]
    declared = re.sub(r"//[^\n]*", "", body).split(";")
    return [re.sub(r".*[\s*&]", "", one.strip()) for line in declared for one in line.split(",") if one.strip()]


@pytest.mark.parametrize("entry", LAYOUTS)
def test_every_field_is_packed_where_the_struct_has_it(entry):
    name, layout = LAYOUTS[entry]
    names = members(entry, name)
    ends_in = ENDS_IN.get(entry)
    places = [*_fields(layout), *([struct.calcsize(layout)] if ends_in else [])]
    assert len(names) == len(places)
    assert names[-1] == ends_in or ends_in is None
    held = [
        f"static_assert(__INTADDR__(&(({name}*)0)->{member}) == {at}, {quoted(member)});"
        for member, at in zip(names, places, strict=True)
    ]
    if ends_in is None:
        held.append(f"static_assert(sizeof({name}) == {struct.calcsize(layout)}, {quoted(name)});")
    with use_executor(Ptx()):
        kernel = KERNELS[entry].compile(GemmProblem.dense(64, 64, 64), ARCHS["sm_90a"])
        compile_unit(dataclasses.replace(kernel.source, text="\n".join([kernel.source.text, *held])), "sm_90a")


def quoted(text: str) -> str:
    return f'"{text}"'


def test_an_epilogue_that_reads_nothing_takes_eight_bytes_of_what_is_expected():
    """An empty struct is not of size 0."""
    with use_executor(Ptx()):
        kernel = EXPECTED.compile(GemmProblem.dense(64, 64, 64), ARCHS["sm_90a"])
        size = struct.calcsize(LAYOUTS["expected"][1]) + 8
        text = f"{kernel.source.text}\nstatic_assert(sizeof(ExpectedArgs) == {size});"
        compile_unit(dataclasses.replace(kernel.source, text=text), "sm_80")
