"""PTX that is damaged, made up, or not what an assembler takes: always an error that says so, never a traceback."""

from __future__ import annotations

from collections import Counter

import fuzz_ptx
import numpy as np
import pytest

import tilewright as tw
from tilewright import emu
from tilewright.errors import EmulatorFault, PtxError, UnknownInstruction

HEADER = fuzz_ptx.HEADER
DECLARED = ".reg .b16 %rs<5>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<5>;"


def kernel(body: str, before: str = "", name: str = "k") -> str:
    return f"{before}\n.visible .entry {name}(.param .u64 p)\n{{\n{DECLARED}\n{body}\nret;\n}}\n"


def run(ptx: str, entry: str = "k") -> tw.emu.EmulateResult:
    return emu.emulate(HEADER + ptx, entry, 1, 32, [np.zeros(32, np.int32)])


def test_damaged_modules_run_or_are_refused(request):
    count = 6000 if request.config.getoption("--whole") else 1200
    told = Counter(fuzz_ptx.verdict(ptx) for ptx in fuzz_ptx.mutants(seed=20, count=count))
    assert told.total() == count
    assert told["ran"] > count / 10  # else the damage is too coarse to say anything
    assert told["PtxError"] > count / 10


def test_the_seeds_of_the_damage_run():
    assert [fuzz_ptx.verdict(ptx) for ptx in fuzz_ptx.SEEDS] == ["ran"] * len(fuzz_ptx.SEEDS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("add.u32 %r1, %r2;", "has 2 operands and needs 3"),
        ("add.u32 %r1, %r2, %r3, %r4;", "has 4 operands and needs 3"),
        ("add.u32 %f1, %r1, %r2;", "uses the .f32 register %f1 as .u32"),
        ("add.f32 %f1, %f1, 1;", "has a constant that is not of type .f32"),
        ("add.u32 %r1, %tid.x, 1;", "reads a special register"),
        ("add.u32 _, %r1, 1;", "discards its result"),
        ("mov.u32 %r1, %rd1;", "uses the .b64 register %rd1 as .u32"),
        ("mov.u32 %r1, 99999999999999999999;", "takes more than 64 bits"),
        ("setp.lt.s32 %r1, %r2, 1;", "uses the .b32 register %r1 as .pred"),
        ("setp.lt.s32 %p1|%r1, %r2, 1;", "writes .pred to a register of another type"),
        ("selp.u32 %f1, 1, 2, %p1;", "uses the .f32 register %f1 as .u32"),
        ("mul.wide.s32 %r1, %r2, 5;", "uses the .b32 register %r1 as .s64"),
        ("ld.global.u32 %r1, [%f1];", "a register of type .f32"),
        ("membar.gl 1;", "has 1 operands and needs 0"),
        ("shfl.sync.bfly.b32 %r1|%r2, %r1, 1, 31, -1;", "writes .pred to"),
        (".reg .b32 %q<99999999999>;", "a register name"),
        (".shared .align 3 .b8 s[4];", "not a power of two"),
        (".shared .b8 s[08];", "a constant '08'|dimension"),
        (".local .b8 s[99999999999];", "a variable of 99999999999 bytes"),
        ("L: L: bra L;", "for the second time"),
        ("mov.u32 %r1, {%rs1,, %rs2};", "PTX line"),
        ("bar.sync 0, 31;", "not a multiple of 32"),
    ],
)
def test_what_an_assembler_refuses_is_refused_with_its_line(line, message):
    with pytest.raises(PtxError, match=message) as caught:
        run(kernel(line))
    assert "PTX line " in str(caught.value)


def test_registers_are_made_when_they_are_named():
    body = ".reg .b32 %many<99999999>; mov.u32 %many99999998, 7; ld.param.u64 %rd1, [p];"
    assert run(kernel(f"{body} st.global.u32 [%rd1], %many99999998;")).arrays[0][0] == 7
    with pytest.raises(PtxError, match="%many99999999"):
        run(kernel(f"{body} mov.u32 %r1, %many99999999;"))


def test_a_kernel_that_is_not_understood_refuses_only_itself():
    texture = kernel("frobnicate.%% %r1;", ".global .texref t;", "odd")
    unknown = kernel("tex.cube.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1, %f2, %f3, %f4}];", name="textured")
    whole = texture + unknown + kernel("ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 3;")
    assert run(whole).arrays[0][0] == 3
    with pytest.raises(PtxError, match="frobnicate"):
        run(whole, "odd")
    with pytest.raises(UnknownInstruction, match=r"tex\.cube"):
        run(whole, "textured")


def test_a_function_that_is_not_understood_refuses_the_kernels_that_call_it():
    bad = ".func f()\n{\nwhat is %% this;\n}\n"
    with pytest.raises(PtxError, match="what is"):
        run(bad + kernel("call f, ();"))
    assert run(bad + kernel("ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 3;")).arrays[0][0] == 3


def test_directives_may_stand_without_a_blank_before_the_type():
    body = "{.reg.b32 t; .reg.f32 u; mov.b32 t, 5; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], t;}"
    assert run(kernel(body, ".global.align 4.b8 x[4];\n.visible.const .align 4 .u32 y = 3;")).arrays[0][0] == 5


def test_managed_variables_lie_in_global_memory():
    body = "ld.param.u64 %rd1, [p]; ld.global.u32 %r1, [m]; st.global.u32 [%rd1], %r1;"
    assert run(kernel(body, ".visible .global .attribute(.managed) .align 4 .u32 m = 9;")).arrays[0][0] == 9


@pytest.mark.parametrize("opcode", ["atom.global.add.u32", "red.global.add.u32", "ld.global.u32", "st.global.u32"])
def test_an_access_to_global_memory_without_operands_is_refused_in_several_blocks_too(opcode):
    for operands in ("", " %r1"):
        ptx = HEADER + kernel(f"{opcode}{operands};")
        with pytest.raises(PtxError, match="operands"):
            emu.emulate(ptx, "k", 4, 32, [np.zeros(32, np.int32)])


@pytest.mark.parametrize("line", ["ld.global.u32 %r1, [-4];", "ld.param.u32 %r1, [-1];", "st.shared.u32 [-4], %r1;"])
def test_a_constant_address_below_zero_is_out_of_bounds(line):
    with pytest.raises(EmulatorFault, match="out_of_bounds"):
        run(kernel(line))
